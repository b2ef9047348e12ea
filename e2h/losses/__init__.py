"""Losses: what is minimised, at the positions where the model is read."""

import dataclasses
from typing import ClassVar

import jax

from e2h.registry import Component


@dataclasses.dataclass(frozen=True)
class Loss(Component):
    kind: ClassVar[str] = "loss"

    def per_read(self, logits_NxV: jax.Array, target_N: jax.Array) -> jax.Array:
        """float32 [N]: the loss at each read, from float32 logits and int32 classes."""
        raise NotImplementedError

    def __call__(self, logits_BxRxV, target_BxR, weight_BxR) -> tuple[jax.Array, jax.Array]:
        """(sum, count) of the loss over reads of weight 1. What stands at weight 0 moves neither, nor a gradient."""
        flat_NxV = logits_BxRxV.reshape(-1, logits_BxRxV.shape[-1])
        loss_BxR = self.per_read(flat_NxV, target_BxR.ravel()).reshape(target_BxR.shape)
        return jax.numpy.where(weight_BxR > 0, loss_BxR * weight_BxR, 0.0).sum(), weight_BxR.sum()
