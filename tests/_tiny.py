"""Tiny runs that tests share: a finite table and a range of lengths, on networks of a few units."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from e2h import grid, parallel, train
from e2h.config import Config
from e2h.layouts.query import Query
from e2h.models.mlp import MLP
from e2h.models.rnn import RNN
from e2h.optimizers.adamw import AdamW
from e2h.splits.length import Length
from e2h.tasks.modular import Modular
from e2h.tasks.parity import Parity

COMMON = dict(optimizer=AdamW(learning_rate=0.01), seeds=2, test_size=32, steps=20, record_every=5, evaluate_every=10)
TABLE = Config(task=Modular(p=5), model=MLP(hidden=(8,)), batch_size=5, checkpoint_every=10, **COMMON)
LENGTH = Config(
    task=Parity(),
    split=Length(train_max=6, test_max=9, test_every=2),
    layout=Query(),
    model=RNN(width=4),
    batch_size=4,
    buckets=2,
    checkpoint_every=10,
    **COMMON,
)

replace = dataclasses.replace


def seed_of(tree, k: int):
    """One seed's part of what has a leading seed axis."""
    return jax.tree.map(lambda a: a[k], tree)


def init(config: Config) -> train.State:
    """A population's first state. Its numbers are NumPy's: drawing them in JAX would compile a program per network."""
    shapes = jax.eval_shape(lambda seed: train.init(config, seed).params, 0)

    def draw(shape):
        each = [np.random.default_rng(seed).normal(0, 0.5, shape.shape) for seed, _ in grid.members(config)]
        return jnp.array(np.stack(each), shape.dtype)

    params = jax.tree.map(draw, shapes)
    return train.State(params, jax.vmap(train.optimizer(config).init)(params), jnp.int32(0))


_prepare = functools.cache(parallel.prepare)


def prepare(config: Config):
    parts = dict(task=config.task, split=config.split, optimizer=config.optimizer, grid=config.grid)
    return _prepare(Config(**parts, seeds=config.seeds, first_seed=config.first_seed))


def start_without_compiling(patch) -> None:
    """Lets runs begin from the states above (`patch` is a MonkeyPatch)."""
    patch.setattr(parallel, "init", init)
    patch.setattr(parallel, "prepare", prepare)


def trained(config: Config, *stops: int):
    """(state, [totals of each chunk]) after chunks that end at `stops`."""
    state, totals = init(config), []
    for stop in stops:
        state, total = parallel.chunk(config)(prepare(config), parallel.members(config), state, stop)
        totals.append(total)
    return state, totals
