"""Positions: how a model learns where a token stands. Every hook does nothing unless a file overrides it, so a model
calls all of them and has no ladder over encodings."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from e2h.registry import Component
from e2h.tasks import NO_PLACE


@dataclasses.dataclass(frozen=True)
class Position(Component):
    """Pure hooks over a pytree of parameters, which is empty for most encodings.

    A place is an int32; NO_PLACE marks a token that stands in no order, which every hook leaves alone.
    """

    kind: ClassVar[str] = "position"

    def assign(self, key, place_L: jax.Array) -> jax.Array:
        """The places that the model is given for one problem; drawn when the batch is made, in training and tests."""
        del key
        return place_L

    def init(self, key, width: int, heads: int) -> Any:
        """Parameters."""
        del key, width, heads
        return {}

    def embed(self, params, x_BxLxD: jax.Array, place_BxL: jax.Array) -> jax.Array:
        """Adds to the embeddings."""
        del params, place_BxL
        return x_BxLxD

    def rotate(self, params, x_BxLxHxK: jax.Array, place_BxL: jax.Array) -> jax.Array:
        """Turns queries, and keys likewise."""
        del params, place_BxL
        return x_BxLxHxK

    def bias(self, params, query_BxQ: jax.Array, key_BxL: jax.Array, heads: int, causal: bool) -> jax.Array:
        """Added to the scaled attention logits, [B, H, Q, L] or broadcastable to it; from the places of both sides."""
        del params, query_BxQ, key_BxL, heads, causal
        return jnp.zeros((1, 1, 1, 1))

    def mask(self, query_BxQ: jax.Array, key_BxL: jax.Array, heads: int) -> jax.Array:
        """Which keys each head may attend to, bool [B, H, Q, L] or broadcastable to it."""
        del query_BxQ, key_BxL, heads
        return jnp.ones((1, 1, 1, 1), bool)


def has_place(place: jax.Array) -> jax.Array:
    return place != NO_PLACE
