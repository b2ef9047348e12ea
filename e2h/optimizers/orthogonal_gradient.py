"""Orthogonal gradient (Prieto et al. 2025, arXiv 2501.04697, equation 12; its code calls it OrthoGrad).

For each tensor, g_perp = g - (w.g / w.w) w: to first order the step does not scale the weights, so the loss cannot be
lowered by making the logits larger. The paper's code then rescales g_perp to the norm of g, and so does `rescale`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from e2h.optimizers import Optimizer, Wrapper
from e2h.optimizers.adamw import AdamW
from e2h.registry import setting

TINY = 1e-30  # as in the paper's code; a normal float32


@dataclasses.dataclass(frozen=True)
class OrthogonalGradient(Wrapper):
    """Wraps any optimizer. Under momentum or Adam the update itself is no longer orthogonal to the weights."""

    inner: Optimizer = setting(AdamW(), "the optimizer that takes the changed gradient")
    rescale: bool = setting(True, "bring each tensor's gradient back to its norm, as the paper's code does")

    def change(self):
        def update(updates, state, params):
            if params is None:
                raise ValueError("orthogonal_gradient needs the parameters: update(gradient, state, params).")
            return jax.tree.map(lambda g, w: orthogonal(g, w, self.rescale), updates, params), state

        return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def orthogonal(g: jax.Array, w: jax.Array, rescale: bool) -> jax.Array:
    """g without its component along w. Tensors of one element pass: nothing is orthogonal to them but round-off."""
    if w.size == 1:
        return g
    perp = g
    for _ in range(2):  # what one projection leaves of a gradient almost along w is mostly round-off, again along w
        perp = perp - jnp.vdot(w, perp) / (jnp.vdot(w, w) + TINY) * w
    return perp * (jnp.linalg.norm(g) / (jnp.linalg.norm(perp) + TINY)) if rescale else perp
