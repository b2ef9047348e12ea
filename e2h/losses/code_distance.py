"""The distance to the answer's code, for a model whose logits are minus the distances to the codes of the classes."""

import dataclasses

import jax.numpy as jnp

from e2h.losses import Loss
from e2h.registry import Refused


@dataclasses.dataclass(frozen=True)
class CodeDistance(Loss):
    """-z_y: the mean squared error to a vector, written on the logits of model embedding_sum."""

    def check(self, config) -> None:
        if config.model.name != "embedding_sum":
            raise Refused(f"loss code_distance has no least value for the logits of model {config.model.name}.")

    def per_read(self, logits_NxV, target_N):
        return -jnp.take_along_axis(logits_NxV, target_N[:, None], axis=1)[:, 0]
