"""Softmax collapse (Prieto et al. 2025, arXiv 2501.04697): the share of reads at which, in the type of the
loss's softmax, the sum of exp(z - max z) is exactly 1, so that the other classes have vanished beside the largest."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.measures import Measure


@dataclasses.dataclass(frozen=True)
class SoftmaxCollapse(Measure):
    """Share of collapsed reads. The type is the loss's `softmax_dtype`, float32 for a loss without one."""

    def __call__(self, reading, config):
        dtype = getattr(config.loss, "softmax_dtype", "float32")
        with jax.enable_x64(dtype == "float64"):
            z = reading.logits_BxRxV.astype(dtype)
            total_BxR = jnp.exp(z - z.max(-1, keepdims=True)).sum(-1, dtype=z.dtype)
            collapsed_BxR = total_BxR == 1
        return jnp.where(collapsed_BxR, reading.batch.weight_BxR, 0.0).sum(), reading.batch.weight_BxR.sum()
