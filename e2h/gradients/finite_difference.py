"""A penalty on the gradient's norm by finite differences (Karakida et al. 2022, arXiv 2210.02720)."""

import dataclasses

import jax

from e2h.gradients import GradientRule
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class FiniteDifference(GradientRule):
    """Of L + (gamma / 2) |g|^2, at the cost of two gradients, with g the gradient at w.

    Forward: g + (gamma / eps) (g(w + eps g) - g); backward: g + (gamma / eps) (g - g(w - eps g)). On a quadratic both
    are exact. A larger eps is the paper's point, not an error of it.
    """

    gamma: float = setting(0.05, "weight of the penalty", low=0.0, varies=True)
    eps: float = setting(0.05, "step of the difference, in units of the gradient", low=1e-12, varies=True)
    side: str = setting("forward", "of the difference", choices=("forward", "backward"))

    def __call__(self, gradient_at, params):
        auxiliary, g = gradient_at(params)
        sign = 1.0 if self.side == "forward" else -1.0
        _, aside = gradient_at(jax.tree.map(lambda w, g: w + sign * self.eps * g, params, g))
        change = sign * self.gamma / self.eps
        return auxiliary, jax.tree.map(lambda g, there: g + change * (there - g), g, aside)
