"""The part of the logits that key frequencies carry (Nanda et al. 2023, arXiv 2301.05217): what the progress measures
`restricted_loss` and `excluded_loss` keep and take away."""

import jax
import jax.numpy as jnp

from e2h import batches, train
from e2h.measures import _fourier
from e2h.registry import Refused

SHARE = 0.9  # of the embedding's power but for its constant
MOST = 6  # key frequencies


def check(measure, config) -> None:
    """Raises `Refused` unless the answer is a sum of two residues, said at one read, for each of all pairs."""
    _fourier.check(measure, config)
    if config.task.op != "add":
        raise Refused(
            f"measure {measure.name} projects on waves in x + y, which do not solve --task.op={config.task.op}."
        )
    if config.task.unordered:
        raise Refused(f"measure {measure.name} averages over all pairs of a sum: leave out --task.unordered.")
    if config.layout.reads(config.task, 1) != 1:
        raise Refused(
            f"measure {measure.name} needs a layout with one read for each problem, not {config.layout.name}."
        )


def key_frequencies(params, config) -> jax.Array:
    """bool [p // 2 + 1]: the fewest frequencies that carry 90 % of the embedding's power, and the strongest 6 at most.

    The paper takes those that the trained network uses, five at p = 113. Here they are found anew at each step. Hence
    the limit: the embedding of a network that only memorizes is noise, 90 % of which are nearly all frequencies, and on
    all of them the mean logits at a sum, to which each problem learned by heart adds, would already be right.
    """
    p = config.task.p
    power_K = _fourier.power(_fourier.inputs(params, config).reshape(-1, p))[1:]
    strongest_K = jnp.argsort(-power_K)  # stable: of equal ones the lowest
    sorted_K = power_K[strongest_K]
    before_K = jnp.cumsum(sorted_K) - sorted_K
    chosen_K = (before_K < SHARE * power_K.sum()) & (jnp.arange(len(power_K)) < MOST)
    return jnp.zeros(p // 2 + 1, bool).at[1 + strongest_K].set(chosen_K)


def mean_by_sum(params, config) -> tuple[jax.Array, jax.Array]:
    """(logits [p, V] at each sum s = x + y mod p, averaged over the p pairs that have it; its class int32 [p])."""
    p, batch = config.task.p, batches.table(config)
    logits_XxYxV = train.forward(config, params, batch)[:, 0].reshape(p, p, -1)
    x_X = jnp.arange(p)
    y_SxX = (x_X[:, None] - x_X[None]) % p
    return logits_XxYxV[x_X[None], y_SxX].mean(1), batch.target_BxR[:p, 0]  # the first p rows are 0 + y


def keep(mean_PxV: jax.Array, kept_K: jax.Array) -> jax.Array:
    """[p, V]: of functions of the sum, the waves whose frequency is kept.

    cos w_k (x + y) and sin w_k (x + y) are functions of the sum and orthogonal, so that projecting the logits of the
    whole table on them is projecting their means at each sum.
    """
    wave_KxV = jnp.fft.rfft(mean_PxV, axis=0)
    return jnp.fft.irfft(jnp.where(kept_K[:, None], wave_KxV, 0.0), n=len(mean_PxV), axis=0)
