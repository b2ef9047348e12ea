"""The share of training reads whose loss is exactly zero: they no longer teach anything."""

import dataclasses

import jax.numpy as jnp

from e2h.measures import Measure


@dataclasses.dataclass(frozen=True)
class ZeroLoss(Measure):
    """Share of reads with loss == 0."""

    def __call__(self, reading, config):
        del config
        zero_BxR = reading.loss_BxR == 0
        return jnp.where(zero_BxR, reading.batch.weight_BxR, 0.0).sum(), reading.batch.weight_BxR.sum()
