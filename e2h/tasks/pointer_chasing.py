"""Pointer chasing: k hops on a random cycle. The complexity grows with k; the length of the prompt never does.

A task in the sense of complexity out of distribution (Samiei et al. 2025, arXiv 2510.06274), of our own making:
 * The map f is one uniformly random n-cycle, so the answer f^k(s) is uniform over the other names at every k < n, and
   s, f(s), f(f(s)), ... are distinct: stopping early is always wrong, and no fixed point or short cycle helps.
 * k is written as k flags H among M flags, at random places. One token per k would leave the tokens of the
   untrained k without training, and every model would fail for that reason alone.
 * The table stands in a random order, each pair (i, f(i)) in one token of two channels, without a place.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from e2h.registry import Refused, setting
from e2h.tasks import BLANK, NO_PLACE, Complexity, Problem, Task, problem


@dataclasses.dataclass(frozen=True)
class PointerChasing(Task):
    """Prompt: n table tokens `i>f(i)` in random order, the start `s?`, then M flags, k of them H and the rest I."""

    cycle: str = setting("random", "counting: f(i) = i + 1 always, a control", choices=("random", "counting"))
    names: int = setting(24, "n, the length of the cycle", low=3, high=512)
    flags: int = setting(12, "M, the number of flags", low=1, high=512)

    axis: ClassVar[str] = "computation"
    channels: ClassVar[int] = 2
    EXAMPLES: ClassVar[tuple] = (
        ("0>6 1>7 2>5 3>0 4>3 5>4 6>1 7>2 6? I H I I H H", "2", {"names": 8, "flags": 6}),
        ("7>2 1>7 2>5 3>0 6>1 5>4 4>3 0>6 6? H H H I I I", "2", {"names": 8, "flags": 6}),
        ("0>6 1>7 2>5 3>0 4>3 5>4 6>1 7>2 4? H I H I H I", "6", {"names": 8, "flags": 6}),
        ("0>6 1>7 2>5 3>0 4>3 5>4 6>1 7>2 4? I I I H I I", "3", {"names": 8, "flags": 6}),
    )

    def check(self, config) -> None:
        if config.layout.name == "tagging" and config.model.causal:
            raise Refused("Tagging reads pointer chasing at its start, before the flags: use a model that looks ahead.")

    @property
    def layouts(self) -> tuple[str, ...]:
        return ("query", "tagging")

    @property
    def highest(self) -> int:
        return min(self.flags, (self.names - 1) // 2)  # more hops forward are fewer hops backward

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        return (*map(str, range(self.names)), *(f">{i}" for i in range(self.names)), "?", "H", "I")

    @property
    def answer_vocabulary(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.names)))

    def shape(self, capacity: int) -> tuple[int, int]:
        del capacity
        return self.names + 1 + self.flags, 1

    def sample(self, key, difficulty, capacity: int) -> Problem:
        del capacity
        n, m = self.names, self.flags
        on_cycle, start, order, flag_order = jax.random.split(key, 4)
        next_N = self._next(on_cycle)
        s = jax.random.randint(start, (), 0, n)
        answer = jax.lax.fori_loop(0, difficulty, lambda _, x: next_N[x], s)
        names = jax.random.permutation(order, n)
        hop = jax.random.permutation(flag_order, m) < difficulty
        query, yes, no = 2 * n, 2 * n + 1, 2 * n + 2
        prompt_PxC = jnp.concatenate(
            [
                jnp.stack([names, n + next_N[names]], 1),
                jnp.stack([s, jnp.int32(query)])[None],
                jnp.stack([jnp.where(hop, yes, no), jnp.full(m, BLANK)], 1),
            ]
        )
        place_P = jnp.concatenate([jnp.full(n + 1, NO_PLACE), jnp.arange(m)])
        return problem(prompt_PxC, n + 1 + m, answer, place=place_P, at=[n])

    def _next(self, key) -> jax.Array:
        """f as an array: f(c_i) = c_(i+1) for a random order c of the names."""
        i = jnp.arange(self.names)
        c = jax.random.permutation(key, self.names) if self.cycle == "random" else i
        return jnp.zeros(self.names, jnp.int32).at[c].set(c[(i + 1) % self.names].astype(jnp.int32))

    def canonical(self, x: Problem) -> jax.Array:
        """The order of the table and the places of the flags change nothing: f by name, then s, then k.

        With a counting cycle f is always the same and counting the flags is the whole task, so there their places
        stand instead of k.
        """
        n, s = self.names, x.prompt_PxC[self.names, 0]
        if self.cycle == "counting":
            return jnp.concatenate([s[None], x.prompt_PxC[n + 1 : n + 1 + self.flags, 0]])
        next_N = jnp.zeros(n, jnp.int32).at[x.prompt_PxC[:n, 0]].set(x.prompt_PxC[:n, 1] - n)
        return jnp.concatenate([next_N, jnp.stack([s, self._hops(x)])])

    def _hops(self, x: Problem) -> jax.Array:
        return jnp.sum(x.prompt_PxC[self.names + 1 : self.names + 1 + self.flags, 0] == 2 * self.names + 1)

    def complexity(self, x: Problem) -> Complexity:
        return Complexity(x.prompt_length, self._hops(x), jnp.int32(self.names))

    def chance(self, difficulty: int) -> float:
        # A counting cycle still has a uniform start.
        del difficulty
        return 1.0 / self.names

    def distinct(self, difficulty: int) -> int:
        if self.cycle == "counting":
            return self.names * math.comb(self.flags, difficulty)
        return self.names * math.factorial(self.names - 1)

    def oracle(self, prompt: list[str]) -> list[str]:
        follow = dict(word.split(">") for word in prompt if ">" in word)
        at = next(word[:-1] for word in prompt if word.endswith("?"))
        for _ in range(prompt.count("H")):
            at = follow[at]
        return [at]
