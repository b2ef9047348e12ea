"""Softmax cross-entropy with the softmax in a float type of choice (Prieto et al. 2025, arXiv 2501.04697)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.losses import Loss, computed_in
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log softmax(z)_y, where the exponentials and their sum are rounded to `softmax_dtype`.

    When the other exponentials vanish beside the right one in that type, loss and gradient of the right logit are
    exactly 0 (softmax collapse). The sum is written out, because a library may accumulate a float16 sum in float32.
    """

    softmax_dtype: str = setting("float32", "type of the softmax", choices=("float16", "float32", "float64"))

    def per_read(self, logits_NxV, target_N):
        return computed_in(self.softmax_dtype, _cross_entropy, logits_NxV, target_N)


def _cross_entropy(z_NxV, target_N):
    z_NxV = z_NxV - jax.lax.stop_gradient(z_NxV.max(-1, keepdims=True))
    log_sum_N = jnp.log(jnp.exp(z_NxV).sum(-1, dtype=z_NxV.dtype))
    return log_sum_N - jnp.take_along_axis(z_NxV, target_N[:, None], axis=-1)[:, 0]
