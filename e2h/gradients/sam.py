"""Sharpness-aware minimisation (Foret et al. 2020, arXiv 2010.01412, algorithm 1): two gradients a step."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from e2h.gradients import GradientRule
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class SAM(GradientRule):
    """g = dL/dw at w + rho g0 / |g0|, with g0 the gradient at w and the norm over all parameters together.

    A gradient of zero, as softmax collapse gives, moves nothing. Loss and score are those at w.
    """

    rho: float = setting(0.05, "length of the ascent", low=0.0, varies=True)

    def __call__(self, gradient_at, params):
        auxiliary, gradient = gradient_at(params)
        norm = optax.tree.norm(gradient)
        scale = self.rho / jnp.where(norm > 0, norm, 1.0)
        return auxiliary, gradient_at(jax.tree.map(lambda w, g: w + scale * g, params, gradient))[1]
