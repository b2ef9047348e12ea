"""ALiBi (Press et al. 2022, arXiv 2108.12409): attention falls linearly with distance, each head at its own slope."""

import dataclasses

import jax.numpy as jnp

from e2h.positions import Position, has_place
from e2h.registry import Refused


@dataclasses.dataclass(frozen=True)
class Alibi(Position):
    """bias = -m_h |i - j| with m_h = 2^(-8 h / H), h = 1..H.

    Without a causal mask the keys before the query get + m_h / 2, so that left and right differ (the bidirectional
    variant of Ruoss et al. 2023's code, arXiv 2305.16843).
    """

    def check(self, config) -> None:
        if config.model.heads & (config.model.heads - 1):
            raise Refused(f"position alibi needs a power of two for --model.heads, not {config.model.heads}.")

    def bias(self, params, query_BxQ, key_BxL, heads, causal):
        del params
        slope_H = 2.0 ** (-8.0 * jnp.arange(1, heads + 1, dtype=jnp.float32) / heads)
        ahead_BxQxL = (query_BxQ[:, :, None] - key_BxL[:, None, :]).astype(jnp.float32)
        fall_BxQxL = -jnp.abs(ahead_BxQxL) + (0.0 if causal else 0.5) * (ahead_BxQxL > 0).astype(jnp.float32)
        ordered_BxQxL = has_place(query_BxQ)[:, :, None] & has_place(key_BxL)[:, None, :]
        return jnp.where(ordered_BxQxL, fall_BxQxL, 0.0)[:, None] * slope_H[None, :, None, None]
