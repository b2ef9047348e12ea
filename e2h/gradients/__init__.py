"""Gradient rules: how a gradient is obtained from a loss. SAM and its kin are further files of this room."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax

from e2h.registry import Component

Params = Any


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The gradients of one step's whole batch, over all devices. A rule may ask for them at any parameters.

    `mean(params)`: (auxiliary outputs, gradient of the mean loss).
    `of_groups(params, groups)`: (auxiliary outputs, reads [G], gradient [G, ...] of each group's mean loss), where the
    batch is cut into groups of neighbours, 0 for one of each problem; a group of padding has 0 reads and gradient 0.
    Each device cuts its own part, so there are `groups` of them on every device.
    """

    mean: Callable[[Params], tuple[Any, Params]]
    of_groups: Callable[[Params, int], tuple[Any, jax.Array, Params]]

    def __call__(self, params: Params) -> tuple[Any, Params]:
        return self.mean(params)


@dataclasses.dataclass(frozen=True)
class GradientRule(Component):
    kind: ClassVar[str] = "gradient"

    @abc.abstractmethod
    def __call__(self, gradient_at: Gradients, params: Params) -> tuple[Any, Params]:
        """(auxiliary outputs, gradient) for a step from `params`, off `gradient_at(params)` or its groups'."""
