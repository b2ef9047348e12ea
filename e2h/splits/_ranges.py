"""What the splits by difficulty share: an easy range to train on, a harder one to test on, and a hash that keeps the
training problems of the easy range apart from its test problems."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from e2h import rng
from e2h.registry import Refused, setting
from e2h.splits import TEST, TRAIN, Split
from e2h.tasks import TableTask

TRAIN_DRAWS, TEST_DRAWS = 2, 32  # draws until one falls on the wanted side; if none does the problem has weight 0


@dataclasses.dataclass(frozen=True)
class RangeSplit(Split):
    """Train on difficulties `train_min..train_max`, test on those and on the ones up to `test_max`.

    In the training range a hash of the problem (of its canonical form, so that twins agree) decides whether it is a
    training or a test problem. The hash knows no seed: the test problems of one seed are not trained on by another.
    """

    train_min: int = setting(1, "the easiest difficulty; raised to the task's own lowest", low=0)
    train_max: int = setting(20, "the hardest difficulty of training", low=1)
    test_max: int = setting(100, "the hardest difficulty of the out-of-distribution test", low=2)
    test_every: int = setting(1, "test every so many difficulties", low=1)
    held_out: float = setting(0.125, "share of the training range's problems kept for its test", low=0.001, high=0.5)

    axes: ClassVar[tuple[str, ...]] = ("length",)  # the task's axis must be one of these

    @property
    def parts(self) -> tuple[str, ...]:
        return (TEST, *self.unseen)

    def check(self, config) -> None:
        task = config.task
        if isinstance(task, TableTask):
            raise Refused(f"split {self.name} needs a task of many difficulties; task {task.name} is a table.")
        if task.axis not in self.axes:
            raise Refused(
                f"split {self.name} varies {self.axes[0]}, and the difficulty of task {task.name} is {task.axis}."
            )
        if not max(self.train_min, task.lowest) <= self.train_max < self.test_max <= task.highest:
            raise Refused(
                f"split.train_min={self.train_min}, train_max={self.train_max}, test_max={self.test_max} do not fit "
                f"task {task.name}: it needs {task.lowest} <= train_min <= train_max < test_max <= {task.highest}."
            )
        exist = sum(task.distinct(d) for d in self.difficulties(task, TRAIN))
        if exist < 2 / self.held_out:  # exact for counts of any size
            raise Refused(
                f"Only {exist} problems of task {task.name} exist in the training range; too few to hold some out."
            )

    def difficulties(self, task, part) -> tuple[int, ...]:
        if part in self.unseen:
            hard = range(self.train_max + self.test_every, self.test_max + 1, self.test_every)
            return tuple(sorted({self.train_max + 1, *hard, self.test_max}))
        easy = range(max(self.train_min, task.lowest), self.train_max + 1)
        return tuple(easy) if part == TRAIN else tuple(sorted({*easy[:: self.test_every], self.train_max}))

    def train(self, task, data, seed, step, row_B, batch_size, difficulty, capacity):
        del data
        key_B = jax.vmap(lambda row: rng.stream(seed, "problem", step, row))(row_B)
        difficulty_B = jnp.broadcast_to(difficulty, row_B.shape)
        problems, found_B = jax.vmap(lambda key, d: self._draw(task, key, d, capacity, TRAIN_DRAWS, held_out=False))(
            key_B, difficulty_B
        )
        return problems, (found_B & (row_B < batch_size)).astype(jnp.float32)

    def test(self, task, data, seed, part, block, size, difficulty, capacity):
        """Problems that come up twice are counted once, so at short lengths a block is (nearly) all there are."""
        del data
        key_B = rng.rows(rng.stream(seed, "test", difficulty, block), 0, size)
        if part in self.unseen:
            problems = jax.vmap(lambda key: task.sample(key, difficulty, capacity))(key_B)
            found_B = jnp.ones(size, bool)
        else:
            problems, found_B = jax.vmap(
                lambda key: self._draw(task, key, difficulty, capacity, TEST_DRAWS, held_out=True)
            )(key_B)
        return problems, (found_B & first_of_its_kind(task, problems, found_B)).astype(jnp.float32)

    def _draw(self, task, key, difficulty, capacity: int, draws: int, held_out: bool):
        """The first of `draws` random problems on the wanted side, and whether there was one."""
        problems = jax.vmap(lambda k: task.sample(k, difficulty, capacity))(rng.rows(key, 0, draws))
        wanted = jax.vmap(lambda x: self.is_held_out(task, x, difficulty) == held_out)(problems)
        return jax.tree.map(lambda a: a[jnp.argmax(wanted)], problems), wanted.any()

    def is_held_out(self, task, x, difficulty) -> jax.Array:
        """Whether a problem of the training range is a test problem."""
        return fingerprint(task, x, jnp.uint32(0x5EED) + jnp.uint32(difficulty)) < jnp.uint32(self.held_out * 2**32)


def fingerprint(task, x, salt) -> jax.Array:
    """uint32 hash of the canonical form of a problem; the same at every capacity."""
    token_K = task.canonical(x).astype(jnp.uint32)
    place_K = jnp.arange(token_K.shape[0], dtype=jnp.uint32)
    mixed_K = jnp.where(token_K == 0, jnp.uint32(0), _mix(token_K + _mix(place_K + jnp.uint32(1) + _mix(salt))))
    return _mix(mixed_K.sum(dtype=jnp.uint32) + _mix(salt))


def first_of_its_kind(task, problems, found_B) -> jax.Array:
    """bool [B]: no earlier found problem has the same canonical form (to 64 hash bits)."""
    salts = jnp.arange(2, dtype=jnp.uint32)
    print_Bx2 = jax.vmap(lambda x: jax.vmap(lambda salt: fingerprint(task, x, salt))(salts))(problems)
    same_BxB = (print_Bx2[:, None] == print_Bx2[None]).all(-1)
    index = jnp.arange(len(found_B))
    return ~(same_BxB & found_B[None] & (index[None] < index[:, None])).any(1)


def _mix(h: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3 (Appleby 2011): a bijection of uint32 that spreads every bit."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
