"""Restricted and excluded loss: tables whose waves are known, and a network's table against NumPy in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import quick_jit
from _tiny import TABLE, init, prepare, replace

from e2h import batches, evaluate, parallel, train
from e2h.config import Config
from e2h.layouts.causal import Causal
from e2h.layouts.table import Table
from e2h.losses.cross_entropy import CrossEntropy
from e2h.measures import _progress
from e2h.models.mlp import MLP
from e2h.models.transformer import Transformer
from e2h.positions.learned import Learned
from e2h.registry import Refused
from e2h.splits.fraction import Fraction
from e2h.tasks.modular import Modular

P = 13
BOTH = ("restricted_loss", "excluded_loss")
WAVES = Config(
    task=Modular(p=P), split=Fraction(by="ordered"), model=MLP(hidden=(27,), activation="quadratic", bias=True),
    loss=CrossEntropy("float64"), batch_size=2**20, measures=BOTH,
)  # fmt: skip
THIRDS = 2 * np.pi * np.arange(3) / 3


def angle(k, p=P):
    return 2 * np.pi * k * np.arange(p) / p


def solution(amplitudes, bias=0.0):
    """A network whose logits are sum_k a_k cos w_k(x + y - c) + bias_c exactly.

    Nine quadratic neurons for each frequency, (cos(w x + u) + cos(w y + v))^2 read out by cos(w c + u + v) with u and v
    at thirds of a turn: of the products only cos(w (x + y) + u + v) does not cancel.
    """
    into, out = np.zeros((2, P, 27)), np.zeros((27, P))
    for i, (k, amplitude) in enumerate(amplitudes.items()):
        for j, (u, v) in enumerate((u, v) for u in THIRDS for v in THIRDS):
            into[:, :, 9 * i + j] = np.cos(angle(k) + u), np.cos(angle(k) + v)
            out[9 * i + j] = amplitude * np.cos(angle(k) + u + v) * 2 / 9
    params = {"input": into.reshape(2 * P, 27), "input_bias": np.zeros(27)}
    params |= {"Dense_0": {"kernel": out, "bias": np.broadcast_to(bias, P)}}
    return jax.tree.map(jnp.float32, params)


@pytest.fixture(scope="module")
def measured():
    """{name: mean} of the progress measures on the networks above, and of the training loss."""

    def found(params):
        data = WAVES.split.prepare(WAVES.task, 0)
        _, batch = batches.train_batch(WAVES, data, 0, 0, jnp.arange(batches.size(WAVES)), 1, 1)
        logits_BxRxV = train.forward(WAVES, params, batch)
        training = {"train": WAVES.loss(logits_BxRxV, batch.target_BxR, batch.weight_BxR)}
        return evaluate.measure(WAVES, data, 0, params, 0) | training, logits_BxRxV, batch

    compiled = quick_jit(found)

    def of(params):
        pairs, logits_BxRxV, batch = compiled(params)
        assert float(pairs["restricted_loss"][1]) == P**2 and float(pairs["excluded_loss"][1]) == P**2 // 2
        return {name: float(total) / float(count) for name, (total, count) in pairs.items()}, logits_BxRxV, batch

    return of


def closed_form(amplitudes):
    """ln sum_d exp(sum_k a_k cos w_k d) - sum_k a_k."""
    return np.log(np.exp(sum(a * np.cos(angle(k)) for k, a in amplitudes.items())).sum()) - sum(amplitudes.values())


@pytest.mark.parametrize("amplitudes", [{1: 3.0}, {2: 1.0, 5: 2.0}, {1: 2.0, 3: 2.0, 6: 9.0}], ids=str)
def test_waves_in_the_sum_are_all_that_restricted_keeps_and_excluded_leaves_out(measured, amplitudes):
    found, logits_BxRxV, batch = measured(solution(amplitudes))
    lag = np.asarray(batch.target_BxR) - np.arange(P)  # from a class to the sum
    want = sum(a * np.cos(2 * np.pi * k * lag / P) for k, a in amplitudes.items())
    np.testing.assert_allclose(logits_BxRxV[:, 0], want, atol=2e-5)
    assert found["restricted_loss"] == pytest.approx(closed_form(amplitudes), rel=1e-4)
    assert found["train"] == pytest.approx(closed_form(amplitudes), rel=1e-4)
    assert found["excluded_loss"] == pytest.approx(np.log(P), rel=1e-5)


def test_constants_are_kept_by_both(measured):
    bias_P = np.random.default_rng(0).normal(size=P)
    found, _, batch = measured(solution({2: 4.0}, bias_P))
    rest_P = np.log(np.exp(bias_P).sum()) - bias_P
    assert found["excluded_loss"] == pytest.approx(rest_P[np.asarray(batch.target_BxR)[:, 0]].mean(), rel=1e-5)
    z_SxV = 4 * np.cos(2 * np.pi * 2 * (np.arange(P)[:, None] - np.arange(P)) / P) + bias_P
    want = (np.log(np.exp(z_SxV).sum(1)) - z_SxV.diagonal()).mean()
    assert found["restricted_loss"] == pytest.approx(want, rel=1e-4)


def test_a_network_without_waves_in_the_sum_knows_by_heart_alone(measured):
    """Neurons that see x or y alone: their waves are strong, and none of them is in x + y."""
    params = solution({1: 3.0, 4: 2.0})
    one = params["input"].at[P:].set(0.0)
    noise_NxP = jnp.float32(np.random.default_rng(0).normal(size=(27, P)))
    params |= {"input": one, "Dense_0": params["Dense_0"] | {"kernel": noise_NxP}}
    found, logits_BxRxV, _ = measured(params)
    assert float(jnp.std(logits_BxRxV[..., 0])) > 0.5
    assert found["excluded_loss"] == pytest.approx(found["train"], rel=1e-5)
    mean_P = np.asarray(noise_NxP)[:18].sum(0) / 2  # the mean of a square of a cosine; nine neurons see nothing
    assert found["restricted_loss"] == pytest.approx((np.log(np.exp(mean_P).sum()) - mean_P).mean(), rel=1e-4)


TINY = replace(
    TABLE, task=Modular(p=7), layout=Table(equals=True), position=Learned(max_length=3), batch_size=2**20,
    model=Transformer(width=8, heads=2, layers=1, norm="none", bias_in="feed_forward"),
    split=Fraction(train_fraction=0.4, by="ordered", corrupted=0.3), loss=CrossEntropy("float64"), measures=BOTH,
)  # fmt: skip


def restricted_and_excluded(logits_NxV, key, pairs_Nx2, target_N, trained_N):
    """Both in float64, by least squares on written-out waves over all pairs, centred over the classes."""
    p = logits_NxV.shape[1]
    logits_NxV = logits_NxV - logits_NxV.mean(1, keepdims=True)
    sum_N = pairs_Nx2.sum(1)
    waves = [f(2 * np.pi * k * sum_N / p) for k in key for f in (np.cos, np.sin)]
    design_NxK = np.stack([np.ones(p * p), *waves], 1)
    coefficients_KxV = np.linalg.lstsq(design_NxK, logits_NxV, rcond=None)[0]
    kept_NxV = design_NxK @ coefficients_KxV
    rest_NxV = logits_NxV - design_NxK[:, 1:] @ coefficients_KxV[1:]

    def loss(z_NxV, target_N):
        return np.mean(np.log(np.exp(z_NxV).sum(1)) - z_NxV[np.arange(len(z_NxV)), target_N])

    return loss(kept_NxV, sum_N % p), loss(rest_NxV[trained_N], target_N)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_transformer_equals_numpy_in_turn_and_side_by_side(at_once):
    """By the real path of a population; three seeds, of whose training answers some are corrupted."""
    config = replace(TINY, seeds=3, seeds_per_program=at_once)
    data, params = prepare(config), init(config).params
    params["tokens"] += jnp.float32(2 * np.cos(2 * np.pi * 2 * np.arange(8) / 7))[None, :, None]
    found = parallel.measure(config)(data, parallel.members(config), params, 0)
    everything = quick_jit(jax.vmap(lambda params: train.forward(config, params, batches.table(config))))(params)
    pairs_Nx2 = config.task.table().prompt_PxC[..., 0]
    for s in range(3):
        tokens = np.float64(params["tokens"][s][:7])
        power = [np.square(np.exp(2j * np.pi * k * np.arange(7) / 7) @ tokens) for k in (1, 2, 3)]
        power = [np.abs(p).sum() for p in power]
        order = sorted((1, 2, 3), key=lambda k: -power[k - 1])
        count = next(n for n in (1, 2, 3) if sum(power[k - 1] for k in order[:n]) >= 0.9 * sum(power))
        assert count < 3
        trained = np.asarray(data["row_N"][s])[: int(0.4 * 49)]
        want = restricted_and_excluded(
            np.float64(everything[s][:, 0]), order[:count], pairs_Nx2, np.asarray(data["answer_N"][s])[trained], trained
        )
        means = [float(total[s] / n[s]) for total, n in (found[name] for name in BOTH)]
        np.testing.assert_allclose(means, want, rtol=1e-5)


def keys(power, p=P):
    """Key frequencies of an embedding with cosines of these powers."""
    table_PxD = np.stack([a**0.5 * np.cos(angle(k, p)) for k, a in power.items()], 1) + 5.0  # a constant counts nothing
    config = replace(TABLE, task=Modular(p=p))
    params = {"input": jnp.float32(np.concatenate([table_PxD, table_PxD]))}
    return np.flatnonzero(quick_jit(lambda params: _progress.key_frequencies(params, config))(params)).tolist()


def test_key_frequencies_are_the_fewest_that_carry_nine_tenths():
    assert keys({3: 91.0, 1: 5.0, 2: 4.0}) == [3]
    assert keys({3: 89.0, 1: 6.0, 2: 5.0}) == [1, 3]
    assert keys({6: 30.0, 2: 40.0, 1: 30.0}) == [1, 2, 6]
    assert keys({k: 20.0 + k for k in range(1, 10)}, p=19) == [4, 5, 6, 7, 8, 9]  # six at most


def test_a_table_learned_by_heart_is_not_restricted():
    """Right by 20 on two fifths of the pairs, nothing on the others: six frequencies do not show it, all 29 would."""
    p, draw = 59, np.random.default_rng(0)
    x_N, y_N = np.divmod(draw.permutation(p * p)[: 2 * p * p // 5], p)
    mean_PxP = np.zeros((p, p))
    np.add.at(mean_PxP, ((x_N + y_N) % p,) * 2, 20 / p)
    kept = np.isin(np.arange(30), [0, *draw.permutation(np.arange(1, 30))[: _progress.MOST]])
    losses = [
        CrossEntropy().per_read(_progress.keep(jnp.float32(mean_PxP), jnp.asarray(k)), jnp.arange(p)).mean()
        for k in (kept, kept | True)
    ]
    assert losses[0] > np.log(p) / 2 > 4 * losses[1]


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(task=Modular(p=5, op="subtract")), "do not solve --task.op=subtract"),
        (dict(task=Modular(p=5, unordered=True)), "leave out --task.unordered"),
        (dict(layout=Causal(), model=Transformer(width=4, heads=2)), "a layout with one read for each problem"),
    ],
)
@pytest.mark.parametrize("name", BOTH)
def test_what_has_no_waves_in_the_sum_is_refused(name, change, words):
    with pytest.raises(Refused, match=words):
        dataclasses.replace(TABLE, measures=(name,), **change).check()
