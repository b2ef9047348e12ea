"""Fixed sines and cosines added to the embedding (Vaswani et al. 2017, arXiv 1706.03762, section 3.5)."""

import dataclasses

import jax.numpy as jnp

from e2h.positions import Position, has_place
from e2h.registry import Refused, setting


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Position):
    """PE[p, 2k] = sin(p / base^(2k / D)), PE[p, 2k + 1] = cos of the same."""

    base: float = setting(10000.0, "the longest wavelength over 2 pi", low=1.0)

    def check(self, config) -> None:
        if config.model.width % 2:
            raise Refused(f"position sinusoidal needs an even --model.width, not {config.model.width}.")

    def embed(self, params, x_BxLxD, place_BxL):
        del params
        width = x_BxLxD.shape[-1]
        rate_K = self.base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
        angle_BxLxK = place_BxL[..., None].astype(jnp.float32) * rate_K[None, None]
        wave_BxLxD = jnp.stack([jnp.sin(angle_BxLxK), jnp.cos(angle_BxLxK)], -1).reshape(*place_BxL.shape, width)
        return x_BxLxD + jnp.where(has_place(place_BxL)[..., None], wave_BxLxD, 0.0).astype(x_BxLxD.dtype)
