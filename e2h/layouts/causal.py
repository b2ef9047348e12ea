"""Next-token prediction: prompt, separator, answer, end mark. The loss is on the answer and the end mark."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from e2h.layouts import Batch, Layout, extend
from e2h.models import network
from e2h.registry import Refused


@dataclasses.dataclass(frozen=True)
class Causal(Layout):
    """`prompt = answer <end>`; scored on what the model generates."""

    generates: ClassVar[bool] = True

    def check(self, config) -> None:
        super().check(config)
        if not config.model.causal:
            raise Refused(
                f"layout causal needs a model that does not look ahead; set --model.causal on {config.model.name}."
            )
        if not hasattr(network(config), "prefill"):
            raise Refused(
                f"layout causal scores what is generated, and the network of model {config.model.name} has no prefill."
            )

    def vocabulary(self, task) -> tuple[str, ...]:
        """Prompt and answer words share one vocabulary, so that an answer can be fed back."""
        return (*dict.fromkeys(task.prompt_vocabulary + task.answer_vocabulary), "=", "<end>")

    def classes(self, task) -> tuple[str, ...]:
        return self.vocabulary(task)

    def end(self, task) -> int:
        """The id of the end mark."""
        return len(self.vocabulary(task)) - 1

    def length(self, task, capacity: int) -> int:
        return sum(task.shape(capacity)) + 1

    def reads(self, task, capacity: int) -> int:
        return super().reads(task, capacity) + 1

    def arrange(self, task, x) -> Batch:
        words = self.vocabulary(task)
        answer_ids = np.array([words.index(w) for w in task.answer_vocabulary], np.int32)
        separator, end = len(words) - 2, len(words) - 1
        slots = len(x.answer_A) + 1
        k_R = jnp.arange(slots)
        answer_R = jnp.asarray(answer_ids)[jnp.append(x.answer_A, 0)]
        target_R = jnp.where(k_R < x.answer_length, answer_R, end)
        tokens_LxC, place_L = extend(x, slots)
        index_L = jnp.arange(len(place_L))
        fed_L = target_R[jnp.clip(index_L - x.prompt_length - 1, 0, slots - 1)]
        length = x.prompt_length + 1 + x.answer_length
        tail_L = jnp.where(index_L == x.prompt_length, separator, jnp.where(index_L < length, fed_L, tokens_LxC[:, 0]))
        tokens_LxC = tokens_LxC.at[:, 0].set(jnp.where(index_L < x.prompt_length, tokens_LxC[:, 0], tail_L))
        weight_R = (k_R <= x.answer_length).astype(jnp.float32)
        return Batch(tokens_LxC, length, place_L, x.prompt_length + k_R, target_R, weight_R)
