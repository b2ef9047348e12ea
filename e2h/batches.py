"""task, split, layout, position -> Batch: a pure function of (seed, step), in few static shapes."""

import jax
import jax.numpy as jnp

from e2h import rng
from e2h.config import Config
from e2h.layouts import Batch
from e2h.splits import TRAIN


def capacities(config: Config, part: str) -> tuple[int, ...]:
    """The capacities, rising, for which a part's arrays are sized. A difficulty belongs to the first that holds it.

    Training range: `config.buckets` equal stretches. Beyond: each twice the last. One entry for every array shape.
    """
    known = config.split.difficulties(config.task, TRAIN)
    low, high = known[0], known[-1]
    found = [low - 1 + -(-(high - low + 1) * i // config.buckets) for i in range(1, config.buckets + 1)]
    if part in config.split.unseen:
        hardest = config.split.difficulties(config.task, part)[-1]
        found = [min(high * 2**i, hardest) for i in range(1, hardest.bit_length() + 1)]
    by_shape = {config.task.shape(c): c for c in sorted(set(found)) if c >= low}  # the last of equal shapes holds all
    return tuple(by_shape.values())


def train_batch(config: Config, data, seed, step, row_B, difficulty, capacity: int) -> Batch:
    """Problems number row_B (int32 [B]) of a training step; `difficulty` is a scalar or one per problem."""
    size = config.split.batch_size(config.task, config.batch_size)
    drawn = config.split.train(config.task, data, seed, step, row_B, size, difficulty, capacity)
    return _arrange(config, *drawn, jax.vmap(lambda row: rng.stream(seed, "place", step, row))(row_B))


def test_batch(config: Config, data, seed, part: str, block, difficulty, capacity: int):
    """(problems, Batch) of one block of a part at one difficulty; the same at every step of training."""
    size = config.test_size
    drawn = config.split.test(config.task, data, seed, part, block, size, difficulty, capacity)
    return drawn[0], _arrange(config, *drawn, rng.rows(rng.stream(seed, "test place", difficulty, block), 0, size))


def _arrange(config: Config, problems, weight_B, key_B) -> Batch:
    batch = jax.vmap(lambda x: config.layout.arrange(config.task, x))(problems)
    batch = jax.tree.map(lambda a: a if a.dtype == jnp.float32 else a.astype(jnp.int32), batch)
    return batch._replace(
        place_BxL=jax.vmap(config.position.assign)(key_B, batch.place_BxL),
        weight_BxR=batch.weight_BxR * weight_B[:, None],
    )
