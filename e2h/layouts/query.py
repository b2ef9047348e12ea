"""The prompt, then one query token for each answer token; all answers are read at once, each at its query token
(Delétang et al. 2022, arXiv 2207.02098)."""

import dataclasses

import jax.numpy as jnp

from e2h.layouts import Batch, Layout, extend


@dataclasses.dataclass(frozen=True)
class Query(Layout):
    """`prompt ? ? ?`"""

    def vocabulary(self, task) -> tuple[str, ...]:
        return (*task.prompt_vocabulary, "<query>")

    def length(self, task, capacity: int) -> int:
        return sum(task.shape(capacity))

    def arrange(self, task, x) -> Batch:
        slots_A = jnp.arange(len(x.answer_A))
        tokens_LxC, place_L = extend(x, len(slots_A))
        index_L = jnp.arange(len(place_L))
        length = x.prompt_length + x.answer_length
        asks_L = (index_L >= x.prompt_length) & (index_L < length)
        tokens_LxC = tokens_LxC.at[:, 0].set(jnp.where(asks_L, len(task.prompt_vocabulary), tokens_LxC[:, 0]))
        weight_R = (slots_A < x.answer_length).astype(jnp.float32)
        return Batch(tokens_LxC, length, place_L, x.prompt_length + slots_A, x.answer_A, weight_R)
