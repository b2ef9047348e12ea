"""From the easiest difficulty to the whole training range, a little more every few steps."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.curricula import Curriculum
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class Growing(Curriculum):
    """Uniform on low..top, where top = low + step // every, at most high."""

    every: int = setting(100, "steps until the hardest difficulty rises by one", low=1)

    def draw(self, key, step, low, high, shape):
        top = jnp.minimum(low + step // self.every, high)
        return jax.random.randint(key, shape, low, top + 1)
