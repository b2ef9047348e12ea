"""Grokfast-EMA (Lee et al. 2024, arXiv 2405.20233, algorithm 2): mu <- alpha mu + (1 - alpha) g; the gradient becomes
g + lam mu. mu starts at the first gradient, so a constant gradient is amplified by exactly 1 + lam at every step."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from e2h.optimizers import Optimizer, Wrapper
from e2h.optimizers.adam_l2 import AdamL2
from e2h.registry import setting


class EmaState(NamedTuple):
    started: jax.Array  # bool scalar
    mean: optax.Updates  # mu


@dataclasses.dataclass(frozen=True)
class GrokfastEMA(Wrapper):
    """The filter comes before the inner optimizer and its decay, as in the paper's code."""

    inner: Optimizer = setting(AdamL2(), "the optimizer that takes the changed gradient")
    alpha: float = setting(0.98, "share of the mean that is kept", low=0.0, high=1.0, varies=True)
    lam: float = setting(2.0, "how much of the slow gradient is added", low=0.0, varies=True)

    def change(self):
        def update(updates, state, params=None):
            del params
            keep = jnp.where(state.started, self.alpha, 0.0)
            mean = jax.tree.map(lambda m, g: keep * m + (1 - keep) * g, state.mean, updates)
            return jax.tree.map(lambda g, m: g + self.lam * m, updates, mean), EmaState(jnp.array(True), mean)

        return optax.GradientTransformation(
            lambda params: EmaState(jnp.array(False), jax.tree.map(jnp.zeros_like, params)), update
        )
