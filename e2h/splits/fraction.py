"""A fraction of a finite table for training, the rest for testing (Power et al. 2022, arXiv 2201.02177)."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from e2h import rng
from e2h.registry import Refused, setting
from e2h.splits import TEST, TRAIN, Split
from e2h.tasks import TableTask

CORRUPTED, CLEAN = "train_corrupted", "train_clean"  # the training problems with a random and with the true answer
MARGIN = 1e-3  # of a count that should be whole but for rounding; float32 errs by less in any table


@dataclasses.dataclass(frozen=True)
class Fraction(Split):
    """`by=orbit` keeps symmetric twins (a + b and b + a) together; `by=ordered` splits rows, as most papers do.

    With `corrupted` (Doshi et al. 2023, arXiv 2310.13061) that share of the training problems has an answer drawn
    uniformly from all, so that some are right by accident; two more parts score the training problems with the drawn
    and with the true answers. The test keeps its true answers.
    """

    train_fraction: float = setting(
        0.5, "share of the table for training (a fraction, not percent)", low=0.0, high=1.0, varies=True
    )
    by: str = setting("orbit", "what is shuffled", choices=("orbit", "ordered"))
    shared: bool = setting(False, "one split for all seeds (that of seed 0), as in Power et al.'s code")
    batch_fraction: float = setting(
        1.0, "a step takes at most this share of the training problems", above=0.0, high=1.0, added=True
    )
    corrupted: float = setting(
        0.0, "share of the training problems with a random answer", low=0.0, high=1.0, varies=True, added=True
    )

    @property
    def parts(self) -> tuple[str, ...]:
        return (TRAIN, CORRUPTED, CLEAN, TEST) if self.corrupted else (TRAIN, TEST)

    def check(self, config) -> None:
        if not isinstance(config.task, TableTask):
            raise Refused(f"split fraction divides a table, and task {config.task.name} has none; try --split=length.")
        n = self._trained(config.task)
        for part, count in ((TRAIN, n), (TEST, config.task.size - n)):
            if count == 0:
                raise Refused(
                    f"split.train_fraction={self.train_fraction} leaves no {part} problem "
                    f"of the {config.task.size} of task {config.task.name}."
                )

    def difficulties(self, task, part) -> tuple[int, ...]:
        del task, part
        return (1,)

    def batch_size(self, task, requested: int) -> int:
        return self._step_size(self._trained(task), requested)

    def blocks(self, task, part: str, size: int) -> int:
        n = self._trained(task)
        return -(-(task.size - n if part == TEST else n) // size)

    def prepare(self, task, seed) -> dict:
        """Table rows in an order of the seed, those for training first, and what corruption adds.

        The counts of the parts are the same for every seed, because orbits of one size are divided among themselves.
        In a grid over fractions they are traced numbers, and part of the data.
        """
        rows, trained = [], []
        for i, orbits in enumerate(_orbits(task, self.by)):
            order = jax.random.permutation(rng.stream(0 if self.shared else seed, "split", i), len(orbits))
            rows.append(jnp.asarray(orbits)[order].ravel())
            trained.append(jnp.repeat(jnp.arange(len(orbits)) < self._share(len(orbits)), orbits.shape[1]))
        data = {"row_N": jnp.concatenate(rows)[jnp.argsort(~jnp.concatenate(trained), stable=True)]}
        if not isinstance(self.train_fraction, float):
            data["trained"] = self._trained(task)
        if not isinstance(self.corrupted, float) or self.corrupted:
            data |= self._corrupt(task, seed, data["row_N"])
        return data

    def _corrupt(self, task, seed, row_N) -> dict:
        """Of each table row whether its answer is random, and the answer that training gives it."""
        n = self._trained(task)
        order = _order(rng.stream(seed, "corrupted"), n, task.size)
        first = jnp.arange(task.size) < _floor(self.corrupted, n)
        corrupted_N = jnp.zeros(task.size, bool).at[row_N[order]].set(first)
        answer_N = jax.random.randint(rng.stream(seed, "answers"), (task.size,), 0, len(task.answer_vocabulary))
        answer_N = jnp.where(corrupted_N, answer_N, jnp.asarray(task.table().answer_A)[:, 0])
        return {"corrupted_N": corrupted_N, "answer_N": answer_N}

    def train(self, task, data, seed, step, row_B, batch_size, difficulty, capacity):
        """Each epoch passes over the training rows in an order of its own and drops what does not fill a batch."""
        del difficulty, capacity
        n = data.get("trained", self._trained(task))
        size = self._step_size(n, batch_size)
        at_B = jnp.minimum(row_B, size - 1)
        if "trained" in data or size < n:
            at_B = in_epochs(seed, step, at_B, n, size, task.size)
        return self._problems(task, data, data["row_N"][at_B], TRAIN), (row_B < size).astype(jnp.float32)

    def test(self, task, data, seed, part, block, size, difficulty, capacity):
        del seed, difficulty, capacity
        n = data.get("trained", self._trained(task))
        first, end = (n, task.size) if part == TEST else (0, n)
        at_B = first + block * size + jnp.arange(size)
        row_B = data["row_N"][jnp.minimum(at_B, task.size - 1)]
        inside_B = at_B < end
        if part in (CORRUPTED, CLEAN):
            inside_B &= data["corrupted_N"][row_B] == (part == CORRUPTED)
        return self._problems(task, data, row_B, part), inside_B.astype(jnp.float32)

    def _problems(self, task, data, row_B, part: str):
        """The table's rows; those of training with the answers that training gives them."""
        problems = jax.tree.map(lambda a: jnp.asarray(a)[row_B], task.table())
        if part == TEST or "answer_N" not in data:
            return problems
        return problems._replace(answer_A=data["answer_N"][row_B][:, None])

    def _share(self, orbits: int):
        return _floor(self.train_fraction, orbits)

    def _trained(self, task):
        """Training rows: an integer, or a traced one if the fraction is."""
        return sum(self._share(len(orbits)) * orbits.shape[1] for orbits in _orbits(task, self.by))

    def _step_size(self, n, most: int):
        """Problems of a step that takes at most `most` of `n` training rows: an integer, or a traced one if n is."""
        if isinstance(n, int):
            return min(most, max(1, math.ceil(self.batch_fraction * n - MARGIN)))
        share = jnp.ceil(self.batch_fraction * n.astype(jnp.float32) - MARGIN)
        return jnp.minimum(most, jnp.maximum(1, share.astype(jnp.int32)))


def in_epochs(seed, step, at_B, n, size, most: int) -> jax.Array:
    """Which of `n` training rows (at most `most`; n may be traced) the places `at_B` of a step of `size` hold."""
    epoch, batch = jnp.divmod(step, n // size)
    return _order(rng.stream(seed, "order", epoch), n, most)[batch * size + at_B]


def _floor(share, count):
    """share x count rounded down, with one margin for Python numbers, which give an integer, and traced ones."""
    if isinstance(share, float) and isinstance(count, int):
        return math.floor(share * count + MARGIN)
    return jnp.floor(share * jnp.asarray(count, jnp.float32) + MARGIN).astype(jnp.int32)


def _order(key, n, size: int):
    """0..size-1 with 0..n-1 in a random order first: the same for a plain and a traced n."""
    return jnp.argsort(jnp.where(jnp.arange(size) < n, jax.random.uniform(key, (size,)), jnp.inf))


@functools.cache
def _orbits(task: TableTask, by: str) -> list[np.ndarray]:
    """Row indices grouped by orbit: one int32 array [orbits, size] for each orbit size that occurs."""
    if by == "ordered":
        return [np.arange(task.size, dtype=np.int32)[:, None]]
    _, orbit_N, size_O = np.unique(task.forms(), axis=0, return_inverse=True, return_counts=True)
    by_orbit_N = np.argsort(orbit_N.ravel(), kind="stable").astype(np.int32)
    first_O = np.cumsum(size_O) - size_O
    return [by_orbit_N[first_O[size_O == k][:, None] + np.arange(k)] for k in np.unique(size_O)]
