"""StableMax cross-entropy (Prieto et al. 2025, arXiv 2501.04697): s(z) = z + 1 for z >= 0, 1 / (1 - z) below;
p_k = s(z_k) / sum s(z). Its gradient falls like 1 / z instead of exponentially, so nothing collapses."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.losses import Loss
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class StableMax(Loss):
    """-log p_y. Not invariant to a shift of the logits."""

    softmax_dtype: str = setting("float64", "type of the normalisation", choices=("float32", "float64"))

    def per_read(self, logits_NxV, target_N):
        with jax.enable_x64(self.softmax_dtype == "float64"):
            z_NxV = logits_NxV.astype(self.softmax_dtype)
            # log s(z), with each branch fed only arguments at which its gradient is finite
            log_s_NxV = jnp.where(z_NxV >= 0, jnp.log1p(jnp.maximum(z_NxV, 0)), -jnp.log1p(jnp.maximum(-z_NxV, 0)))
            log_sum_N = jax.nn.logsumexp(log_s_NxV, axis=-1)
            right_N = jnp.take_along_axis(log_s_NxV, target_N[:, None], axis=-1)[:, 0]
            return (log_sum_N - right_N).astype(jnp.float32)
