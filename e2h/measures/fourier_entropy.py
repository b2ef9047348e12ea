"""Entropy of the weights' power spectra, in nats (Minegishi et al. 2023, arXiv 2310.19470)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.measures import Measure, _fourier


@dataclasses.dataclass(frozen=True)
class FourierEntropy(Measure):
    """Mean of -sum q log q over every unit's weights, to each operand and to the classes; all-0 ones are left out.

    q = F^2 / sum F^2 with F = |rfft(w)| over the residues, constant included, as in `fourier_ipr`. A single frequency
    has 0, K equal ones ln K, Gaussian noise about H_n - 1 for n = p // 2 + 1 bins with H_n = 1 + 1/2 + ... + 1/n (3.48
    at p = 97; an exponential power in each bin, but for the constant's, which is chi-squared).
    """

    def check(self, config):
        _fourier.check(self, config)

    def __call__(self, reading, config):
        return _fourier.mean_over_live(*entropy(_fourier.functions(reading.params, config)))


def entropy(function_NxP: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(entropy [N] of each function's power spectrum, bool [N]: whether it is not 0 throughout)."""
    F_NxK, live_N = _fourier.magnitudes(function_NxP)
    power_NxK = jnp.square(F_NxK)
    q_NxK = power_NxK / jnp.where(live_N, power_NxK.sum(-1), 1.0)[:, None]
    return jax.scipy.special.entr(q_NxK).sum(-1), live_N
