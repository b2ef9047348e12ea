"""Winsorized gradients (Chatterjee 2020, arXiv 2002.10657): what few problems ask for, alone, is cut down.

Of each coordinate, the gradients of single problems are clipped to their c-th smallest and c-th largest before they are
averaged. A direction that many problems share passes; one that serves a memorized answer does not.
"""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.gradients import GradientRule
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class Winsorized(GradientRule):
    """With `share` s of G gradients, floor(s G) at either end are clipped to the next; 0 is the plain gradient.

    `groups` takes means of so many groups of problems in place of single ones; three groups with a share of 1/3 are the
    median of three (M3; Zielinski et al. 2020, arXiv 2003.07422). Memory: G times the parameters.
    """

    share: float = setting(0.02, "of the gradients, clipped at either end", low=0.0, high=0.5, varies=True)
    groups: int = setting(0, "of problems whose mean gradients are taken, on each device; 0: each problem", low=0)

    def __call__(self, gradient_at, params):
        auxiliary, reads_G, gradient = gradient_at.of_groups(params, self.groups)
        live_G = reads_G > 0
        count = live_G.sum(dtype=jnp.int32)
        # Of a share that stands for a whole number, 2 of 100, float32 may fall short by rounding.
        cut = jnp.floor(self.share * count.astype(jnp.float32) + 1e-3).astype(jnp.int32)
        cut = jnp.clip(cut, 0, jnp.maximum(count - 1, 0) // 2)

        def winsorize(g):
            live = live_G.reshape(-1, *[1] * (g.ndim - 1))
            low, high = (sign * nth_smallest(jnp.where(live, sign * g, jnp.inf), cut) for sign in (1.0, -1.0))
            weight = (reads_G / jnp.maximum(reads_G.sum(), 1)).astype(g.dtype).reshape(live.shape)
            return (jnp.where(live, jnp.clip(g, low[None], high[None]), 0.0) * weight).sum(0)

        return auxiliary, jax.tree.map(winsorize, gradient)


def nth_smallest(x_GxP, n):
    """[P]: the entries of rank n (from 0, may be traced) along the first axis, at the cost of n + 1 passes.

    A sort of many short columns takes XLA on a CPU ten times as long where n is small.
    """

    def upward(_, least_P):
        there_P = (x_GxP <= least_P[None]).sum(0) > n
        return jnp.where(there_P, least_P, jnp.where(x_GxP > least_P[None], x_GxP, jnp.inf).min(0))

    return jax.lax.fori_loop(0, n + 1, upward, jnp.full_like(x_GxP[0], -jnp.inf))
