"""Spectra of weights over residues: waves whose numbers are known, through every model that is read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _tiny import TABLE

from e2h import registry, train
from e2h.config import Config
from e2h.layouts.causal import Causal
from e2h.layouts.query import Query
from e2h.layouts.table import Table
from e2h.measures import Reading
from e2h.measures.fourier_ipr import FourierIPR
from e2h.models.lstm import LSTM
from e2h.models.mlp import MLP
from e2h.models.rnn import RNN
from e2h.models.transformer import Transformer
from e2h.registry import Refused
from e2h.tasks.modular import Modular

P = 97
WAVES = Config(task=Modular(p=P), model=MLP(hidden=(24,)))


def wave(frequency, phase):
    """cos(2 pi k m / p + phase) over m, [p] for each k."""
    return np.cos(2 * np.pi * np.outer(frequency, np.arange(P)) / P + np.asarray(phase)[:, None])


def mlp(inputs_2xDxP, outputs_DxP):
    """The parameters of a one-hidden-layer network with these weights."""
    table_IxD = np.concatenate([w.T for w in inputs_2xDxP])
    return {"input": jnp.float32(table_IxD), "Dense_0": {"kernel": jnp.float32(outputs_DxP)}}


def analytic(frequency_D, seed=0):
    """The analytic solution of a + b (Gromov 2023): one frequency a neuron, the phase of the output the sum of both."""
    u_D, v_D = np.random.default_rng(seed).uniform(0, 2 * np.pi, (2, len(frequency_D)))
    amplitude = (2 / len(frequency_D)) ** (1 / 3)
    neurons = [amplitude * wave(k, phase) for k, phase in ((frequency_D, u_D), (frequency_D, v_D))]
    return mlp(neurons, amplitude * wave(-np.asarray(frequency_D), -u_D - v_D))


def value(measure, params, config=WAVES):
    total, count = jax.jit(lambda params: measure(Reading(params, None, None, None), config))(params)
    return float(total) / float(count)


def noise(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_the_analytic_solution_has_ipr_1():
    assert value(FourierIPR(), analytic(np.arange(1, 25))) == pytest.approx(1, abs=1e-5)
    assert value(FourierIPR(), jax.tree.map(lambda w: 1e-25 * w, analytic(np.arange(1, 25)))) == pytest.approx(1, 1e-5)


def test_the_ipr_of_gaussian_noise_is_2_over_the_number_of_bins():
    assert value(FourierIPR(), mlp(noise(2, 400, P), noise(400, P))) == pytest.approx(2 / 49, abs=0.001)


def test_ipr_equals_the_definition_in_numpy():
    inputs, outputs = noise(2, 24, P) + 2 * wave(np.arange(24), np.zeros(24)), noise(24, P)
    F = np.abs(np.fft.rfft(np.concatenate([*inputs, outputs])))
    assert value(FourierIPR(), mlp(inputs, outputs)) == pytest.approx((F**4).sum(1) @ (1 / (F**2).sum(1) ** 2) / 72)


def test_a_neuron_that_is_exactly_zero_is_left_out():
    params = analytic(np.arange(1, 25))
    dead = {"input": params["input"].at[:, 3].set(0), "Dense_0": {"kernel": params["Dense_0"]["kernel"].at[3].set(0)}}
    total, count = FourierIPR()(Reading(dead, None, None, None), WAVES)
    assert float(count) == 3 * 23 and float(total) == pytest.approx(3 * 23)
    total, count = FourierIPR()(Reading(jax.tree.map(jnp.zeros_like, dead), None, None, None), WAVES)
    assert (float(total), float(count)) == (0, 0)


MODELS = (MLP(hidden=(4, 6)), Transformer(width=4, heads=2, layers=1), RNN(width=4), LSTM(width=4))
LAYOUTS = (Table(), Table(equals=True), Query(), Causal())


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.name}{getattr(x, 'equals', '')}")
@pytest.mark.parametrize("model", MODELS, ids=lambda x: x.name)
def test_what_is_read_are_the_residues_of_every_model(model, layout):
    """Ones in the rows of residues and in the columns of their classes, noise elsewhere: what is read is constant."""
    config = dataclasses.replace(WAVES, task=Modular(p=5), model=model, layout=layout, measures=("fourier_ipr",))
    try:
        config.check()
    except Refused as refusal:
        assert "mlp reads rows" in str(refusal)
        return
    shapes = jax.eval_shape(lambda: train.init(config, 0).params)
    params = jax.tree.map(lambda a: np.float32(noise(*a.shape)), shapes)
    words, classes = len(config.layout.vocabulary(config.task)), len(config.layout.classes(config.task))
    first = "tokens" if model.name == "transformer" else "input"
    last = "Dense_1" if model.name == "mlp" else "readout"
    row_I = np.arange(len(params[first]))
    params[first][(row_I % words < 5) & (row_I // words < 2)] = 1
    params[last]["kernel"][:, np.arange(classes) < 5] = 1
    total, count = FourierIPR()(Reading(jax.tree.map(jnp.asarray, params), None, None, None), config)
    operands = 2 if model.name == "mlp" else 1
    units = {"mlp": (4, 6), "transformer": (4, 4), "rnn": (4, 4), "lstm": (16, 4)}[model.name]
    assert float(total) == float(count) == operands * units[0] + units[1]


def test_tokens_that_are_no_residues_are_refused():
    with pytest.raises(Refused, match="tokens of task permutation are not"):
        dataclasses.replace(TABLE, task=registry.load("task", "permutation")(n=3), measures=("fourier_ipr",)).check()
