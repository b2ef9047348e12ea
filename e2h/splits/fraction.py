"""A fraction of a finite table for training, the rest for testing (Power et al. 2022, arXiv 2201.02177)."""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from e2h import rng
from e2h.registry import Refused, setting
from e2h.splits import TEST, TRAIN, Split
from e2h.tasks import TableTask


@dataclasses.dataclass(frozen=True)
class Fraction(Split):
    """`by=orbit` keeps symmetric twins (a + b and b + a) together; `by=ordered` splits rows, as most papers do."""

    train_fraction: float = setting(0.5, "share of the table for training (a fraction, not percent)", low=0.0, high=1.0)
    by: str = setting("orbit", "what is shuffled", choices=("orbit", "ordered"))
    shared: bool = setting(False, "one split for all seeds (that of seed 0), as in Power et al.'s code")

    parts: ClassVar[tuple[str, ...]] = (TRAIN, TEST)

    def check(self, config) -> None:
        if not isinstance(config.task, TableTask):
            raise Refused(f"split fraction divides a table, and task {config.task.name} has none; try --split=length.")
        for part in self.parts:
            if self._count(config.task, part) == 0:
                raise Refused(
                    f"split.train_fraction={self.train_fraction} leaves no {part} problem "
                    f"of the {config.task.size} of task {config.task.name}."
                )

    def difficulties(self, task, part) -> tuple[int, ...]:
        del task, part
        return (1,)

    def batch_size(self, task, requested: int) -> int:
        return min(requested, self._count(task, TRAIN))

    def _count(self, task, part: str) -> int:
        """Problems in a part: the same for every seed, because orbits of one size are divided among themselves."""
        return sum(orbits[self._range(orbits, part)].size for orbits in _orbits(task, self.by))

    def _range(self, orbits: np.ndarray, part: str) -> slice:
        n_train = math.floor(self.train_fraction * len(orbits) + 1e-9)
        return slice(0, n_train) if part == TRAIN else slice(n_train, None)

    def prepare(self, task, seed) -> dict:
        """{part: int32 [count] row indices}, orbits in a random order of the seed."""
        rows = {part: [] for part in self.parts}
        for i, orbits in enumerate(_orbits(task, self.by)):
            order = jax.random.permutation(rng.stream(0 if self.shared else seed, "split", i), len(orbits))
            for part in self.parts:
                rows[part].append(jnp.asarray(orbits)[order[self._range(orbits, part)]].ravel())
        return {part: jnp.concatenate(r) for part, r in rows.items()}

    def train(self, task, data, seed, step, row_B, batch_size, difficulty, capacity):
        """Each epoch passes over the training rows in an order of its own and drops what does not fill a batch."""
        del difficulty, capacity
        n, at_B = len(data[TRAIN]), jnp.minimum(row_B, batch_size - 1)
        if batch_size < n:
            epoch, batch = jnp.divmod(step, n // batch_size)
            order_N = jax.random.permutation(rng.stream(seed, "order", epoch), n)
            at_B = order_N[batch * batch_size + at_B]
        return _rows(task, data[TRAIN][at_B]), (row_B < batch_size).astype(jnp.float32)

    def blocks(self, task, part: str, size: int) -> int:
        return -(-self._count(task, part) // size)

    def test(self, task, data, seed, part, block, size, difficulty, capacity):
        del seed, difficulty, capacity
        at_B = block * size + jnp.arange(size)
        n = len(data[part])
        return _rows(task, data[part][jnp.minimum(at_B, n - 1)]), (at_B < n).astype(jnp.float32)


def _rows(task, index_B):
    return jax.tree.map(lambda a: jnp.asarray(a)[index_B], task.table())


@functools.cache
def _orbits(task: TableTask, by: str) -> list[np.ndarray]:
    """Row indices grouped by orbit: one int32 array [orbits, size] for each orbit size that occurs."""
    if by == "ordered":
        return [np.arange(task.size, dtype=np.int32)[:, None]]
    with jax.ensure_compile_time_eval():
        canonical_NxK = np.asarray(jax.vmap(task.canonical)(jax.tree.map(jnp.asarray, task.table())))
    _, orbit_N, size_O = np.unique(canonical_NxK, axis=0, return_inverse=True, return_counts=True)
    by_orbit_N = np.argsort(orbit_N.ravel(), kind="stable").astype(np.int32)
    first_O = np.cumsum(size_O) - size_O
    return [by_orbit_N[first_O[size_O == k][:, None] + np.arange(k)] for k in np.unique(size_O)]
