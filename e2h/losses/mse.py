"""Mean squared error to the one-hot answer, averaged over classes (Gromov 2023, arXiv 2301.02679)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.losses import Loss


@dataclasses.dataclass(frozen=True)
class MeanSquaredError(Loss):
    """(1 / V) sum_k (z_k - [k = y])^2. The zero predictor scores 1 / V."""

    def per_read(self, logits_NxV, target_N):
        return jnp.square(logits_NxV - jax.nn.one_hot(target_N, logits_NxV.shape[-1])).mean(-1)
