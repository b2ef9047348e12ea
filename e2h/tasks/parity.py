"""Parity: is the number of ones in a bit string odd? (Delétang et al. 2022, arXiv 2207.02098, task "parity check".)"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from e2h.tasks import Complexity, Problem, Task, problem


@dataclasses.dataclass(frozen=True)
class Parity(Task):
    """Difficulty n: n independent fair bits; the answer is their sum mod 2."""

    EXAMPLES: ClassVar[tuple] = (("1010100", "1"), ("01111", "0"), ("1", "1"))

    @property
    def layouts(self) -> tuple[str, ...]:
        return ("query", "causal", "tagging")

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        return ("0", "1")

    def shape(self, capacity: int) -> tuple[int, int]:
        return capacity, 1

    def sample(self, key, difficulty, capacity: int) -> Problem:
        bits_P = jax.random.bernoulli(key, shape=(capacity,)).astype(jnp.int32)
        bits_P = jnp.where(jnp.arange(capacity) < difficulty, bits_P, 0)
        return problem(bits_P, difficulty, bits_P.sum() % 2)

    def complexity(self, x: Problem) -> Complexity:
        return Complexity(x.prompt_length, self.canonical(x).sum(), x.prompt_length)

    def chance(self, difficulty: int) -> float:
        del difficulty
        return 0.5

    def distinct(self, difficulty: int) -> int:
        return 2**difficulty

    def oracle(self, prompt: list[str]) -> list[str]:
        return [str(prompt.count("1") % 2)]
