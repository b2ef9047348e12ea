"""Curricula: how hard the problems of a step are."""

import abc
import dataclasses
from typing import ClassVar

import jax

from e2h.registry import Component, setting


@dataclasses.dataclass(frozen=True)
class Curriculum(Component):
    """A distribution over difficulties that may move with the step."""

    mixed: bool = setting(False, "a difficulty for each problem instead of one for the whole batch")

    kind: ClassVar[str] = "curriculum"

    @abc.abstractmethod
    def draw(self, key, step, low: int, high: int, shape: tuple[int, ...]) -> jax.Array:
        """int32 difficulties of `shape`, within low..high (the training range), at a step (int32 scalar)."""
