"""Train on problems of few steps, test on problems of more steps and the same length (Samiei et al. 2025,
arXiv 2510.06274). The steps are a proxy for complexity: those of the shortest solution known to us."""

import dataclasses
from typing import ClassVar

from e2h.registry import setting
from e2h.splits._ranges import RangeSplit


@dataclasses.dataclass(frozen=True)
class Complexity(RangeSplit):
    """The difficulty is the number of steps; every prompt has the same length."""

    train_max: int = setting(4, "the hardest difficulty of training", low=1)
    test_max: int = setting(10, "the hardest difficulty of the out-of-distribution test", low=2)

    unseen: ClassVar[tuple[str, ...]] = ("test_complexity",)
    axes: ClassVar[tuple[str, ...]] = ("computation",)
