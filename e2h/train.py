"""State, init, step, chunk of one seed: pure functions. Seeds, devices and hosts are added by `parallel.py`."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from e2h import batches, rng
from e2h.config import Config
from e2h.layouts import Batch, Score, score
from e2h.models import Network
from e2h.splits import TRAIN

NEVER = jnp.iinfo(jnp.int32).max  # a step that does not come


class State(NamedTuple):
    """All that training carries on. No keys: randomness is a function of (seed, stream name, step, row)."""

    params: Any
    opt_state: Any
    step: jax.Array  # int32: updates made so far


class Totals(NamedTuple):
    """Sums over the steps of a chunk."""

    score: Score
    broken_at: jax.Array  # int32: the first step that left the loss or a parameter not finite, or NEVER


@functools.cache
def network(config: Config) -> Network:
    """The Linen module of a config."""
    return config.model.network(
        position=config.position,
        vocabulary=len(config.layout.vocabulary(config.task)),
        classes=len(config.layout.classes(config.task)),
        length=config.longest,
        dtype=jnp.dtype(config.compute_dtype),
    )


def optimizer(config: Config) -> optax.GradientTransformation:
    return config.optimizer.transformation(config.steps)


def init(config: Config, seed) -> State:
    """The state before the first step, of one seed (int32 scalar, may be traced)."""
    capacity = batches.capacities(config, TRAIN)[0]
    data = config.split.prepare(config.task, seed)
    low = config.split.difficulties(config.task, TRAIN)[0]
    batch = batches.train_batch(config, data, seed, 0, jnp.arange(1), low, capacity)
    params = network(config).init(rng.stream(seed, "init"), batch)["params"]
    return State(params, optimizer(config).init(params), jnp.int32(0))


def forward(config: Config, params, batch: Batch):
    """Logits [B, R, V]."""
    with jax.default_matmul_precision(config.precision):
        return network(config).apply({"params": params}, batch)


def step(config: Config, data, seed, state: State, row_B, difficulty, capacity: int, axis: str | None):
    """One update from problems number row_B of this step.

    With `axis` each device has rows of its own, and the sums of loss, count and gradient are taken over that axis.

    Returns:
      (State, Score of the batch before the update, whether loss and new parameters are finite).
    """
    batch = batches.train_batch(config, data, seed, state.step, row_B, difficulty, capacity)

    def summed_loss(params):
        logits_BxRxV = forward(config, params, batch)
        loss, _ = config.loss(logits_BxRxV, batch.target_BxR, batch.weight_BxR)
        return loss, score(batch, logits_BxRxV, loss)[0]

    def gradient_at(params):
        gradient, total = jax.grad(summed_loss, has_aux=True)(params)
        if axis:
            gradient, total = jax.lax.psum((gradient, total), axis)
        return total, jax.tree.map(lambda g: g / jnp.maximum(total.reads, 1), gradient)

    with jax.default_matmul_precision(config.precision):  # backward passes and matrix-valued optimizers as well
        total, gradient = config.gradient(gradient_at, state.params)
        with jax.numpy_dtype_promotion("standard"):  # Optax raises Python floats to the power of an int32 count
            updates, opt_state = optimizer(config).update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    finite = jnp.isfinite(total.loss) & jnp.isfinite(optax.tree.norm(params))
    return State(params, opt_state, state.step + 1), total, finite


def chunk(config: Config, data, seed, state: State, stop, axis: str | None = None, shards: int = 1):
    """Steps from state.step until `stop` (int32 scalar), in one compiled loop whatever their number.

    The difficulty of a step, and with it the array shape, is drawn from the step alone: a population shares it, so
    that under vmap a `switch` over shapes stays a choice, and a seed trained alone meets the same difficulties.
    """
    sizes = batches.capacities(config, TRAIN)
    known = config.split.difficulties(config.task, TRAIN)
    total_rows = config.split.batch_size(config.task, config.batch_size)
    rows = -(-total_rows // shards)
    row_B = (jax.lax.axis_index(axis) * rows if axis else 0) + jnp.arange(rows)

    def one_step(state, difficulty, capacity):
        return step(config, data, seed, state, row_B, difficulty, capacity, axis)

    def body(_, carry):
        state, totals = carry
        difficulty = shared_difficulty(config, state.step, known, row_B, total_rows)
        bucket = jnp.searchsorted(jnp.array(sizes), jnp.max(difficulty)) if difficulty.ndim == 0 else len(sizes) - 1
        branches = [functools.partial(one_step, capacity=c) for c in sizes]
        now = state.step
        state, score, finite = jax.lax.switch(jnp.int32(bucket), branches, state, difficulty)
        broken_at = jnp.where(finite, totals.broken_at, jnp.minimum(totals.broken_at, now))
        return state, Totals(jax.tree.map(jnp.add, totals.score, score), broken_at)

    nothing = Totals(Score(*[jnp.float32(0)] * len(Score._fields)), jnp.int32(NEVER))
    return jax.lax.fori_loop(state.step, stop, body, (state, nothing))


def shared_difficulty(config: Config, step, known, row_B, total_rows: int) -> jax.Array:
    """The difficulty of a step, a scalar, or [B] for a mixed curriculum. Seeds of a population share it."""
    key = rng.stream(rng.POPULATION, "difficulty", step)
    shape = (total_rows,) if config.curriculum.mixed else ()
    difficulty = config.curriculum.draw(key, step, known[0], known[-1], shape)
    return difficulty[jnp.minimum(row_B, total_rows - 1)] if config.curriculum.mixed else difficulty
