"""Strict numerics for the whole suite, on eight virtual CPU devices."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

SAMPLING = {f"test_{room}" for room in ("tasks", "splits", "batches", "layouts", "curricula", "positions")}


@pytest.fixture(autouse=True, scope="module")
def no_key_is_used_twice(request):
    """An error where one key is consumed twice, also under vmap, in a loop, or by two jitted functions.

    Two keys of the same bits are two keys to JAX: it does not see one stream named in two places (test_house.py does),
    nor one index folded twice into a key. Only where problems are drawn: every jitted call loses its fast path.
    """
    with jax.debug_key_reuse(request.module.__name__ in SAMPLING):
        yield


@pytest.fixture
def key():
    return jax.random.key(0)
