"""What every measure holds on a reading, and the numbers of each on hand-made ones."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _tiny import TABLE

from e2h import batches, evaluate, registry, train
from e2h.config import Config
from e2h.layouts.query import Query
from e2h.losses.cross_entropy import CrossEntropy
from e2h.losses.mse import MeanSquaredError
from e2h.losses.stablemax import StableMax
from e2h.measures import Reading
from e2h.measures.naive_alignment import NaiveAlignment
from e2h.measures.softmax_collapse import SoftmaxCollapse
from e2h.measures.weight_norm import WeightNorm
from e2h.measures.zero_loss import ZeroLoss
from e2h.models.rnn import RNN
from e2h.registry import Refused
from e2h.splits.length import Length
from e2h.tasks.addition import Addition

NAMES = tuple(registry.names("measure"))
CONFIG = Config(
    task=Addition(zero_pad=True),
    split=Length(train_max=2, test_max=3),
    layout=Query(),
    model=RNN(width=4),
    batch_size=4,
)
BASES = {"digits": CONFIG, "residues": TABLE}


def fitting(config):
    """The config with all measures that it can have."""

    def fits(name):
        try:
            dataclasses.replace(config, measures=(name,)).check()
        except Refused:
            return False
        return True

    return dataclasses.replace(config, measures=tuple(filter(fits, NAMES)))


@functools.cache
def measured(base):
    """(parameters, {name: (sum, count)}) of two seeds of a run that has not begun, by the real path."""
    config = fitting(BASES[base])

    def of_seed(seed):
        data, params = config.split.prepare(config.task, seed), train.init(config, seed).params
        return params, evaluate.measure(config, data, seed, params, 0)

    return jax.jit(jax.vmap(of_seed), compiler_options={"xla_backend_optimization_level": 0})(jnp.arange(2))


@pytest.fixture
def at_start():
    return jax.tree.map(lambda a: a[0], measured("digits"))


def test_every_measure_fits_one_base():
    assert {*fitting(CONFIG).measures, *fitting(TABLE).measures} == set(NAMES)


@pytest.mark.parametrize("base, name", [(base, name) for base in BASES for name in fitting(BASES[base]).measures])
def test_a_sum_and_a_count_that_are_finite(base, name):
    columns = [pair for column, pair in measured(base)[1].items() if column.partition(":")[0] == name]
    assert columns
    for total, count in columns:
        assert (total.shape, total.dtype, count.shape, count.dtype) == ((2,), jnp.float32, (2,), jnp.float32)
        assert jnp.isfinite(total).all() and (count > 0).all()


def test_no_column_looks_like_a_setting_or_a_count():
    """A dot marks the settings of a grid's cells, and `_count` the second column of a measure."""
    columns = [column for base in BASES for column in measured(base)[1]]
    assert not [column for column in columns if "." in column or column.endswith("_count")]


def test_nothing_is_zero_or_collapsed_at_the_start(at_start):
    reads = 4 * 3  # a batch of four, whose answers have three digits
    assert [float(v) for v in at_start[1]["zero_loss"]] == [0, reads]
    assert [float(v) for v in at_start[1]["softmax_collapse"]] == [0, reads]


def test_weight_norm_equals_numpy(at_start):
    params, found = at_start
    squares = sum(np.square(np.asarray(w, np.float64)).sum() for w in jax.tree.leaves(params))
    np.testing.assert_allclose(found["weight_norm"], [np.sqrt(squares), 1], rtol=1e-6)
    assert WeightNorm()(Reading({"a": jnp.array([3.0]), "b": jnp.array(4.0)}, None, None, None), CONFIG)[0] == 5


def test_the_parts_of_a_measure_are_columns_of_their_own():
    params, found = measured("residues")
    norms = {k: v for k, v in found.items() if k.startswith("layer_norms")}
    assert set(norms) == {"layer_norms:input", "layer_norms:Dense_0"} and set(params) == {"input", "Dense_0"}
    for name in params:
        (w,) = jax.tree.leaves(params[name])
        squares = np.square(np.asarray(w, np.float64)).sum((1, 2))
        np.testing.assert_allclose(norms[f"layer_norms:{name}"], [np.sqrt(squares), [1, 1]], rtol=1e-6)


class Weights:
    """A batch of which only the weights are read."""

    weight_BxR = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


def logits(*right):
    """Six reads [2, 3] over 113 classes: the first logit is given, the others are 0."""
    return jnp.zeros((2, 3, 113)).at[..., 0].set(jnp.array(right, jnp.float32).reshape(2, 3))


@pytest.mark.parametrize(
    "loss, collapsed",
    [
        (CrossEntropy("float16"), 3),
        (CrossEntropy("float32"), 2),
        (CrossEntropy("float64"), 1),
        (StableMax("float64"), 1),
        (MeanSquaredError(), 2),  # has no type of its own, so float32
    ],
    ids=str,
)
def test_softmax_collapse_by_the_type_of_the_loss(loss, collapsed):
    reading = Reading(None, Weights, logits(14, 30, 45, 45, 45, 0), None)
    total, count = SoftmaxCollapse()(reading, dataclasses.replace(CONFIG, loss=loss))
    assert (float(total), float(count)) == (collapsed, 3)
    assert total.dtype == jnp.float32 and not jax.config.jax_enable_x64


def test_zero_loss_counts_reads_of_weight_one():
    loss_BxR = jnp.array([[0.0, 1e-30, 0.0], [0.0, 0.0, 1.0]])
    total, count = ZeroLoss()(Reading(None, Weights, None, loss_BxR), CONFIG)
    assert (float(total), float(count)) == (2, 3)


def softmax_regression(scale=1.0):
    """(reading, numbers of its kind) of a linear classifier x W of five inputs, six problems and three classes."""
    draw = np.random.default_rng(0)
    x_NxI, w_IxV, target_N = draw.normal(size=(6, 5)), draw.normal(size=(5, 3)), draw.integers(0, 3, 6)

    def mean_loss(params):
        z_NxV = jnp.asarray(x_NxI, jnp.float32) @ params["w"] + 0 * params["unused"].sum()
        return scale * CrossEntropy().per_read(z_NxV, jnp.asarray(target_N)).mean()

    params = {"w": jnp.asarray(w_IxV, jnp.float32), "unused": jnp.full((2,), 3.0)}
    return Reading(params, None, None, None, mean_loss), (x_NxI, w_IxV, target_N)


def alignment(reading):
    total, count = NaiveAlignment()(reading, CONFIG)
    assert float(count) == 1
    return float(total)


def test_naive_alignment_equals_the_closed_form_of_a_linear_classifier():
    reading, (x_NxI, w_IxV, target_N) = softmax_regression()
    p_NxV = np.exp(x_NxI @ w_IxV) / np.exp(x_NxI @ w_IxV).sum(1, keepdims=True)
    minus_gradient = x_NxI.T @ (np.eye(3)[target_N] - p_NxV) / len(x_NxI)
    norm_of_all = np.sqrt(np.square(w_IxV).sum() + 2 * 3.0**2)  # parameters without a gradient count as well
    expected = (minus_gradient * w_IxV).sum() / np.linalg.norm(minus_gradient) / norm_of_all
    assert abs(expected) > 0.05
    np.testing.assert_allclose(alignment(reading), expected, rtol=1e-5)


def test_naive_alignment_is_one_where_only_the_size_of_the_weights_counts():
    params = {"a": jnp.array([3.0, -1.0]), "b": jnp.array([[2.0]])}
    squares = lambda params: (params["a"] ** 2).sum() + (params["b"] ** 2).sum()  # noqa: E731
    grows = Reading(params, None, None, None, lambda params: 1 / squares(params))
    shrinks = Reading(params, None, None, None, squares)
    assert [alignment(grows), alignment(shrinks)] == pytest.approx([1, -1], rel=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_naive_alignment_does_not_depend_on_the_size_of_the_loss(scale):
    """The squares of so small a gradient are 0 in float32, those of so large a one infinite."""
    np.testing.assert_allclose(alignment(softmax_regression(scale)[0]), alignment(softmax_regression()[0]), rtol=1e-5)


def test_naive_alignment_of_nothing_is_zero():
    flat = softmax_regression(0.0)[0]
    assert alignment(flat) == 0
    zero = softmax_regression()[0]._replace(params=jax.tree.map(jnp.zeros_like, flat.params))
    assert alignment(zero) == 0


def test_naive_alignment_is_of_the_loss_that_is_trained(at_start):
    """By the real path: the slope of the loss as all weights grow together, by a difference instead of a gradient."""
    params, found = at_start
    rows = jnp.arange(4)
    draw = lambda: batches.train_batch(CONFIG, (), 0, 0, rows, batches.difficulty(CONFIG, 0, rows), 2)[1]  # noqa: E731
    batch = jax.jit(draw)()

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        total, count = CONFIG.loss(train.forward(CONFIG, params, batch), batch.target_BxR, batch.weight_BxR)
        return total / count

    grown = [float(loss(jax.tree.map(lambda w, s=s: w * s, params))[0]) for s in (0.99, 1.01)]
    slope = (grown[1] - grown[0]) / 0.02  # g.w
    norms = float(optax.tree.norm(loss(params)[1]) * optax.tree.norm(params))
    np.testing.assert_allclose(found["naive_alignment"][0], -slope / norms, rtol=1e-2)
