"""Addition of two n-digit numbers, digit by digit, so that nothing overflows at any length.

Formats: the answer most significant digit first or reversed (Lee et al. 2023, arXiv 2307.03381), operands and answer
zero-padded to n and n + 1 digits or written without leading zeros.
"""

import dataclasses
import fractions
from typing import ClassVar

import jax
import jax.numpy as jnp

from e2h.registry import setting
from e2h.tasks import Complexity, Problem, Task, problem

PLUS = 10


@dataclasses.dataclass(frozen=True)
class Addition(Task):
    """Difficulty n: both operands have n digits (zero-padded: uniform below 10^n; else no leading zero if n > 1)."""

    reverse: bool = setting(False, "write the answer least significant digit first")
    zero_pad: bool = setting(False, "operands may begin with zeros and the answer always has n + 1 digits")

    EXAMPLES: ClassVar[tuple] = (
        ("653+749", "1402"),
        ("7+0", "7"),
        ("653+749", "2041", {"reverse": True}),
        ("053+040", "0093", {"zero_pad": True}),
        ("053+040", "3900", {"zero_pad": True, "reverse": True}),
    )

    @property
    def layouts(self) -> tuple[str, ...]:
        # Query slots would give away how long an unpadded answer is.
        return ("query", "causal") if self.zero_pad else ("causal",)

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        return (*"0123456789", "+")

    @property
    def answer_vocabulary(self) -> tuple[str, ...]:
        return tuple("0123456789")

    def shape(self, capacity: int) -> tuple[int, int]:
        return 2 * capacity + 1, capacity + 1

    def sample(self, key, difficulty, capacity: int) -> Problem:
        n, place_N = difficulty, jnp.arange(capacity)  # digits are least significant first until they are written
        digits_2xN = jax.vmap(lambda k: self._operand(k, n, capacity))(jax.random.split(key))
        sum_A = _add(*digits_2xN)
        answer_length = n + 1 if self.zero_pad else n + sum_A[n]
        k = jnp.arange(capacity + 1)
        answer_A = sum_A if self.reverse else sum_A[jnp.clip(answer_length - 1 - k, 0)]
        written_2xN = digits_2xN[:, jnp.clip(n - 1 - place_N, 0)]
        i = jnp.arange(2 * capacity + 1)
        first_P, second_P = (
            written_2xN[0, jnp.minimum(i, capacity - 1)],
            written_2xN[1, jnp.clip(i - n - 1, 0, capacity - 1)],
        )
        prompt_P = jnp.where(i < n, first_P, jnp.where(i == n, PLUS, second_P))
        return problem(prompt_P, 2 * n + 1, answer_A, answer_length)

    def _operand(self, key, n, capacity: int) -> jax.Array:
        """n random digits, least significant first, zeros above."""
        place_N = jnp.arange(capacity)
        low = jax.random.randint(key, (capacity,), 0, 10)
        nonzero = jax.random.randint(jax.random.fold_in(key, 1), (), 1, 10)  # the leading digit of a longer number
        leading = (place_N == n - 1) & (n > 1) & (not self.zero_pad)
        return jnp.where(place_N < n, jnp.where(leading, nonzero, low), 0)

    def canonical(self, x: Problem) -> jax.Array:
        """a + b and b + a are the same problem: the larger operand first."""
        n, i = (x.prompt_length - 1) // 2, jnp.arange(x.prompt_PxC.shape[0])
        prompt_P = jnp.where(i < x.prompt_length, x.prompt_PxC[:, 0], 0)
        swapped_P = jnp.where(i == n, PLUS, prompt_P[jnp.where(i < n, i + n + 1, i - n - 1)])
        swapped_P = jnp.where(i < x.prompt_length, swapped_P, 0)
        first_difference = jnp.argmax(prompt_P != swapped_P)
        return jnp.where(prompt_P[first_difference] >= swapped_P[first_difference], prompt_P, swapped_P)

    def complexity(self, x: Problem) -> Complexity:
        n = (x.prompt_length - 1) // 2
        return Complexity(x.prompt_length, n, 2 * n)

    def chance(self, difficulty: int) -> float:
        return float(fractions.Fraction(1, self._operands(difficulty)))  # the commonest sum; tiny, but no overflow

    def distinct(self, difficulty: int) -> int:
        return self._operands(difficulty) ** 2

    def _operands(self, n: int) -> int:
        """How many operands of n digits there are."""
        return 10**n if self.zero_pad or n == 1 else 9 * 10 ** (n - 1)

    def oracle(self, prompt: list[str]) -> list[str]:
        first, second = "".join(prompt).split("+")
        answer = str(int(first) + int(second))
        answer = answer.zfill(len(first) + 1) if self.zero_pad else answer
        return list(answer[::-1] if self.reverse else answer)


def _add(a_N: jax.Array, b_N: jax.Array) -> jax.Array:
    """Digits of a + b, least significant first, N + 1 of them (carry look-ahead)."""
    sum_N = a_N + b_N

    def combine(low, high):  # (makes a carry, passes a carry on)
        return high[0] | (high[1] & low[0]), low[1] & high[1]

    carry_N, _ = jax.lax.associative_scan(combine, (sum_N >= 10, sum_N == 9))
    carry_in_A = jnp.concatenate([jnp.zeros(1, bool), carry_N])
    return (jnp.concatenate([sum_N, jnp.zeros(1, sum_N.dtype)]) + carry_in_A.astype(sum_N.dtype)) % 10
