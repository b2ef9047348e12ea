"""Losses: what is minimised, at the positions where the model is read."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from e2h.registry import Component


@dataclasses.dataclass(frozen=True)
class Loss(Component):
    kind: ClassVar[str] = "loss"

    @abc.abstractmethod
    def per_read(self, logits_NxV: jax.Array, target_N: jax.Array) -> jax.Array:
        """float32 [N]: the loss at each read, from float32 logits and int32 classes."""

    def __call__(self, logits_BxRxV, target_BxR, weight_BxR) -> tuple[jax.Array, jax.Array]:
        """(sum, count) of the loss over reads of weight 1. What stands at weight 0 moves neither, nor a gradient."""
        counts_BxR = weight_BxR > 0
        logits_BxRxV = jnp.where(counts_BxR[..., None], logits_BxRxV, 0.0)  # zero times a NaN would be a NaN gradient
        flat_NxV = logits_BxRxV.reshape(-1, logits_BxRxV.shape[-1])
        loss_BxR = self.per_read(flat_NxV, target_BxR.ravel()).reshape(target_BxR.shape)
        return jnp.where(counts_BxR, loss_BxR * weight_BxR, 0.0).sum(), weight_BxR.sum()


def computed_in(dtype: str, loss: Callable, logits_NxV: jax.Array, target_N: jax.Array) -> jax.Array:
    """float32 [N]: loss(logits, targets) of the logits in a type. float64 is on for this computation alone.

    Its gradient needs float64 too, and is taken here: JAX would take it later, when float64 is off again.
    """

    def rounded(logits_NxV, target_N):
        return loss(logits_NxV.astype(dtype), target_N).astype(jnp.float32)

    if dtype != "float64":
        return rounded(logits_NxV, target_N)

    def value(logits_NxV, target_N):
        with jax.enable_x64(True):
            return rounded(logits_NxV, target_N)

    def value_and_gradient(logits_NxV, target_N):
        with jax.enable_x64(True):
            loss_N, pull_back = jax.vjp(lambda z_NxV: rounded(z_NxV, target_N), logits_NxV)
            return loss_N, pull_back(jnp.ones_like(loss_N))[0]  # a loss depends on the logits of its own read alone

    value = jax.custom_vjp(value)
    value.defvjp(value_and_gradient, lambda gradient_NxV, change_N: (gradient_NxV * change_N[:, None], None))
    return value(logits_NxV, target_N)
