"""task, split, layout, position -> Batch: a pure function of (seed, step), in few static shapes."""

import jax
import jax.numpy as jnp

from e2h import grid, rng
from e2h.config import Config
from e2h.layouts import Batch
from e2h.splits import TRAIN


def capacities(config: Config, part: str) -> tuple[int, ...]:
    """The capacities, rising, for which a part's arrays are sized. A difficulty belongs to the first that holds it.

    Training: `config.buckets` equal stretches of its range. Tests of that range: one. Beyond: each twice the last. One
    entry for every array shape.
    """
    known = config.split.difficulties(config.task, TRAIN)
    low, high = known[0], known[-1]
    buckets = config.buckets if part == TRAIN else 1
    found = [low - 1 + -(-(high - low + 1) * i // buckets) for i in range(1, buckets + 1)]
    if part in config.split.unseen:
        hardest = config.split.difficulties(config.task, part)[-1]
        found = [min(high * 2**i, hardest) for i in range(1, hardest.bit_length() + 1)]
    by_shape = {config.task.shape(c): c for c in sorted(set(found)) if c >= low}  # the last of equal shapes holds all
    return tuple(by_shape.values())


def size(config: Config) -> int:
    """Problems of a training step; of a grid, the most that a cell takes."""
    return max(split.batch_size(config.task, config.batch_size) for split in grid.splits(config))


def blocks(config: Config, part: str) -> int:
    """Blocks of `config.test_size` problems in a part; of a grid, the most that a cell has."""
    return max(split.blocks(config.task, part, config.test_size) for split in grid.splits(config))


def difficulty(config: Config, step, row_B) -> jax.Array:
    """The difficulty of a training step, an int32 scalar, or [B] for a mixed curriculum.

    It depends on the step alone: the seeds of a population share it, and a seed trained alone meets the same.
    """
    known, step = config.split.difficulties(config.task, TRAIN), config.split.drawn_at(step)
    key = rng.stream(rng.POPULATION, "difficulty", step)
    if not config.curriculum.mixed:
        return config.curriculum.draw(key, step, known[0], known[-1], ())
    return config.curriculum.draw(key, step, known[0], known[-1], (size(config),))[jnp.minimum(row_B, size(config) - 1)]


def train_batch(config: Config, data, seed, step, row_B, difficulty, capacity: int):
    """(problems, Batch): numbers row_B (int32 [B]) of a training step; `difficulty` is a scalar or one per problem."""
    drawn = config.split.train(config.task, data, seed, step, row_B, size(config), difficulty, capacity)
    place_key_B = jax.vmap(lambda row: rng.stream(seed, "place", step, row))(row_B)
    return drawn[0], _arrange(config, *drawn, place_key_B)


def test_batch(config: Config, data, seed, part: str, block, difficulty, capacity: int):
    """(problems, Batch) of one block of a part at one difficulty; the same at every step of training."""
    drawn = config.split.test(config.task, data, seed, part, block, config.test_size, difficulty, capacity)
    place_key_B = rng.rows(rng.stream(seed, "test place", difficulty, block), 0, config.test_size)
    return drawn[0], _arrange(config, *drawn, place_key_B)


def table(config: Config) -> Batch:
    """All problems of a table task with their true answers, in the order of its rows; the same at every step."""
    place_key_N = rng.rows(rng.stream(rng.POPULATION, "table place"), 0, config.task.size)
    return _arrange(config, jax.tree.map(jnp.asarray, config.task.table()), jnp.ones(config.task.size), place_key_N)


def shape(config: Config) -> Batch:
    """Shapes and types of a training batch of one problem at the largest capacity."""
    low, capacity = config.split.difficulties(config.task, TRAIN)[0], capacities(config, TRAIN)[-1]

    def first():
        data = config.split.prepare(config.task, 0)
        return train_batch(config, data, 0, 0, jnp.arange(1), low, capacity)[1]

    return jax.eval_shape(first)


def trim(config: Config, batch: Batch, capacity: int) -> Batch:
    """The same batch in the arrays of a smaller capacity that holds its difficulties: only padding is cut off."""
    length, reads = config.layout.length(config.task, capacity), config.layout.reads(config.task, capacity)
    return Batch(
        batch.tokens_BxLxC[:, :length], batch.length_B, batch.place_BxL[:, :length],
        batch.read_BxR[:, :reads], batch.target_BxR[:, :reads], batch.weight_BxR[:, :reads],
    )  # fmt: skip


def divide(batch: Batch, groups: int) -> Batch:
    """[groups, problems of each, ...]: neighbours together; copies of the last problem, of weight 0, fill up."""
    spare = -len(batch.length_B) % groups

    def cut(a, mode):
        a = jnp.pad(a, [(0, spare)] + [(0, 0)] * (a.ndim - 1), mode)
        return a.reshape(groups, -1, *a.shape[1:])

    divided = jax.tree.map(lambda a: cut(a, "edge"), batch)
    return divided._replace(weight_BxR=cut(batch.weight_BxR, "constant"))


def _arrange(config: Config, problems, weight_B, key_B) -> Batch:
    batch = jax.vmap(lambda x: config.layout.arrange(config.task, x))(problems)
    batch = jax.tree.map(lambda a: a if a.dtype == jnp.float32 else a.astype(jnp.int32), batch)
    return batch._replace(
        place_BxL=jax.vmap(config.position.assign)(key_B, batch.place_BxL),
        weight_BxR=batch.weight_BxR * weight_B[:, None],
    )
