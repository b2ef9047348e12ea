"""How much the mean training loss rises one step up its gradient (Foret et al. 2020, arXiv 2010.01412)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.measures import Measure
from e2h.measures._trees import unit
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class SAMSharpness(Measure):
    """L(w + rho g / |g|) - L(w), the first-order value of the maximum over |e| <= rho; 0 where the gradient is 0."""

    rho: float = setting(0.05, "length of the step, over all parameters together", low=0.0)

    def __call__(self, reading, config):
        del config
        loss, gradient = jax.value_and_grad(reading.mean_loss)(reading.params)
        up = jax.tree.map(lambda w, g: w + self.rho * g, reading.params, unit(gradient))
        return reading.mean_loss(up) - loss, jnp.ones(())
