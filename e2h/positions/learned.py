"""A learned vector for each place, added to the embedding. Places that training never showed are noise."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.positions import Position, has_place
from e2h.registry import Refused, setting


@dataclasses.dataclass(frozen=True)
class Learned(Position):
    """A table of `max_length` places."""

    max_length: int = setting(512, "places in the table", low=1)
    std: float = setting(1.0, "standard deviation of the table at the start", low=0.0)

    def check(self, config) -> None:
        if config.longest > self.max_length:
            raise Refused(
                f"position learned has {self.max_length} places and the longest sequence has {config.longest}; "
                f"raise --position.max_length."
            )

    def init(self, key, width, heads):
        del heads
        return {"table": self.std * jax.random.normal(key, (self.max_length, width))}

    def embed(self, params, x_BxLxD, place_BxL):
        # A place beyond the table is NaN, never the last row.
        rows_BxLxD = params["table"].at[place_BxL].get(mode="fill", fill_value=jnp.nan)
        return x_BxLxD + jnp.where(has_place(place_BxL)[..., None], rows_BxLxD, 0.0).astype(x_BxLxD.dtype)
