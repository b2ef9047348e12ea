"""The Euclidean norm of all parameters together: sqrt(sum of squares)."""

import dataclasses

import jax.numpy as jnp
import optax

from e2h.measures import Measure


@dataclasses.dataclass(frozen=True)
class WeightNorm(Measure):
    """|w|."""

    def __call__(self, reading, config):
        del config
        return optax.tree.norm(reading.params), jnp.ones(())
