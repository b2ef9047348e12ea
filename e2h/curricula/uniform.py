"""Every difficulty of the training range is as likely as any other, at every step."""

import dataclasses

import jax

from e2h.curricula import Curriculum


@dataclasses.dataclass(frozen=True)
class Uniform(Curriculum):
    """Uniform on low..high."""

    def draw(self, key, step, low, high, shape):
        del step
        return jax.random.randint(key, shape, low, high + 1)
