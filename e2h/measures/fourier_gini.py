"""Gini coefficient of the Fourier norms of the first and the last matrix (Nanda et al. 2023, arXiv 2301.05217)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.measures import Measure, _fourier


@dataclasses.dataclass(frozen=True)
class FourierGini(Measure):
    """How unequal the frequencies 1..p // 2 are, as columns `fourier_gini:inputs` and `fourier_gini:outputs`.

    A frequency's norm is taken over all units of the matrix (and both operands, where each has a table of its own), and
    over its cosine and its sine, so that no phase is preferred. The constant is no wave and left out. With n = p // 2
    frequencies, K equal ones have 1 - K / n, one alone 1 - 1 / n. Gaussian weights of D units have about
    1 / (2 sqrt(pi D)): .025 at D = 128. A matrix of zeros is left out (a count of 0).
    """

    def check(self, config):
        _fourier.check(self, config)

    def __call__(self, reading, config):
        inputs_NxP = _fourier.inputs(reading.params, config).reshape(-1, config.task.p)
        return {
            "inputs": of_frequencies(inputs_NxP),
            "outputs": of_frequencies(_fourier.outputs(reading.params, config)),
        }


def of_frequencies(function_NxP: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(Gini coefficient of the frequencies' norms, 1), or (0, 0) if there is none."""
    norm_K = jnp.sqrt(_fourier.power(function_NxP)[1:])
    live = norm_K.max() > 0
    return jnp.where(live, gini(jnp.where(live, norm_K, 1.0)), 0.0), live.astype(jnp.float32)


def gini(x_N: jax.Array) -> jax.Array:
    """sum_ij |x_i - x_j| / (2 n sum_i x_i) of numbers >= 0: 0 if they are equal, 1 - 1 / n if all but one are 0."""
    n = len(x_N)
    rank_N = jnp.arange(1, n + 1, dtype=x_N.dtype)
    return ((2 * rank_N - n - 1) * jnp.sort(x_N)).sum() / (n * x_N.sum())
