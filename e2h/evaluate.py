"""Scores of one seed on every difficulty of every part, in few compiled shapes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from e2h import batches, decode, registry, train
from e2h.config import Config
from e2h.layouts import Score, all_right, score
from e2h.measures import Reading
from e2h.splits import TRAIN
from e2h.tasks import Complexity


class Cell(NamedTuple):
    """What is known of one (part, difficulty); all are sums over its problems or reads."""

    score: Score
    complexity: Complexity  # summed over problems
    commonest: jax.Array  # reads that the best constant answer for each slot gets right


def sweeps(config: Config) -> list[tuple[str, int, tuple[int, ...]]]:
    """(part, capacity, difficulties): one compiled program for each entry's shape."""
    found = []
    for part in config.split.parts:
        left = list(config.split.difficulties(config.task, part))
        for capacity in batches.capacities(config, part):
            inside = tuple(d for d in left if d <= capacity)
            left = [d for d in left if d > capacity]
            if inside:
                found.append((part, capacity, inside))
    return found


def sweep(config: Config, part: str, capacity: int, data, seed, params, difficulty_N) -> Cell:
    """Cells, stacked along N, for the given difficulties (int32 [N]) of one part."""
    blocks = batches.blocks(config, part)

    def at_difficulty(difficulty):
        cells, histogram_ZxRxV = jax.lax.map(
            lambda block: _block(config, part, capacity, data, seed, params, difficulty, block), jnp.arange(blocks)
        )
        commonest = histogram_ZxRxV.sum(0).max(-1).sum()
        return Cell(*jax.tree.map(lambda a: a.sum(0), cells), commonest)

    return jax.lax.map(at_difficulty, difficulty_N)


def _block(config, part, capacity, data, seed, params, difficulty, block):
    problems, batch = batches.test_batch(config, data, seed, part, block, difficulty, capacity)
    logits_BxRxV = train.forward(config, params, batch)
    loss, _ = config.loss(logits_BxRxV, batch.target_BxR, batch.weight_BxR)
    total, _ = score(batch, logits_BxRxV, loss)
    if config.layout.generates:  # the headline is what the model says by itself
        said_BxR = decode.generate(config, params, batch)
        exact_B = all_right(batch, said_BxR == batch.target_BxR)
        total = total._replace(exact=exact_B.sum(dtype=jnp.int32))
    weight_B = (batch.weight_BxR > 0).any(1)
    complexity = jax.vmap(config.task.complexity)(problems)
    complexity = jax.tree.map(lambda c: jnp.where(weight_B, c, 0).sum(dtype=jnp.float32), complexity)
    hot_BxRxV = jax.nn.one_hot(batch.target_BxR, logits_BxRxV.shape[-1]) * batch.weight_BxR[..., None]
    return (total, complexity), hot_BxRxV.sum(0)


def measure(config: Config, data, seed, params, step) -> dict[str, tuple[jax.Array, jax.Array]]:
    """(sum, count) of each column of `config.measures`, on the problems of training step `step`."""
    rows, capacity = jnp.arange(batches.size(config)), batches.capacities(config, TRAIN)[-1]
    _, batch = batches.train_batch(config, data, seed, step, rows, batches.difficulty(config, step, rows), capacity)
    logits_BxRxV = train.forward(config, params, batch)
    flat_NxV = logits_BxRxV.reshape(-1, logits_BxRxV.shape[-1])
    loss_BxR = config.loss.per_read(flat_NxV, batch.target_BxR.ravel()).reshape(batch.target_BxR.shape)

    def mean_loss(params):
        total, count = config.loss(train.forward(config, params, batch), batch.target_BxR, batch.weight_BxR)
        return total / jnp.maximum(count, 1)

    reading = Reading(params, batch, logits_BxRxV, loss_BxR, mean_loss)
    with jax.default_matmul_precision(config.precision):  # of the backward passes of measures that take a gradient
        found = [registry.load("measure", name)().columns(reading, config) for name in config.measures]
    return {name: pair for columns in found for name, pair in columns.items()}
