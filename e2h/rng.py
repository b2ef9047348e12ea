"""Named random streams. Every random number is a function of (seed, stream name, indices); no key is kept or saved."""

import zlib

import jax

POPULATION = 0  # the seed of draws that all seeds of a population share, such as the length of a step's batch


def stream(seed, name: str, *indices) -> jax.Array:
    """A typed key for `name` at `indices`.

    Args:
      seed: int or int32 scalar (may be traced).
      name: the stream's name; two names never share a key.
      *indices: ints or int32 scalars, folded in one after the other (step, difficulty, row, ...).
    """
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key


def rows(key: jax.Array, start, count: int) -> jax.Array:
    """`count` keys, one per example; row i's key depends on (key, start + i) alone, not on the batch or the device."""
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(start + jax.numpy.arange(count))
