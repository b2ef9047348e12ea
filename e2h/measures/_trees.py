"""Lengths and directions of trees of any size: the squares of a gradient of 1e-20 would be 0 in float32."""

import jax
import jax.numpy as jnp
import optax


def norm(tree) -> jax.Array:
    """The Euclidean norm of all leaves together."""
    tree, largest = _by_largest(tree)
    return largest * optax.tree.norm(tree)


def unit(tree):
    """A tree brought to norm 1; zeros stay."""
    tree, _ = _by_largest(tree)
    size = optax.tree.norm(tree)
    return jax.tree.map(lambda x: x / jnp.where(size > 0, size, 1.0), tree)


def _by_largest(tree):
    """(the tree over its largest entry, that entry)."""
    largest = jnp.stack([jnp.abs(x).max() for x in jax.tree.leaves(tree)]).max()
    return jax.tree.map(lambda x: x / jnp.where(largest > 0, largest, 1.0), tree), largest
