"""Greedy generation with a cache: the only generation loop."""

import jax
import jax.numpy as jnp

from e2h import train
from e2h.config import Config
from e2h.layouts import Batch
from e2h.tasks import BLANK


def generate(config: Config, params, batch: Batch) -> jax.Array:
    """What the model itself answers to the prompts of a batch of a generating layout, int32 ids [B, R].

    Of the batch only the tokens up to the first read (the prompt and its separator) are shown. Generation stops when
    every row has said its end mark; what would follow is filled with end marks.
    """
    network, variables = train.network(config), {"params": params}
    end, (rows, reads) = config.layout.end(config.task), batch.read_BxR.shape
    start_B = batch.read_BxR[:, 0]

    def take(logits_BxV, said_BxR, done_B, k):
        best_B = jnp.where(jnp.isfinite(logits_BxV).all(-1), jnp.argmax(logits_BxV, -1), BLANK)  # never class 0
        token_B = jnp.where(done_B, end, best_B.astype(jnp.int32))
        return said_BxR.at[:, k].set(token_B), done_B | (token_B == end)

    def cond(carry):
        k, _, _, done_B = carry
        return (k < reads) & ~done_B.all()

    def body(carry):
        k, cache, said_BxR, done_B = carry
        logits_BxV, cache = network.apply(
            variables, cache, said_BxR[:, k - 1], start_B + k, batch.place_BxL, method="decode"
        )
        return k + 1, cache, *take(logits_BxV, said_BxR, done_B, k)

    with jax.default_matmul_precision(config.precision):
        logits_BxV, cache = network.apply(variables, batch._replace(length_B=start_B + 1), method="prefill")
        nothing_BxR = jnp.full((rows, reads), end, jnp.int32)
        first = take(logits_BxV, nothing_BxR, jnp.zeros(rows, bool), 0)
        return jax.lax.while_loop(cond, body, (jnp.int32(1), cache, *first))[2]
