"""Models: Flax Linen networks behind settings."""

import abc
import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from e2h.positions import Position
from e2h.registry import Component, Refused
from e2h.tasks import BLANK


@dataclasses.dataclass(frozen=True)
class Model(Component):
    """A network from a Batch to logits at its reads."""

    kind: ClassVar[str] = "model"
    causal: ClassVar[bool] = True  # whether the output at a token is blind to later tokens
    uses_position: ClassVar[bool] = False

    def check(self, config) -> None:
        if not self.uses_position and config.position.name != "none":
            raise Refused(f"model {self.name} takes no position encoding; leave out --position={config.position.name}.")

    @abc.abstractmethod
    def network(self, *, position: Position, vocabulary: int, classes: int, length: int, dtype: jnp.dtype) -> "Network":
        """The Linen module for a vocabulary of ids, output classes, the longest sequence, and a compute type."""


class Network(nn.Module):
    """A Linen module with these methods. The cache is an explicit pytree; what cannot generate leaves out the last two.

    __call__(batch) -> float32 logits [B, R, V] at batch.read_BxR
    prefill(batch) -> (logits [B, V] after the first length_B tokens of each row, cache of what they leave behind)
    decode(cache, token_B, index_B, place_BxL) -> (logits [B, V], cache) after one more token each, which stands at
        index_B of a sequence with places place_BxL
    """


def network(config) -> Network:
    """The Linen module of a config."""
    return config.model.network(
        position=config.position,
        vocabulary=len(config.layout.vocabulary(config.task)),
        classes=len(config.layout.classes(config.task)),
        length=config.longest,
        dtype=jnp.dtype(config.compute_dtype),
    )


def embed(table_VxD: jax.Array, tokens_BxLxC: jax.Array) -> jax.Array:
    """Sum over channels of table rows, [B, L, D]; a blank channel adds nothing."""
    blank = tokens_BxLxC == BLANK
    rows_BxLxCxD = table_VxD[jnp.maximum(tokens_BxLxC, 0)]
    return jnp.where(blank[..., None], 0.0, rows_BxLxCxD).sum(-2)


def read(x_BxLxD: jax.Array, read_BxR: jax.Array) -> jax.Array:
    """Rows of x at the reads, [B, R, D]."""
    return jnp.take_along_axis(x_BxLxD, read_BxR[..., None], axis=1, mode="fill", fill_value=jnp.nan)
