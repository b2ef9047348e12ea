"""Coherence of the gradients g_i of single training problems (Chatterjee & Zielinski 2020, arXiv 2008.01217):
alpha = |mean g_i|^2 / mean |g_i|^2, from 0 (they cancel) over 1 / n (they are orthogonal) to 1 (they are the same)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h import train
from e2h.measures import Measure
from e2h.measures._trees import norm
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class GradientCoherence(Measure):
    """alpha, as (n alpha, n): the sum is the paper's m-coherence. A count of 0 where every gradient is 0.

    A problem's loss is the sum over its reads. `chunk` gradients are held at once, for each seed.
    """

    chunk: int = setting(64, "problems whose gradients are held at once", low=1)

    def __call__(self, reading, config):
        batch = reading.batch

        def gradient_norm(problem):
            one = jax.tree.map(lambda a: a[None], problem)

            def loss(params):
                return config.loss(train.forward(config, params, one), one.target_BxR, one.weight_BxR)[0]

            return norm(jax.grad(loss)(reading.params))

        norm_B = jax.lax.map(gradient_norm, batch, batch_size=self.chunk)
        whole = norm(jax.grad(reading.mean_loss)(reading.params)) * batch.weight_BxR.sum()
        return coherence(whole, norm_B, (batch.weight_BxR > 0).any(1).sum(dtype=jnp.float32))


def coherence(norm_of_sum, norm_B, count):
    """(n alpha, n) from |sum g_i| and the |g_i|, of which those of padding are 0."""
    largest = norm_B.max()
    any_moves = largest > 0
    largest = jnp.where(any_moves, largest, 1.0)
    squares = jnp.square(norm_B / largest).sum()
    m = jnp.square(norm_of_sum / largest) / jnp.where(any_moves, squares, 1.0)
    return jnp.where(any_moves, m, 0.0), jnp.where(any_moves, count, 0.0)
