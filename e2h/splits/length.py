"""Train on short problems, test on longer ones (Delétang et al. 2022, arXiv 2207.02098)."""

import dataclasses
from typing import ClassVar

from e2h.splits._ranges import RangeSplit


@dataclasses.dataclass(frozen=True)
class Length(RangeSplit):
    """The difficulty is the length."""

    unseen: ClassVar[tuple[str, ...]] = ("test_length",)
    axes: ClassVar[tuple[str, ...]] = ("length",)
