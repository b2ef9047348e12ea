"""Even pairs: is the number of unequal neighbours in a bit string odd? (Delétang et al. 2022, arXiv 2207.02098.)

The label equals [first bit != last bit], so a model may solve it by comparing two tokens.
"""

import dataclasses
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp

from e2h.tasks import Complexity, Problem, Task, problem


@dataclasses.dataclass(frozen=True)
class EvenPairs(Task):
    """Difficulty n: n independent fair bits; the answer is the number of places where neighbours differ, mod 2."""

    lowest: ClassVar[int] = 2  # one bit has no pair
    EXAMPLES: ClassVar[tuple] = (("001110", "0"), ("0101001", "1"), ("01", "1"))

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
        inside = jnp.arange(1, capacity) < difficulty
        unequal = jnp.sum((bits_P[1:] != bits_P[:-1]) & inside)
        return problem(bits_P, difficulty, unequal % 2)

    def complexity(self, x: Problem) -> Complexity:
        return Complexity(x.prompt_length, x.prompt_length - 1, x.prompt_length)

    def chance(self, difficulty: int) -> float:
        del difficulty
        return 0.5

    def distinct(self, difficulty: int) -> int:
        return 2**difficulty

    def oracle(self, prompt: list[str]) -> list[str]:
        return [str(sum(a != b for a, b in itertools.pairwise(prompt)) % 2)]
