"""How much inductive bias a training set leaves to the learner (Boopathy et al. 2023, arXiv 2305.01034).

Of all functions on the data's manifold that vary no faster than classes must be told apart, and that fit the training
problems, few answer new ones within an error; the complexity is minus the logarithm of their share. It is a number of
the problems alone, not of the network: exponential in the manifold's dimension, nearly flat in the number of problems.
Compare orders of magnitude between tasks measured alike, and nothing finer: a dimension off by one moves it by several.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from e2h.measures import Measure
from e2h.registry import setting

LN2, LN10 = math.log(2), math.log(10)


@dataclasses.dataclass(frozen=True)
class InductiveBias(Measure):
    """log10 of the bits. A prompt is a point: its token ids over the largest, as an MLP with `numbers` reads it.

    Dimension, radius (about the mean) and the least distance between two classes are estimated from at most `points`
    problems of the step's batch. There is no value (a count of 0) where all nearest neighbours are equally far, as
    among strings of bits, where no class differs, or where the training set decides everything.
    """

    error: float = setting(0.01, "that answers to new problems may have", above=0.0)
    points: int = setting(1000, "problems that distances are taken among", low=2)
    neighbours: int = setting(5, "of a point, for the dimension", low=2)

    def __call__(self, reading, config):
        batch = jax.tree.map(lambda a: a[: self.points], reading.batch)
        words = len(config.layout.vocabulary(config.task))
        live_B = (batch.weight_BxR > 0).any(1)
        point_BxP = batch.tokens_BxLxC.reshape(len(live_B), -1).astype(jnp.float32) / max(1, words - 1)
        squared_BxB = jax.lax.map(lambda point_P: jnp.square(point_BxP - point_P[None]).sum(-1), point_BxP)
        pair_BxB = live_B[:, None] & live_B[None] & ~jnp.eye(len(live_B), dtype=bool)
        distance_BxB = jnp.where(pair_BxB, jnp.sqrt(squared_BxB), jnp.inf)
        differ_BxB = (batch.target_BxR[:, None] != batch.target_BxR[None]).any(-1)
        mean_P = jnp.where(live_B[:, None], point_BxP, 0.0).sum(0) / live_B.sum(dtype=jnp.float32)
        value = log10_bits(
            dimension=intrinsic_dimension(distance_BxB, live_B, self.neighbours),
            radius=jnp.where(live_B, jnp.linalg.norm(point_BxP - mean_P[None], axis=1), 0.0).max(),
            margin=jnp.where(differ_BxB, distance_BxB, jnp.inf).min(),
            count=(reading.batch.weight_BxR > 0).any(1).sum(dtype=jnp.float32),
            classes=len(config.layout.classes(config.task)),
            error=self.error,
        )
        known = jnp.isfinite(value)
        return jnp.where(known, value, 0.0), known.astype(jnp.float32)


def intrinsic_dimension(distance_NxN, live_N, neighbours: int) -> jax.Array:
    """Of the manifold that points lie on, from their distances (inf for no pair): the maximum-likelihood estimate.

    Levina & Bickel 2004, with the inverses averaged over the points (MacKay & Ghahramani 2005): per point the mean of
    ln(T_k / T_j) over its k nearest. Infinite if all of these are equally far, for all points.
    """
    nearest_NxK = -jax.lax.top_k(-distance_NxN, max(1, min(neighbours, len(live_N) - 1)))[0]  # a single one has none
    whole_N = live_N & jnp.isfinite(nearest_NxK).all(1) & (nearest_NxK[:, 0] > 0)
    log_NxK = jnp.log(jnp.where(whole_N[:, None], nearest_NxK, 1.0))
    inverse_N = (log_NxK[:, -1:] - log_NxK[:, :-1]).mean(1)
    return whole_N.sum(dtype=jnp.float32) / jnp.where(whole_N, inverse_N, 0.0).sum()


def log10_bits(*, dimension, radius, margin, count, classes: int, error: float) -> jax.Array:
    """log10 of the complexity in bits, all in logarithms, since it passes 1e38. NaN or infinite if there is none.

    Args:
      dimension: m, of the data's manifold.
      radius: R, of the data.
      margin: the least distance between points of different classes.
      count: n, training problems.
    """
    m, outputs = dimension, classes - 1
    highest = 2 * math.pi * radius / margin  # M, the frequency that tells the classes apart on a sphere
    degree = (jnp.sqrt(jnp.square(m - 1) + 4 * jnp.square(highest)) - (m - 1)) / 2  # K, of its spherical harmonics
    harmonics = jnp.logaddexp(_ln_choose(m + degree, m), _ln_choose(m + degree - 1, m))  # ln E
    free = math.log(2 * outputs * classes) + harmonics
    left = free + jnp.log1p(-jnp.exp(jnp.log(count * outputs) - free))  # less what the training problems fix
    slope = jnp.log(degree) + 0.5 * math.log(outputs) - jnp.log(radius)  # Lipschitz constant
    reach = (
        0.5 * jnp.log(m / 6) + jnp.log(radius) - jnp.log(count) / m
        + (LN2 + (m + 1) / 2 * math.log(math.pi) + math.log(classes) - gammaln((m + 1) / 2)) / m
    )  # fmt: skip
    bits_each = (0.5 * math.log(outputs) + 0.5 * math.log(classes) - math.log(error) + slope + reach) / LN2
    return (left + jnp.log(bits_each)) / LN10


def _ln_choose(n, k):
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
