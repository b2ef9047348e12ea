"""Measures: numbers read off a model, its outputs or its gradient, in any run, by `--measures=a,b`."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax

from e2h.layouts import Batch
from e2h.registry import Component

Found = tuple[jax.Array, jax.Array]  # (sum, count)


class Reading(NamedTuple):
    """What a measure may read, for one seed, at a step, on (a sample of) its training problems."""

    params: Any
    batch: Batch
    logits_BxRxV: jax.Array
    loss_BxR: jax.Array
    mean_loss: Callable[[Any], jax.Array] | None = None  # over these problems, as a function of the parameters


@dataclasses.dataclass(frozen=True)
class Measure(Component):
    kind: ClassVar[str] = "measure"

    @abc.abstractmethod
    def __call__(self, reading: Reading, config) -> Found | dict[str, Found]:
        """(sum, count) of the measured number; its row holds both. A count of 1 marks a number that is no mean.

        Several numbers are {part: (sum, count)}, and their columns `name:part`.
        """

    def columns(self, reading: Reading, config) -> dict[str, Found]:
        """(sum, count) of each column."""
        found = self(reading, config)
        if isinstance(found, dict):
            return {f"{self.name}:{part}": pair for part, pair in found.items()}
        return {self.name: found}
