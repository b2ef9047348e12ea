"""Lottery tickets: the weights that are large after training, at the values that they had before it, and no others.

Frankle & Carbin 2019 (arXiv 1803.03635); with the controls of Minegishi et al. 2023 (arXiv 2310.19470).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from e2h import rng
from e2h.registry import Refused, setting
from e2h.starts import Start

POWER = {"l1": 1, "l2": 2}


@dataclasses.dataclass(frozen=True)
class Ticket(Start):
    """Of all entries of all matrices together, the `keep` share that is largest after `steps` steps of the dense run.

    They start at the dense run's initial values; the others are 0 and stay 0 whatever the optimizer and its decay
    would do. Biases and gains are not pruned. The dense run is trained anew, as a part of drawing the parameters: the
    start is a function of config and seed alone, so it needs no files, and no ticket can be of another dense run.

    Controls: `random` keeps as many entries of each matrix as the ticket does, anywhere in it; `l1` and `l2` keep every
    weight, and scale the matrices together to the ticket's norm.
    """

    steps: int = setting(25_000, "steps of the dense run after which its weights are ranked", low=0, high=2**31 - 1)
    keep: float = setting(0.4, "share of the matrices' entries that is kept", low=0.0, high=1.0, varies=True)
    control: str = setting("none", "what is trained instead of the ticket", choices=("none", "random", *POWER))

    def check(self, config) -> None:
        if self.control not in POWER and config.gradient.name != "plain":
            raise Refused(
                f"start ticket keeps pruned weights at 0, and --gradient={config.gradient.name} "
                "would look at the loss where they are not; use --gradient=plain."
            )

    def __call__(self, seed, fresh, trained_for):
        kept = largest(trained_for(self.steps), self.keep)
        ticket = jax.tree.map(_cut, fresh, kept)
        if self.control in POWER:
            scale = norm(ticket, POWER[self.control]) / norm(fresh, POWER[self.control])
            return jax.tree.map(lambda w: w * scale.astype(w.dtype) if w.ndim >= 2 else w, fresh)
        return ticket if self.control == "none" else jax.tree.map(_cut, fresh, shuffled(kept, seed))

    def hold(self, optimizer):
        return optimizer if self.control in POWER else hold_zeros(optimizer)


def _cut(w, kept):
    return jnp.where(kept, w, jnp.zeros_like(w))


def largest(params, keep):
    """A tree of bool: true for that share of the matrices' entries, rounded to a count, and for all that is no matrix.

    One threshold for all matrices; of entries of equal magnitude the first are kept.
    """
    leaves, tree = jax.tree.flatten(params)
    size_N = jnp.concatenate([jnp.abs(w).ravel() for w in leaves if w.ndim >= 2])
    count = jnp.round(jnp.float32(keep) * len(size_N)).astype(jnp.int32)
    kept_N = jnp.argsort(jnp.argsort(-size_N, stable=True)) < count
    ends = np.cumsum([w.size for w in leaves if w.ndim >= 2])
    parts = iter(jnp.split(kept_N, ends[:-1]))
    return tree.unflatten(
        [next(parts).reshape(w.shape) if w.ndim >= 2 else jnp.ones(w.shape, bool) for w in leaves]
    )  # fmt: skip


def shuffled(kept, seed):
    """The same number of true entries in each leaf, at random places."""
    leaves, tree = jax.tree.flatten(kept)
    keys = [rng.stream(seed, "random mask", i) for i in range(len(leaves))]
    return tree.unflatten(
        [jax.random.permutation(key, k.ravel()).reshape(k.shape) for key, k in zip(keys, leaves, strict=True)]
    )


def norm(params, power: int):
    """The L1 or L2 norm of all matrices' entries together."""
    summed = sum((jnp.abs(w) ** power).sum() for w in jax.tree.leaves(params) if w.ndim >= 2)
    return summed ** (1 / power)


class Held(NamedTuple):
    kept: Any  # bool tree: what was not 0 in a matrix when the optimizer was initialised, and all that is no matrix
    inner: Any


def hold_zeros(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer under which the entries of matrices that are 0 at its initialisation stay exactly 0.

    Neither their gradients (which would enter norms and matrix-valued updates) nor their updates (decay among them)
    pass. The mask is a part of the state, and with it of a checkpoint: a kept weight may come to be 0 and leave it.
    """

    def init(params):
        kept = jax.tree.map(lambda w: w != 0 if w.ndim >= 2 else jnp.ones(w.shape, bool), params)
        return Held(kept, optimizer.init(params))

    def update(gradient, state, params=None):
        updates, inner = optimizer.update(jax.tree.map(_cut, gradient, state.kept), state.inner, params)
        return jax.tree.map(_cut, updates, state.kept), Held(state.kept, inner)

    return optax.GradientTransformation(init, update)
