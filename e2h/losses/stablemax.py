"""StableMax cross-entropy (Prieto et al. 2025, arXiv 2501.04697): s(z) = z + 1 for z >= 0, 1 / (1 - z) below;
p_k = s(z_k) / sum s(z). Its gradient falls like 1 / z instead of exponentially, so nothing collapses."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.losses import Loss, computed_in
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class StableMax(Loss):
    """-log p_y. Not invariant to a shift of the logits."""

    softmax_dtype: str = setting("float64", "type of the normalisation", choices=("float32", "float64"))

    def per_read(self, logits_NxV, target_N):
        return computed_in(self.softmax_dtype, _stablemax, logits_NxV, target_N)


def _stablemax(z_NxV, target_N):
    size_NxV = jnp.log1p(jnp.abs(z_NxV))  # |log s(z)|; JAX's |z| has gradient 1 at 0
    log_s_NxV = jnp.where(z_NxV >= 0, size_NxV, -size_NxV)
    log_sum_N = jax.nn.logsumexp(log_s_NxV, axis=-1)
    return log_sum_N - jnp.take_along_axis(log_s_NxV, target_N[:, None], axis=-1)[:, 0]
