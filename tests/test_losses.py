"""What every loss holds, and the numbers of each: where the softmax collapses and where it does not."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2h import registry
from e2h.config import Config
from e2h.losses.cross_entropy import CrossEntropy
from e2h.losses.mse import MeanSquaredError
from e2h.losses.stablemax import StableMax
from e2h.registry import Refused


def variants(component_type):
    choices = [
        [(f.name, c) for c in f.metadata["choices"]]
        for f, _ in registry.fields(component_type)
        if f.metadata["choices"]
    ]
    return [component_type(**dict(settings)) for settings in itertools.product(*choices)]


LOSSES = [loss for name in registry.names("loss") for loss in variants(registry.load("loss", name))]
every = pytest.mark.parametrize("loss", LOSSES, ids=str)


@functools.cache
def compiled(loss):
    """(sum, count, gradient of the sum), compiled once for all tests of a loss."""

    def outputs(*args):
        (total, count), gradient = jax.value_and_grad(loss, has_aux=True)(*args)
        return total, count, gradient

    return jax.jit(outputs)


def reads(seed=0):
    """Logits [2, 3, 4], targets and weights."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 2, (2, 3, 4)).astype(np.float32)
    return jnp.asarray(logits), jnp.asarray(draw.integers(0, 4, (2, 3)), jnp.int32), jnp.array([[1.0, 1, 0], [1, 0, 0]])


@pytest.fixture(autouse=True)
def x64_stays_off():
    yield
    assert not jax.config.jax_enable_x64 and jnp.zeros(()).dtype == jnp.float32


@every
def test_sum_and_count_are_float32_and_the_gradient_is_the_difference_quotient(loss):
    logits, target, weight = reads()
    logits = -jnp.abs(logits) if loss.name == "code_distance" else logits  # minus distances
    total, count, gradient = compiled(loss)(logits, target, weight)
    assert (total.dtype, count.dtype, gradient.dtype) == (jnp.float32,) * 3
    assert count == 3 and total > 0
    h = 0.25 if getattr(loss, "softmax_dtype", "") == "float16" else 0.01
    for index in [(0, 0, 0), (0, 1, 3), (1, 0, 2)]:
        above, below = (compiled(loss)(logits.at[index].add(e), target, weight)[0] for e in (h, -h))
        np.testing.assert_allclose(gradient[index], (above - below) / (2 * h), atol=0.02)


@every
@pytest.mark.parametrize("odd", [7.0, 1e30, np.inf, np.nan])
def test_reads_of_weight_zero_move_nothing(loss, odd):
    logits, target, weight = reads()
    want = compiled(loss)(logits, target, weight)
    got = compiled(loss)(jnp.where(weight[..., None] > 0, logits, odd), jnp.where(weight > 0, target, -7), weight)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert (got[2][weight == 0] == 0).all()


@every
def test_sums_of_parts_add_up(loss):
    whole = reads()
    total, count, gradient = compiled(loss)(*whole)
    halves = [compiled(loss)(*[jnp.stack([a[i], jnp.zeros_like(a[i])]) for a in whole]) for i in (0, 1)]
    np.testing.assert_allclose(sum(h[0] for h in halves), total, rtol=1e-6)
    assert sum(h[1] for h in halves) == count
    np.testing.assert_allclose(jnp.stack([h[2][0] for h in halves]), gradient, rtol=1e-6)


@every
@pytest.mark.parametrize("size", [0.0, 1e-20, 100.0, 3e4])
def test_gradients_are_finite_at_zero_and_at_large_logits(loss, size):
    logits, target, weight = reads()
    total, _, gradient = compiled(loss)(size * jnp.sign(logits), target, jnp.ones_like(weight))
    assert jnp.isfinite(total) and jnp.isfinite(gradient).all()


@every
def test_a_second_call_does_not_compile(loss):
    traces = []
    step = jax.jit(lambda *args: (traces.append(0), loss(*args))[1])
    for seed in (0, 1):
        step(*reads(seed))
    assert len(traces) == 1


@every
def test_vmap_equals_one_by_one(loss):
    args = [jnp.stack(leaves) for leaves in zip(reads(0), reads(1), strict=True)]
    together = jax.vmap(loss)(*args)[0]
    np.testing.assert_allclose(together, [loss(*reads(seed))[0] for seed in (0, 1)], rtol=1e-6)


def at(loss, logits, target=0):
    """(loss, gradient with respect to the logits) of one read."""
    logits = jnp.asarray(logits, jnp.float32)[None, None]
    total, _, gradient = compiled(loss)(logits, jnp.full((1, 1), target), jnp.ones((1, 1)))
    return float(total), np.asarray(gradient[0, 0], np.float64)


@pytest.mark.parametrize("dtype, tolerance", [("float16", 3e-3), ("float32", 1e-6), ("float64", 1e-7)])
def test_cross_entropy_equals_numpy(dtype, tolerance):
    logits, target, weight = reads()
    z = np.asarray(logits, np.float64)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    hot = np.eye(4)[np.asarray(target)]
    total, _, gradient = compiled(CrossEntropy(dtype))(logits, target, weight)
    np.testing.assert_allclose(total, -(np.log((p * hot).sum(-1)) * np.asarray(weight)).sum(), rtol=tolerance)
    np.testing.assert_allclose(gradient, (p - hot) * np.asarray(weight)[..., None], atol=tolerance)


@pytest.mark.parametrize(
    "dtype, z, collapsed",
    [
        ("float16", 8, False),
        ("float16", 14, True),
        ("float32", 14, False),
        ("float32", 30, True),
        ("float64", 30, False),
        ("float64", 45, True),
    ],
)
def test_the_softmax_collapses_by_its_type(dtype, z, collapsed):
    """113 classes, one logit z, the others 0: the sum of exponentials is 1 + 112 e^-z."""
    loss, gradient = at(CrossEntropy(dtype), [z] + [0] * 112)
    assert (loss == 0, gradient[0] == 0) == (collapsed, collapsed)
    if not collapsed:
        np.testing.assert_allclose([loss, -gradient[0]], 112 * np.exp(-z), rtol=0.3 if dtype == "float16" else 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "logits, p", [([0, 0], [1 / 2, 1 / 2]), ([1, -1], [4 / 5, 1 / 5]), ([3, -3], [16 / 17, 1 / 17])]
)
def test_stablemax_probabilities(dtype, logits, p):
    for target in (0, 1):
        np.testing.assert_allclose(at(StableMax(dtype), logits, target)[0], -np.log(p[target]), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("z", [0, 0.5, 3, 1e3, 1e6])
def test_stablemax_gradient_falls_like_one_over_z(dtype, z):
    others = np.array([0.25, -2, 0])
    s = np.concatenate([[z + 1], np.where(others >= 0, others + 1, 1 / (1 - others))])
    _, gradient = at(StableMax(dtype), [z, *others])
    np.testing.assert_allclose(gradient[0], -(1 - s[0] / s.sum()) / (z + 1), rtol=1e-6 if dtype == "float64" else 0.1)
    assert gradient[0] < 0


@pytest.mark.parametrize("predicted", [0, 1 / 5])
def test_mse_of_constant_predictors(predicted):
    want = 1 / 5 if predicted == 0 else 1 / 5 * (1 - 1 / 5)
    assert at(MeanSquaredError(), [predicted] * 5)[0] == pytest.approx(want)


def test_code_distance_is_minus_the_logit_of_the_answer_and_for_its_own_model_alone():
    loss = registry.load("loss", "code_distance")()
    logits = jnp.array([[-1.0, -2.0], [-0.5, -0.25]])
    np.testing.assert_allclose(loss.per_read(logits, jnp.array([1, 0])), [2.0, 0.5])
    with pytest.raises(Refused, match="code_distance has no least value for the logits of model mlp"):
        Config(loss=loss).check()
