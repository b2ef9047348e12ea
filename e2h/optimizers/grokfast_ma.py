"""Grokfast-MA (Lee et al. 2024, arXiv 2405.20233, algorithm 1).

With h the mean of the last `window` gradients, the present one included, the gradient becomes g + lam h once the window
is full. Costs `window` copies of the parameters.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from e2h.optimizers import Optimizer, Wrapper
from e2h.optimizers.adam_l2 import AdamL2
from e2h.registry import setting


class WindowState(NamedTuple):
    count: jax.Array  # int32 scalar: gradients seen
    window: optax.Updates  # [window, ...] the last gradients, a ring


@dataclasses.dataclass(frozen=True)
class GrokfastMA(Wrapper):
    """The filter comes before the inner optimizer and its decay, as in the paper's code."""

    inner: Optimizer = setting(AdamL2(), "the optimizer that takes the changed gradient")
    window: int = setting(100, "gradients in the mean", low=1)
    lam: float = setting(5.0, "how much of the slow gradient is added", low=0.0, varies=True)

    def change(self):
        def init(params):
            rings = jax.tree.map(lambda w: jnp.zeros((self.window, *w.shape), w.dtype), params)
            return WindowState(jnp.zeros((), jnp.int32), rings)

        def update(updates, state, params=None):
            del params
            ring = jax.tree.map(lambda r, g: r.at[state.count % self.window].set(g), state.window, updates)
            count = state.count + 1
            # The mean is taken over the whole ring, not kept as a running sum, which would drift by rounding.
            lam = jnp.where(count >= self.window, self.lam, 0.0)
            return jax.tree.map(lambda g, r: g + lam * r.mean(0), updates, ring), WindowState(count, ring)

        return optax.GradientTransformation(init, update)
