"""Inverse participation ratio of the weights' spectra (Doshi et al. 2023, arXiv 2310.13061; Gromov 2023, arXiv
2301.02679): with F = |rfft(w)| over the residues, constant included, IPR = sum F^4 / (sum F^2)^2."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.measures import Measure, _fourier


@dataclasses.dataclass(frozen=True)
class FourierIPR(Measure):
    """Mean IPR of every unit's weights, to each operand and to the classes. A unit whose weights are all 0 is left out.

    A single frequency has 1, the analytic solution of a + b; K equal ones 1 / K; Gaussian noise about 2 / (p // 2 + 1)
    (.041 at p = 97). (A full FFT would give a cosine 1/2.) Products are waves only in the order of discrete
    logarithms: a network that solves them stays low here.
    """

    def check(self, config):
        _fourier.check(self, config)

    def __call__(self, reading, config):
        return _fourier.mean_over_live(*participation(_fourier.functions(reading.params, config)))


def participation(function_NxP: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(IPR [N] of each function, bool [N]: whether it is not 0 throughout)."""
    F_NxK, live_N = _fourier.magnitudes(function_NxP)
    power_NxK = jnp.square(F_NxK)
    total_N = jnp.where(live_N, power_NxK.sum(-1), 1.0)
    return jnp.square(power_NxK / total_N[:, None]).sum(-1), live_N
