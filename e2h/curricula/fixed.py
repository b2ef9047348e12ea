"""One difficulty throughout."""

import dataclasses

import jax.numpy as jnp

from e2h.curricula import Curriculum
from e2h.registry import Refused, setting


@dataclasses.dataclass(frozen=True)
class Fixed(Curriculum):
    """Always `difficulty`."""

    difficulty: int = setting(1, "the difficulty of every step; it must lie in the training range", low=0)

    def check(self, config) -> None:
        known = config.split.difficulties(config.task, "train")
        if self.difficulty not in known:
            raise Refused(
                f"curriculum.difficulty={self.difficulty} is outside the training range {known[0]}..{known[-1]}."
            )

    def draw(self, key, step, low, high, shape):
        del key, step, low, high
        return jnp.full(shape, self.difficulty, jnp.int32)
