"""What every measure holds on a reading, and the numbers of each on hand-made ones."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _tiny import TABLE

from e2h import evaluate, registry, train
from e2h.config import Config
from e2h.layouts.query import Query
from e2h.losses.cross_entropy import CrossEntropy
from e2h.losses.mse import MeanSquaredError
from e2h.losses.stablemax import StableMax
from e2h.measures import Reading
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
    total, count = measured(base)[1][name]
    assert (total.shape, total.dtype, count.shape, count.dtype) == ((2,), jnp.float32, (2,), jnp.float32)
    assert jnp.isfinite(total).all() and (count > 0).all()


def test_nothing_is_zero_or_collapsed_at_the_start(at_start):
    reads = 4 * 3  # a batch of four, whose answers have three digits
    assert [float(v) for v in at_start[1]["zero_loss"]] == [0, reads]
    assert [float(v) for v in at_start[1]["softmax_collapse"]] == [0, reads]


def test_weight_norm_equals_numpy(at_start):
    params, found = at_start
    squares = sum(np.square(np.asarray(w, np.float64)).sum() for w in jax.tree.leaves(params))
    np.testing.assert_allclose(found["weight_norm"], [np.sqrt(squares), 1], rtol=1e-6)
    assert WeightNorm()(Reading({"a": jnp.array([3.0]), "b": jnp.array(4.0)}, None, None, None), CONFIG)[0] == 5


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
