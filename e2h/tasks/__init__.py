"""Tasks: generators of problems. One file each; see `parity.py` for the smallest."""

import abc
import dataclasses
import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from e2h.registry import Component, Refused

BLANK = -1  # a channel of a prompt token that holds nothing; it is embedded as zero
NO_PLACE = -1  # the place of a token that stands in no order; position encodings leave it alone


class Problem(NamedTuple):
    """One problem (a leading axis is added by vmap). What stands beyond a length is padding and is never looked at."""

    prompt_PxC: jax.Array  # int32 ids of the prompt vocabulary; the C channels of one token are embedded and summed
    prompt_length: jax.Array  # int32 scalar
    answer_A: jax.Array  # int32 ids of the answer vocabulary
    answer_length: jax.Array  # int32 scalar
    place_P: jax.Array  # int32 place of each prompt token in its sequence, or NO_PLACE
    at_A: jax.Array  # int32 index of the prompt token that answer token k labels; used by the tagging layout


def problem(prompt, prompt_length, answer, answer_length=None, *, place=None, at=None) -> Problem:
    """A Problem with the usual defaults: one channel, places 0, 1, 2, ..., every answer at the last prompt token."""
    prompt, answer = jnp.asarray(prompt, jnp.int32), jnp.atleast_1d(jnp.asarray(answer, jnp.int32))
    prompt_length = jnp.asarray(prompt_length, jnp.int32)
    return Problem(
        prompt_PxC=prompt[:, None] if prompt.ndim == 1 else prompt,
        prompt_length=prompt_length,
        answer_A=answer,
        answer_length=jnp.asarray(answer.shape[0] if answer_length is None else answer_length, jnp.int32),
        place_P=jnp.arange(prompt.shape[0], dtype=jnp.int32) if place is None else jnp.asarray(place, jnp.int32),
        at_A=jnp.broadcast_to(prompt_length - 1, answer.shape) if at is None else jnp.asarray(at, jnp.int32),
    )


class Complexity(NamedTuple):
    """Proxies for how hard one problem is. None of them is a Kolmogorov complexity."""

    length: jax.Array  # tokens of the prompt
    computation: jax.Array  # steps of the minimal solution known to us
    representation: jax.Array  # objects or relations that the prompt holds


@dataclasses.dataclass(frozen=True)
class Task(Component):
    """A generator of problems whose hardness is set by one integer, the difficulty.

    `axis` says which complexity the difficulty moves. Shapes are static: arrays are sized for a `capacity`, the
    largest difficulty that they can hold, and hold a problem of any traced difficulty up to it.
    """

    kind: ClassVar[str] = "task"
    axis: ClassVar[str] = "length"
    channels: ClassVar[int] = 1
    lowest: ClassVar[int] = 1  # the easiest difficulty
    EXAMPLES: ClassVar[tuple] = ()  # ((prompt text, answer text), ...); the tests recompute each

    @property
    def layouts(self) -> tuple[str, ...]:
        return ("query", "causal")

    @property
    def highest(self) -> int:
        """The hardest difficulty that the task defines; 2**20 stands for no bound."""
        return 2**20

    @property
    @abc.abstractmethod
    def prompt_vocabulary(self) -> tuple[str, ...]:
        """The words of a prompt; token ids index them."""

    @property
    def answer_vocabulary(self) -> tuple[str, ...]:
        return self.prompt_vocabulary

    @abc.abstractmethod
    def shape(self, capacity: int) -> tuple[int, int]:
        """(P, A): prompt and answer tokens that a problem of difficulty `capacity` needs at most."""

    @abc.abstractmethod
    def sample(self, key, difficulty, capacity: int) -> Problem:
        """One random problem of `difficulty` (int32 scalar, may be traced), in arrays sized for `capacity`.

        The same key gives the same problem at every capacity that holds it.
        """

    def canonical(self, x: Problem) -> jax.Array:
        """int32 array, equal for two problems of one difficulty exactly if one gives the other's answer away."""
        inside_P = jnp.arange(x.prompt_PxC.shape[0]) < x.prompt_length
        return jnp.where(inside_P[:, None], x.prompt_PxC, 0).ravel()

    @abc.abstractmethod
    def complexity(self, x: Problem) -> Complexity:
        """Proxies for how hard one problem is; vmapped over problems."""

    @abc.abstractmethod
    def oracle(self, prompt: list[str]) -> list[str]:
        """The answer's words from the prompt's words: plain Python, sharing no code with `sample`."""

    @abc.abstractmethod
    def chance(self, difficulty: int) -> float:
        """Exact-match rate of the best answer that ignores the prompt's tokens."""

    @abc.abstractmethod
    def distinct(self, difficulty: int) -> int:
        """How many different problems of this difficulty exist (an exact Python integer)."""


@dataclasses.dataclass(frozen=True)
class TableTask(Task):
    """A task with finitely many problems, all of difficulty 1, indexed 0..size-1."""

    @property
    def layouts(self) -> tuple[str, ...]:
        return ("table", "query", "causal")

    @property
    def highest(self) -> int:
        return 1

    @abc.abstractmethod
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """All problems: prompts [N, P] and answers [N], int32, in index order (NumPy, host)."""

    def shape(self, capacity: int) -> tuple[int, int]:
        del capacity
        return self.table().prompt_PxC.shape[1], 1

    def forms(self) -> np.ndarray:
        """`canonical` of every problem, [N, K], NumPy. A file with a `canonical` may add it to spare the device."""
        if type(self).canonical is Task.canonical:
            return self.table().prompt_PxC[..., 0]
        with jax.ensure_compile_time_eval():
            return np.asarray(jax.vmap(self.canonical)(jax.tree.map(jnp.asarray, self.table())))

    def table(self) -> Problem:
        """Every problem, stacked along a leading axis N (NumPy arrays)."""
        return _table(self)

    @property
    def size(self) -> int:
        return len(self.table().prompt_length)

    def sample(self, key, difficulty, capacity: int) -> Problem:
        del difficulty, capacity
        index = jax.random.randint(key, (), 0, self.size)
        return jax.tree.map(lambda a: jnp.asarray(a)[index], self.table())

    def complexity(self, x: Problem) -> Complexity:
        one = jnp.int32(1)
        return Complexity(x.prompt_length, one, one)

    def chance(self, difficulty: int) -> float:
        del difficulty
        answers_N = self.table().answer_A[:, 0]
        return float(np.bincount(answers_N).max() / len(answers_N))

    def distinct(self, difficulty: int) -> int:
        del difficulty
        return self.size


@functools.cache
def _table(task: TableTask) -> Problem:
    prompts_NxP, answers_N = (np.asarray(a, np.int32) for a in task.rows())
    n, p = prompts_NxP.shape
    if n == 0:
        raise Refused(f"task {task.name} has no problems with these settings.")
    return Problem(
        prompt_PxC=prompts_NxP[:, :, None],
        prompt_length=np.full(n, p, np.int32),
        answer_A=answers_N[:, None],
        answer_length=np.ones(n, np.int32),
        place_P=np.tile(np.arange(p, dtype=np.int32), (n, 1)),
        at_A=np.full((n, 1), p - 1, np.int32),
    )


def prompt_words(task: Task, x: Problem) -> list[str]:
    """The prompt of one problem as words, one per token; the channels of a token are written together."""
    tokens = np.asarray(x.prompt_PxC)[: int(x.prompt_length)]
    return ["".join(task.prompt_vocabulary[c] for c in token if c != BLANK) for token in tokens]


def answer_words(task: Task, x: Problem) -> list[str]:
    """The answer of one problem as words."""
    return [task.answer_vocabulary[t] for t in np.asarray(x.answer_A)[: int(x.answer_length)]]
