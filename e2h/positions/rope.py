"""Rotary embedding (Su et al. 2021, arXiv 2104.09864): queries and keys are turned by angles that grow with the place,
so that their product depends on the difference of places alone."""

import dataclasses

import jax.numpy as jnp

from e2h.positions import Position
from e2h.registry import Refused, setting


@dataclasses.dataclass(frozen=True)
class Rope(Position):
    """Dimensions k and k + K / 2 of a head are a plane, turned by p base^(-2k / K)."""

    base: float = setting(10000.0, "the longest wavelength over 2 pi", low=1.0)

    def check(self, config) -> None:
        if config.model.width // config.model.heads % 2:
            raise Refused("position rope needs an even number of dimensions a head: --model.width / --model.heads.")

    def rotate(self, params, x_BxLxHxK, place_BxL):
        del params
        half = x_BxLxHxK.shape[-1] // 2
        rate_K = self.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        place_BxL = jnp.maximum(place_BxL, 0)  # a token without a place is not turned
        angle_BxLx1xK = place_BxL[..., None, None].astype(jnp.float32) * rate_K[None, None, None]
        cos, sin = jnp.cos(angle_BxLx1xK).astype(x_BxLxHxK.dtype), jnp.sin(angle_BxLx1xK).astype(x_BxLxHxK.dtype)
        a, b = x_BxLxHxK[..., :half], x_BxLxHxK[..., half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
