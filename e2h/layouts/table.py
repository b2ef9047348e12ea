"""One fixed-length row, one answer, read at the last token."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from e2h.layouts import Batch, Layout, extend
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class Table(Layout):
    """`x y`, or with `equals` `x y =`. Without it the answer is read at y, which suits an MLP."""

    equals: bool = setting(False, "append an equals sign and read the answer there (Power et al. 2022)")

    generates: ClassVar[bool] = False

    def vocabulary(self, task) -> tuple[str, ...]:
        return (*task.prompt_vocabulary, "=") if self.equals else task.prompt_vocabulary

    def length(self, task, capacity: int) -> int:
        return task.shape(capacity)[0] + self.equals

    def arrange(self, task, x) -> Batch:
        tokens_LxC, place_L = extend(x, int(self.equals))
        length = x.prompt_length + int(self.equals)
        if self.equals:
            tokens_LxC = tokens_LxC.at[x.prompt_length, 0].set(len(task.prompt_vocabulary))
        return Batch(tokens_LxC, length, place_L, (length - 1)[None], x.answer_A, jnp.ones(1))
