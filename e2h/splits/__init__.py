"""Splits: which problems are train, in-distribution test, and out-of-distribution test."""

import abc
import dataclasses
from typing import Any, ClassVar

from e2h.registry import Component
from e2h.tasks import Problem, Task

TRAIN, TEST = "train", "test"  # every split has these two parts; further parts are out of distribution


@dataclasses.dataclass(frozen=True)
class Split(Component):
    """Divides the problems of a task into parts. No problem, nor its symmetric twin, is in two parts, for any seed."""

    kind: ClassVar[str] = "split"
    unseen: ClassVar[tuple[str, ...]] = ()  # the parts that are out of distribution

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[str, ...]:
        """The parts that evaluation scores."""

    @abc.abstractmethod
    def difficulties(self, task: Task, part: str) -> tuple[int, ...]:
        """The difficulties that a part holds (for `train`: those that the curriculum draws from)."""

    def batch_size(self, task: Task, requested: int) -> int:
        """Problems per training step."""
        del task
        return requested

    def prepare(self, task: Task, seed) -> Any:
        """What the split of one seed needs beside the seed: a pytree, made once, on device."""
        del task, seed
        return ()

    def drawn_at(self, step):
        """The step whose difficulty and problems training meets at `step`: a split of finitely many begins again."""
        return step

    @abc.abstractmethod
    def train(self, task, data, seed, step, row_B, batch_size: int, difficulty, capacity: int) -> tuple[Problem, Any]:
        """Problems number `row_B` (int32 [B]) of the `batch_size` of a training step, stacked, and a weight for each.

        A weight of 0 says that there is no problem. `difficulty` is an int32 scalar, or [B]: one per problem.
        """

    def blocks(self, task: Task, part: str, size: int) -> int:
        """How many blocks of `size` problems a part has at one difficulty."""
        del task, part, size
        return 1

    @abc.abstractmethod
    def test(self, task, data, seed, part: str, block, size: int, difficulty, capacity: int) -> tuple[Problem, Any]:
        """The problems of one block of a part, stacked, and a weight for each."""
