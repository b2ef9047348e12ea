"""Spectra of weights over residues: waves whose numbers are known, through every model that is read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import quick_jit
from _tiny import TABLE

from e2h import registry, train
from e2h.config import Config
from e2h.layouts.causal import Causal
from e2h.layouts.query import Query
from e2h.layouts.table import Table
from e2h.measures import Reading, _fourier
from e2h.measures.fourier_entropy import FourierEntropy
from e2h.measures.fourier_gini import FourierGini, gini, of_frequencies
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
    total, count = quick_jit(lambda params: measure(Reading(params, None, None, None), config))(params)
    return float(total) / float(count)


def ginis(params):
    """Gini coefficients of the inputs and of the outputs."""
    found = quick_jit(lambda params: FourierGini()(Reading(params, None, None, None), WAVES))(params)
    assert [float(count) for _, count in found.values()] == [1, 1]
    return [float(found[part][0]) for part in ("inputs", "outputs")]


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


@pytest.mark.parametrize("used", [1, 2, 7, 48])
def test_equal_frequencies_have_closed_forms(used):
    """Each in neurons of its own, or the entropy would not be that of one wave; and all in every neuron."""
    apart = analytic(np.tile(np.arange(1, used + 1), 2))
    assert value(FourierEntropy(), apart) == pytest.approx(0, abs=1e-5)
    assert ginis(apart) == pytest.approx([1 - used / 48] * 2, abs=1e-5)
    units = noise(24, used)[:, :, None] + np.zeros(P)
    together = sum(wave(np.full(24, k + 1), units[:, k, 0]) for k in range(used))
    assert value(FourierEntropy(), mlp([together, 1e-25 * together], together)) == pytest.approx(np.log(used), abs=1e-5)
    assert ginis(mlp([together, 0 * together], 1e-25 * together)) == pytest.approx([1 - used / 48] * 2, abs=1e-5)


def test_entropy_and_gini_of_gaussian_noise():
    params = mlp(noise(2, 64, P), noise(400, P))
    assert value(FourierEntropy(), params) == pytest.approx((1 / np.arange(1, 50)).sum() - 1, abs=0.02)
    assert ginis(params) == pytest.approx([1 / np.sqrt(4 * np.pi * 128), 1 / np.sqrt(4 * np.pi * 400)], rel=0.25)
    one_N, _ = quick_jit(jax.vmap(of_frequencies))(jnp.float32(noise(400, 1, P)))
    assert float(one_N.mean()) == pytest.approx(1 - 0.5**0.5, abs=0.01)  # a single unit's norms are Rayleigh


@pytest.mark.parametrize("p", [7, 8])
def test_entropy_and_gini_equal_numpy_on_explicit_waves(p):
    """Cosines and sines written out instead of a transform; at an even p the last frequency has no sine."""
    config = Config(task=Modular(p=p), model=MLP(hidden=(6,)))
    inputs, outputs = noise(2, 6, p) + 1.0, noise(6, p)
    reading = Reading(mlp(inputs, outputs), None, None, None)
    angle = 2 * np.pi * np.outer(np.arange(p // 2 + 1), np.arange(p)) / p

    def amplitudes(functions):
        return np.hypot(functions @ np.cos(angle).T, functions @ np.sin(angle).T)

    squares = amplitudes(np.concatenate([*inputs, outputs])) ** 2
    q = squares / squares.sum(1, keepdims=True)
    entropy, ginis, *power = quick_jit(
        lambda reading: (
            FourierEntropy()(reading, config),
            FourierGini()(reading, config),
            _fourier.power(_fourier.inputs(reading.params, config).reshape(12, p)),
            _fourier.power(_fourier.outputs(reading.params, config)),
        )
    )(reading)
    total, count = entropy
    assert float(total) == pytest.approx(-(q * np.log(q)).sum(), rel=1e-5) and float(count) == 18
    length_K = np.hypot(np.linalg.norm(np.cos(angle), axis=1), np.linalg.norm(np.sin(angle), axis=1))
    for part, functions, power_K in (("inputs", inputs.reshape(12, p), power[0]), ("outputs", outputs, power[1])):
        unit_K = np.where((np.arange(p // 2 + 1) % (p / 2)) == 0, length_K, length_K / 2**0.5)
        x = np.linalg.norm(amplitudes(functions) / unit_K, axis=0)
        np.testing.assert_allclose((x**2).sum(), (functions**2).sum())
        np.testing.assert_allclose(x**2 / np.float64(power_K), np.abs(functions).max() ** 2, rtol=1e-5)
        want = np.abs(x[1:, None] - x[None, 1:]).sum() / (2 * (p // 2) * x[1:].sum())
        assert float(ginis[part][0]) == pytest.approx(want, rel=1e-5)


def test_gini_of_a_few_numbers():
    found = [float(gini(jnp.float32(x))) for x in ([2, 2, 2], [0, 0, 5], [3, 1], [1, 2, 3, 4])]
    assert found == pytest.approx([0, 2 / 3, 1 / 4, 1 / 4])


def test_a_matrix_of_zeros_has_no_spectrum():
    zero = jax.tree.map(jnp.zeros_like, analytic(np.arange(1, 25)))
    for measure in (FourierGini(), FourierEntropy()):
        found = quick_jit(lambda params, measure=measure: measure(Reading(params, None, None, None), WAVES))(zero)
        assert not any(map(float, jax.tree.leaves(found)))


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
