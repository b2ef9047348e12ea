"""Gradient rules: how a gradient is obtained from a loss. SAM and its kin are further files of this room."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from e2h.registry import Component

Params = Any


@dataclasses.dataclass(frozen=True)
class GradientRule(Component):
    kind: ClassVar[str] = "gradient"

    @abc.abstractmethod
    def __call__(self, gradient_at: Callable[[Params], tuple[Any, Params]], params: Params) -> tuple[Any, Params]:
        """(auxiliary outputs, gradient) for a step from `params`.

        `gradient_at(params)` returns the auxiliary outputs and the gradient of the mean loss of this step's whole
        batch, already summed over devices; a rule may call it more than once, at other parameters.
        """
