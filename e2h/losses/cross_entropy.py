"""Softmax cross-entropy with the softmax in a float type of choice (Prieto et al. 2025, arXiv 2501.04697)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.losses import Loss
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log softmax(z)_y, where the exponentials and their sum are rounded to `softmax_dtype`.

    When the other exponentials vanish beside the right one in that type, loss and gradient of the right logit are
    exactly 0 (softmax collapse). The sum is written out, because a library may accumulate a float16 sum in float32.
    """

    softmax_dtype: str = setting("float32", "type of the softmax", choices=("float16", "float32", "float64"))

    def per_read(self, logits_NxV, target_N):
        with jax.enable_x64(self.softmax_dtype == "float64"):
            z_NxV = logits_NxV.astype(self.softmax_dtype)
            z_NxV = z_NxV - jax.lax.stop_gradient(z_NxV.max(-1, keepdims=True))
            log_sum_N = jnp.log(jnp.exp(z_NxV).sum(-1, dtype=z_NxV.dtype))
            right_N = jnp.take_along_axis(z_NxV, target_N[:, None], axis=-1)[:, 0]
            return (log_sum_N - right_N).astype(jnp.float32)
