"""Labels on input tokens: answer token k is read at the prompt token that the task names for it."""

import dataclasses

import jax.numpy as jnp

from e2h.layouts import Batch, Layout, extend


@dataclasses.dataclass(frozen=True)
class Tagging(Layout):
    """The prompt alone."""

    def length(self, task, capacity: int) -> int:
        return task.shape(capacity)[0]

    def arrange(self, task, x) -> Batch:
        tokens_LxC, place_L = extend(x, 0)
        weight_R = (jnp.arange(len(x.answer_A)) < x.answer_length).astype(jnp.float32)
        return Batch(tokens_LxC, x.prompt_length, place_L, x.at_A, x.answer_A, weight_R)
