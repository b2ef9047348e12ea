"""A transformer, decoder or encoder, pre-, post- or without norm (Vaswani et al. 2017, arXiv 1706.03762)."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from e2h.models import Model, Network, embed, read
from e2h.models._initialisers import KERNELS, kernel_setting
from e2h.positions import Position
from e2h.registry import Refused, setting

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu}


@dataclasses.dataclass(frozen=True)
class Transformer(Model):
    """`causal` makes it a decoder, which does not look ahead; otherwise an encoder, which sees the whole sequence.

    The last block computes queries, and all that follows them, only where the model is read.
    """

    width: int = setting(128, "D, width of the residual stream", low=1)
    layers: int = setting(2, "blocks", low=1)
    heads: int = setting(4, "H, attention heads", low=1)
    expansion: int = setting(4, "hidden units of a feed-forward layer over the width", low=1)
    causal: bool = setting(True, "decoder (no look-ahead) or encoder")
    norm: str = setting("pre", "layer norm before or after each sublayer, or none", choices=("pre", "post", "none"))
    activation: str = setting("gelu", "of the feed-forward layers", choices=ACTIVATIONS)
    bias: bool = setting(True, "biases in linear layers")
    bias_in: str = setting("all", "which have them, if any", choices=("all", "feed_forward"), added=True)
    kernel_init: str = kernel_setting("lecun_normal")
    embed_std: float = setting(1.0, "standard deviation of the token embeddings at the start", low=0.0)

    uses_position: ClassVar[bool] = True

    def check(self, config) -> None:
        super().check(config)
        if self.width % self.heads:
            raise Refused(f"--model.width={self.width} is not a multiple of --model.heads={self.heads}.")

    def network(self, *, position, vocabulary, classes, length, dtype):
        del length
        return TransformerNetwork(self, position, vocabulary, classes, dtype)


class TransformerNetwork(Network):
    settings: Transformer
    position: Position
    vocabulary: int
    classes: int
    dtype: jnp.dtype

    def setup(self):
        s = self.settings
        self.tokens = self.param("tokens", nn.initializers.normal(s.embed_std), (self.vocabulary, s.width))
        self.places = self.param("places", self.position.init, s.width, s.heads)
        self.blocks = [Block(s, self.position, self.dtype) for _ in range(s.layers)]
        self.final_norm = nn.LayerNorm(dtype=self.dtype) if s.norm == "pre" else lambda x: x
        everywhere = s.bias and s.bias_in == "all"
        self.readout = nn.Dense(self.classes, everywhere, dtype=self.dtype, kernel_init=KERNELS[s.kernel_init])

    def embed(self, tokens_BxLxC, place_BxL):
        x_BxLxD = embed(self.tokens, tokens_BxLxC).astype(self.dtype)
        return self.position.embed(self.places, x_BxLxD, place_BxL)

    def seen(self, index_BxQ, place_BxL, length_B):
        """(bias, mask) [B, H, Q, L] of queries at sequence indices index_BxQ over all keys."""
        s = self.settings
        query_place_BxQ = jnp.take_along_axis(place_BxL, index_BxQ, axis=1)
        key_L = jnp.arange(place_BxL.shape[1])
        inside_BxQxL = key_L[None, None] < length_B[:, None, None]
        behind_BxQxL = key_L[None, None] <= index_BxQ[:, :, None]
        allowed = (inside_BxQxL & behind_BxQxL if s.causal else inside_BxQxL)[:, None]
        bias = self.position.bias(self.places, query_place_BxQ, place_BxL, s.heads, s.causal)
        return bias, allowed & self.position.mask(query_place_BxQ, place_BxL, s.heads)

    def logits(self, x):
        return self.readout(self.final_norm(x)).astype(jnp.float32)

    def __call__(self, batch):
        place_BxL = batch.place_BxL
        x_BxLxD = self.embed(batch.tokens_BxLxC, place_BxL)
        index_BxL = jnp.broadcast_to(jnp.arange(place_BxL.shape[1]), place_BxL.shape)
        everywhere = self.seen(index_BxL, place_BxL, batch.length_B)
        for block in self.blocks[:-1]:
            x_BxLxD = block(x_BxLxD, place_BxL, self.places, *everywhere)
        where_read = self.seen(batch.read_BxR, place_BxL, batch.length_B)
        x_BxRxD = self.blocks[-1](x_BxLxD, place_BxL, self.places, *where_read, batch.read_BxR)
        return self.logits(x_BxRxD)

    def prefill(self, batch):
        place_BxL = batch.place_BxL
        x_BxLxD = self.embed(batch.tokens_BxLxC, place_BxL)
        index_BxL = jnp.broadcast_to(jnp.arange(place_BxL.shape[1]), place_BxL.shape)
        everywhere, cache = self.seen(index_BxL, place_BxL, batch.length_B), []
        for block in self.blocks:
            cache.append(block.keys_and_values(x_BxLxD, place_BxL, self.places))
            x_BxLxD = block(x_BxLxD, place_BxL, self.places, *everywhere)
        return self.logits(read(x_BxLxD, batch.length_B[:, None] - 1))[:, 0], cache

    def decode(self, cache, token_B, index_B, place_BxL):
        index_Bx1, rows = index_B[:, None], jnp.arange(len(index_B))
        place_Bx1 = jnp.take_along_axis(place_BxL, index_Bx1, axis=1)
        x_Bx1xD = self.embed(token_B[:, None, None], place_Bx1)
        bias, mask = self.seen(index_Bx1, place_BxL, index_B + 1)
        new_cache = []
        for block, old in zip(self.blocks, cache, strict=True):
            new = block.keys_and_values(x_Bx1xD, place_Bx1, self.places)
            kept = jax.tree.map(lambda o, n: o.at[rows, index_B].set(n[:, 0]), old, new)
            x_Bx1xD = block.from_cache(x_Bx1xD, kept, place_Bx1, self.places, bias, mask)
            new_cache.append(kept)
        return self.logits(x_Bx1xD)[:, 0], new_cache


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    settings: Transformer
    position: Position
    dtype: jnp.dtype

    def setup(self):
        s = self.settings
        common = dict(dtype=self.dtype, kernel_init=KERNELS[s.kernel_init])
        attention = dict(use_bias=s.bias and s.bias_in == "all", **common)
        heads = (s.heads, s.width // s.heads)
        self.query = nn.DenseGeneral(heads, **attention)
        self.key = nn.DenseGeneral(heads, **attention)
        self.value = nn.DenseGeneral(heads, **attention)
        self.out = nn.DenseGeneral(s.width, axis=(-2, -1), **attention)
        self.up = nn.Dense(s.expansion * s.width, s.bias, **common)
        self.down = nn.Dense(s.width, s.bias, **common)
        self.norm_1, self.norm_2 = nn.LayerNorm(dtype=self.dtype), nn.LayerNorm(dtype=self.dtype)

    def before(self, norm, x):
        return norm(x) if self.settings.norm == "pre" else x

    def after(self, norm, x):
        return norm(x) if self.settings.norm == "post" else x

    def keys_and_values(self, x_BxLxD, place_BxL, places):
        h_BxLxD = self.before(self.norm_1, x_BxLxD)
        return self.position.rotate(places, self.key(h_BxLxD), place_BxL), self.value(h_BxLxD)

    def from_cache(self, x_BxQxD, keys_and_values, place_BxQ, places, bias, mask):
        """The block's output for queries x_BxQxD over given keys and values [B, L, H, K]."""
        query = self.query(self.before(self.norm_1, x_BxQxD))
        query = self.position.rotate(places, query, place_BxQ)
        heads_BxQxHxK = jax.nn.dot_product_attention(query, *keys_and_values, bias=bias, mask=mask)
        x_BxQxD = self.after(self.norm_1, x_BxQxD + self.out(heads_BxQxHxK))
        hidden = ACTIVATIONS[self.settings.activation](self.up(self.before(self.norm_2, x_BxQxD)))
        return self.after(self.norm_2, x_BxQxD + self.down(hidden))

    def __call__(self, x_BxLxD, place_BxL, places, bias, mask, read_BxR=None):
        """The block's output at every token, or only at the sequence indices read_BxR."""
        keys_and_values = self.keys_and_values(x_BxLxD, place_BxL, places)
        if read_BxR is not None:
            x_BxLxD, place_BxL = read(x_BxLxD, read_BxR), jnp.take_along_axis(place_BxL, read_BxR, axis=1)
        return self.from_cache(x_BxLxD, keys_and_values, place_BxL, places, bias, mask)
