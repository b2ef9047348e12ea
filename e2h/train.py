"""State, init, step, chunk of one seed: pure functions. Seeds, devices and hosts are added by `parallel.py`."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from e2h import batches, grid, rng
from e2h.config import Config
from e2h.gradients import Gradients
from e2h.layouts import Batch, Score, score
from e2h.models import network
from e2h.splits import TRAIN
from e2h.starts.fresh import Fresh

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


def optimizer(config: Config) -> optax.GradientTransformation:
    return config.start.hold(config.optimizer.transformation(config.steps))


def init(config: Config, seed, prepare=None) -> State:
    """The state before the first step, of one seed (int32 scalar, may be traced).

    A start that trains first takes the split's data from `prepare()`, by default those of `config.split`.
    """
    batch = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), batches.shape(config))
    params = network(config).init(rng.stream(seed, "init"), batch)["params"]
    params = jax.tree.map(lambda w: w * jnp.asarray(config.init_scale, w.dtype), params)

    def trained_for(steps: int):
        kept = tuple(entry for entry in config.grid if not entry.startswith("start."))
        dense = grid.bind(config, {"start": Fresh(), "grid": kept})
        data = prepare() if prepare else config.split.prepare(config.task, seed)
        state = State(params, optimizer(dense).init(params), jnp.int32(0))
        return chunk(dense, data, seed, state, jnp.int32(steps))[0].params

    first = config.start(seed, params, trained_for)
    return State(first, optimizer(config).init(first), jnp.int32(0))


def forward(config: Config, params, batch: Batch):
    """Logits [B, R, V]."""
    with jax.default_matmul_precision(config.precision):
        return network(config).apply({"params": params}, batch)


def step(config: Config, state: State, batch: Batch, axis: str | None = None):
    """One update on a batch. With `axis` the sums of loss, count and gradient are taken over that axis of devices.

    Returns:
      (State, Score of the batch before the update, whether loss and new parameters are finite).
    """

    def summed_loss(params, batch):
        logits_BxRxV = forward(config, params, batch)
        loss, _ = config.loss(logits_BxRxV, batch.target_BxR, batch.weight_BxR)
        return loss, score(batch, logits_BxRxV, loss)[0]

    def mean(params):
        gradient, total = jax.grad(summed_loss, has_aux=True)(params, batch)
        if axis:
            gradient, total = jax.lax.psum((gradient, total), axis)
        return total, jax.tree.map(lambda g: g / jnp.maximum(total.reads, 1).astype(g.dtype), gradient)

    def of_groups(params, groups):
        """See `Gradients`."""
        problems = len(batch.length_B)
        apart = batches.divide(batch, min(groups or problems, problems))  # more would be of padding alone
        gradient, total_G = jax.vmap(jax.grad(summed_loss, has_aux=True), (None, 0))(params, apart)
        reads_G = total_G.reads
        gradient = jax.tree.map(
            lambda g: g / jnp.maximum(reads_G, 1).astype(g.dtype).reshape(-1, *[1] * (g.ndim - 1)), gradient
        )
        total = jax.tree.map(lambda a: a.sum(0), total_G)
        if axis:
            total = jax.lax.psum(total, axis)
            reads_G, gradient = jax.lax.all_gather((reads_G, gradient), axis, tiled=True)
        return total, reads_G, gradient

    with jax.default_matmul_precision(config.precision):  # backward passes and matrix-valued optimizers as well
        total, gradient = config.gradient(Gradients(mean, of_groups), state.params)
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
    sizes = batches.capacities(config, TRAIN)[-1 if config.curriculum.mixed else 0 :]  # mixed: only the largest is used
    rows = -(-batches.size(config) // shards)
    row_B = (jax.lax.axis_index(axis) * rows if axis else 0) + jnp.arange(rows)

    def in_bucket(capacity, state, batch):
        return step(config, state, batches.trim(config, batch, capacity), axis)

    def body(_, carry):
        state, totals = carry
        difficulty = batches.difficulty(config, state.step, row_B)
        # Drawn once for the largest shape, then cut: drawing compiles slowly and costs little.
        _, batch = batches.train_batch(config, data, seed, state.step, row_B, difficulty, sizes[-1])
        bucket = len(sizes) - 1 if difficulty.ndim else jnp.searchsorted(jnp.array(sizes), difficulty)
        branches = [functools.partial(in_bucket, capacity) for capacity in sizes]
        now = state.step
        state, score, finite = jax.lax.switch(jnp.int32(bucket), branches, state, batch)
        broken_at = jnp.where(finite, totals.broken_at, jnp.minimum(totals.broken_at, now))
        return state, Totals(jax.tree.map(jnp.add, totals.score, score), broken_at)

    nothing = Totals(Score(*[jnp.int32(0)] * 4, jnp.float32(0)), jnp.int32(NEVER))
    return jax.lax.fori_loop(state.step, stop, body, (state, nothing))
