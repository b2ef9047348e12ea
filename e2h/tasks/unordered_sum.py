"""Sums of two numbers below p, without a modulus, each pair once (Liu et al. 2022, arXiv 2205.10343, section 3)."""

import dataclasses
from typing import ClassVar

import numpy as np

from e2h.registry import setting
from e2h.tasks import TableTask


@dataclasses.dataclass(frozen=True)
class UnorderedSum(TableTask):
    """The p (p + 1) / 2 problems i + j with i <= j, rows ordered by (i, j)."""

    p: int = setting(10, "numbers there are", low=2, high=512)

    EXAMPLES: ClassVar[tuple] = (("3 4", "7"), ("0 0", "0"), ("9 9", "18"))

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.p)))

    @property
    def answer_vocabulary(self) -> tuple[str, ...]:
        return tuple(map(str, range(2 * self.p - 1)))

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        i, j = np.triu_indices(self.p)
        return np.stack([i, j], 1), i + j

    def oracle(self, prompt: list[str]) -> list[str]:
        return [str(sum(map(int, prompt)))]
