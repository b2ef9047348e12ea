"""Entropy-SGD's inner loop (Chaudhari et al. 2016, arXiv 1611.01838), without its noise."""

import dataclasses

import jax

from e2h.gradients import GradientRule
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class EntropySGD(GradientRule):
    """w - mu, the descent direction of local entropy, where mu averages a walk w' that starts at w.

    `inner` times: w' <- w' - rate (g(w') - gamma (w - w')), mu <- (1 - average) mu + average w'. The outer learning
    rate stands for gamma times the paper's. All inner gradients are of this step's batch, and a step costs `inner` of
    them; compare at equal numbers of gradients. The Langevin noise, of size 1e-4 in the paper's code, is left out.
    """

    inner: int = setting(20, "gradients of a step", low=1)
    rate: float = setting(0.1, "inner learning rate", low=0.0, varies=True)
    gamma: float = setting(1e-4, "pull of the walk towards where it started", low=0.0, varies=True)
    average: float = setting(0.25, "weight of the newest point in the average", low=0.0, high=1.0, varies=True)

    def __call__(self, gradient_at, params):
        auxiliary, gradient = gradient_at(params)

        def move(walk, mean, gradient):
            walk = jax.tree.map(lambda v, g, w: v - self.rate * (g - self.gamma * (w - v)), walk, gradient, params)
            return walk, jax.tree.map(lambda m, v: (1 - self.average) * m + self.average * v, mean, walk)

        def again(_, carry):
            walk, mean = carry
            return move(walk, mean, gradient_at(walk)[1])

        _, mean = jax.lax.fori_loop(1, self.inner, again, move(params, params, gradient))
        return auxiliary, jax.tree.map(lambda w, m: w - m, params, mean)
