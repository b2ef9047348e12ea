"""Layouts: how a problem becomes a token sequence, and where the model is read, trained and scored."""

import abc
import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from e2h.registry import Component, Refused
from e2h.tasks import BLANK, Problem, Task


class Batch(NamedTuple):
    """What a model sees and what it should say. Tokens are padded on the right; reads of weight 0 do not count."""

    tokens_BxLxC: jax.Array  # int32 ids of the layout's vocabulary; the embeddings of the C channels are summed
    length_B: jax.Array  # int32, tokens that are not padding
    place_BxL: jax.Array  # int32, for the position encoding
    read_BxR: jax.Array  # int32, the token positions at which the model is read
    target_BxR: jax.Array  # int32, the right output class there
    weight_BxR: jax.Array  # float32, 1 where loss and score are taken


class Score(NamedTuple):
    """Sums over problems or reads of weight 1; scores of parts of a batch add up."""

    problems: jax.Array  # int32, how many
    exact: jax.Array  # int32, problems of which every read was right
    reads: jax.Array  # int32, how many
    right: jax.Array  # int32, reads that were right, each with the true earlier answer tokens given
    loss: jax.Array  # float32, over reads


def score(batch: Batch, logits_BxRxV: jax.Array, loss: jax.Array) -> tuple[Score, jax.Array]:
    """The Score of a batch whose summed loss is given, and whether each problem was answered exactly, bool [B].

    A read with a logit that is not finite is wrong, whatever the arg max of such a row may be.
    """
    counts_BxR = batch.weight_BxR > 0
    finite_BxR = jnp.isfinite(logits_BxRxV).all(-1)
    right_BxR = (logits_BxRxV.argmax(-1) == batch.target_BxR) & finite_BxR & counts_BxR
    exact_B = all_right(batch, right_BxR)
    total = [a.sum(dtype=jnp.int32) for a in (counts_BxR.any(1), exact_B, counts_BxR, right_BxR)]
    return Score(*total, loss), exact_B


def all_right(batch: Batch, right_BxR: jax.Array) -> jax.Array:
    """bool [B]: whether every read of weight 1 is right, of a problem that has one."""
    counts_BxR = batch.weight_BxR > 0
    return (right_BxR | ~counts_BxR).all(1) & counts_BxR.any(1)


@dataclasses.dataclass(frozen=True)
class Layout(Component):
    kind: ClassVar[str] = "layout"
    generates: ClassVar[bool] = False  # whether the model's own answer tokens are fed back to it

    def check(self, config) -> None:
        if self.name not in config.task.layouts:
            raise Refused(
                f"task {config.task.name} has no layout {self.name} with these settings; "
                f"it has {', '.join(config.task.layouts)}."
            )

    def vocabulary(self, task: Task) -> tuple[str, ...]:
        """The words that the model can be shown; token ids index it."""
        return task.prompt_vocabulary

    def classes(self, task: Task) -> tuple[str, ...]:
        """The words that the model can say; targets index it."""
        return task.answer_vocabulary

    @abc.abstractmethod
    def length(self, task: Task, capacity: int) -> int:
        """L: tokens of the longest sequence at difficulty `capacity`."""

    def reads(self, task: Task, capacity: int) -> int:
        """R: reads of a sequence at difficulty `capacity`."""
        return task.shape(capacity)[1]

    @abc.abstractmethod
    def arrange(self, task: Task, x: Problem) -> Batch:
        """One problem as a Batch without the leading axis."""


def extend(x: Problem, slots: int) -> tuple[jax.Array, jax.Array]:
    """Prompt [P + slots, C] and places [P + slots] with room for more tokens right after the prompt's last one.

    Tokens beyond the prompt are blank; their places count on from the number of the prompt's tokens.
    """
    p, channels = x.prompt_PxC.shape
    index_L = jnp.arange(p + slots)
    inside_L = index_L < x.prompt_length
    tokens_LxC = jnp.concatenate([x.prompt_PxC, jnp.full((slots, channels), BLANK)])
    place_L = jnp.concatenate([x.place_P, jnp.zeros(slots, jnp.int32)])
    return jnp.where(inside_L[:, None], tokens_LxC, BLANK), jnp.where(inside_L, place_L, index_L)
