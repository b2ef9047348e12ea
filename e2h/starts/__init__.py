"""Starts: the parameters before the first step, and which of them training must leave as they are."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import optax

from e2h.registry import Component

Params = Any


@dataclasses.dataclass(frozen=True)
class Start(Component):
    kind: ClassVar[str] = "start"

    @abc.abstractmethod
    def __call__(self, seed, fresh: Params, trained_for: Callable[[int], Params]) -> Params:
        """The parameters that a seed's training starts from.

        Args:
          seed: int32 scalar, may be traced.
          fresh: what the model's initialisers drew.
          trained_for: the parameters after so many steps of the same run with the start `fresh`.
        """

    def hold(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer, which may be kept from changing some of the parameters that it is initialised with."""
        return optimizer
