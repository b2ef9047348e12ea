"""Every random number is a function of a seed, a name and indices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2h import rng


def data(key):
    return jax.random.key_data(key).tolist()


def test_a_stream_is_fixed_by_its_seed_name_and_indices():
    assert data(rng.stream(3, "order", 1, 2)) == data(rng.stream(3, "order", 1, 2))


@pytest.mark.parametrize("other", [(4, "order", 1, 2), (3, "place", 1, 2), (3, "order", 2, 1), (3, "order", 1)])
def test_seed_name_indices_and_their_order_all_matter(other):
    assert data(rng.stream(3, "order", 1, 2)) != data(rng.stream(*other))


def test_traced_arguments_give_the_same_key():
    traced = jax.jit(lambda seed, step: jax.random.key_data(rng.stream(seed, "problem", step)))(7, 11)
    assert traced.tolist() == data(rng.stream(7, "problem", 11))


def test_a_row_does_not_depend_on_the_batch_that_it_is_in(key):
    whole = jax.random.key_data(rng.rows(key, 0, 9))
    np.testing.assert_array_equal(jax.random.key_data(rng.rows(key, jnp.int32(3), 4)), whole[3:7])
    assert len(np.unique(whole, axis=0)) == 9
