"""The XOR network: the Gram matrix against weights and points that are there, and the bookkeeping of flipped labels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from e2h.claims import FAILS, HOLDS
from e2h.registry import Refused
from experiments import xor_grokking as xor

SMALL = xor.Settings(
    seeds=3, dimension=50, samples=12, neurons=8, steps=15, tests=6, flips=0.3,
    small_dimension=50, small_samples=12, small_neurons=8, small_steps=100,
)  # fmt: skip


@pytest.fixture(autouse=True)
def x64_stays_off():
    yield
    assert not jax.config.jax_enable_x64 and jnp.zeros(()).dtype == jnp.float32


def literal(x, weights, readout, label, step_size, steps):
    """Outputs [R, P] of a network whose weights [p, M] are there, trained on the first points by eq. 2.2 as written."""
    found, n = [], len(label)
    for t in range(max(steps) + 1):
        hidden = x @ weights
        output = np.maximum(hidden, 0) @ readout
        if t in steps:
            found.append(output)
        gradient = np.zeros_like(weights)
        for i in range(n):
            slope = -label[i] / (1 + np.exp(label[i] * output[i]))
            gradient += slope / n * np.outer(x[i], (hidden[i] > 0) * readout)
        weights = weights - step_size * gradient
    return np.array(found)


@pytest.mark.parametrize("start, step_size", [(1e-15, 1e-12), (1e-15, 1e-16), (0.05, 0.1)], ids=str)
def test_the_gram_matrix_does_what_the_weights_do(start, step_size):
    draw = np.random.default_rng(0)
    n, x = 12, draw.normal(size=(18, 50))
    weights, readout = start * draw.normal(size=(50, 8)), draw.choice([-1, 1], 8) / 8**0.5
    label = draw.choice([-1.0, 1.0], 18)
    steps = [0, 1, 2, 7, 40]
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in (x @ x.T, x @ weights, readout, label, label)]
        found = np.asarray(xor.outputs(xor.Run(*arrays), n, step_size, jnp.array(steps, jnp.int32)))
    want = literal(x, weights, readout, label[:n], step_size, steps)
    np.testing.assert_allclose(found, want, rtol=1e-8, atol=1e-8 * np.abs(want).max())


def test_the_update_is_the_gradient_of_the_logistic_loss():
    draw = np.random.default_rng(1)
    x, weights, readout = draw.normal(size=(5, 4)), draw.normal(size=(4, 3)), np.array([1, -1, 1]) / 3**0.5
    label = np.array([1.0, -1, 1, 1, -1])

    def loss(weights):
        return jnp.mean(jnp.logaddexp(0, -label * (jax.nn.relu(x @ weights) @ readout)))

    with jax.enable_x64(True):
        after = weights - 0.3 * np.asarray(jax.grad(loss)(jnp.asarray(weights)))
    found = literal(x, weights, readout, label, 0.3, [1])
    np.testing.assert_allclose(found[0], np.maximum(x @ after, 0) @ readout, rtol=1e-12)


@pytest.fixture(scope="module")
def runs():
    """A hundred runs of few points, as arrays with a leading axis."""
    settings = dataclasses.replace(SMALL, samples=40, tests=20, dimension=200, neurons=100)
    return settings, xor.Run(*map(np.stack, zip(*(xor.sample(settings, seed) for seed in range(100)), strict=True)))


def test_a_run_is_float64_throughout(runs):
    assert {array.dtype for array in runs[1]} == {np.dtype("float64")}


def test_only_training_labels_are_flipped_and_as_many_as_stated(runs):
    settings, run = runs
    flipped = run.label_P != run.clean_P
    assert not flipped[:, settings.samples :].any()
    np.testing.assert_allclose(flipped[:, : settings.samples].mean(), settings.flips, atol=0.03)  # of 4000 labels
    assert set(np.unique(run.clean_P)) == {-1, 1} and abs(run.clean_P.mean()) < 0.05


def test_points_lie_in_four_clusters_of_which_opposite_ones_share_a_label(runs):
    """Inner products of two points: +-|mu|^2 in one class and 0 across classes, beside noise of sqrt(p)."""
    settings, run = runs
    p, square = settings.dimension, settings.mean**2 * settings.dimension / settings.samples
    diagonal = np.einsum("spp->sp", run.gram_PxP)
    np.testing.assert_allclose(diagonal.mean(), p + square, rtol=0.02)
    same = run.clean_P[:, :, None] * run.clean_P[:, None, :]
    off = ~np.eye(same.shape[-1], dtype=bool)[None]
    within, across = run.gram_PxP[off & (same > 0)], run.gram_PxP[off & (same < 0)]
    np.testing.assert_allclose(np.mean(within**2), p + 2 * square + square**2, rtol=0.05)
    np.testing.assert_allclose(np.mean(across**2), p + 2 * square, rtol=0.05)
    np.testing.assert_allclose([np.mean(within), np.mean(across)], 0, atol=2)


def test_the_network_starts_as_gaussian_weights_on_these_points_would(runs):
    """E[(x_i W)(x_k W)'] = start^2 m x_i . x_k, and the readout's square norm is 1."""
    settings, run = runs
    np.testing.assert_allclose((run.readout_M**2).sum(1), 1)
    assert abs(run.readout_M.mean()) < 0.01
    scaled = run.start_PxM / settings.start
    found = np.einsum("spm,sqm->pq", scaled, scaled) / scaled.shape[-1] / len(scaled)
    np.testing.assert_allclose(found, run.gram_PxP.mean(0), atol=0.05 * settings.dimension)


@pytest.fixture(scope="module")
def rows():
    return xor.simulate(SMALL)


def test_rows_count_every_point(rows):
    by_part = rows.groupby("split")["problems"]
    assert set(by_part.get_group("train")) == {12} and set(by_part.get_group("test")) == {6}
    assert (rows["exact"] <= rows["problems"]).all() and set(rows["seed"]) == {0, 1, 2}
    for arm, last in ((xor.LARGE, 15), (xor.SMALL, 100)):
        steps = set(rows[rows["arm"] == arm]["step"])
        assert {0, 1, 15, last} <= steps and max(steps) == last
    flipped = rows[rows["split"] == "flipped"].groupby(["arm", "seed"])["problems"]
    assert (flipped.nunique() == 1).all() and flipped.first().between(0, 12).all() and flipped.first().sum() > 0


def test_scores_are_those_of_the_outputs(rows):
    steps = sorted(set(rows[rows["arm"] == xor.LARGE]["step"]))
    for seed in range(3):
        run = xor.sample(SMALL, seed)
        label, clean = run.label_P, run.clean_P
        with jax.enable_x64(True):
            output = np.asarray(xor.train(jax.tree.map(lambda a: a[None], run), 12, 1e-12, np.array(steps)))[0]
        sign = np.sign(output)  # 0 where every one of the few neurons is silent: no answer
        wrong = [i for i in range(12) if label[i] != clean[i]]
        right = {
            "train": sign[:, :12] == label[:12],
            "flipped": sign[:, wrong] == label[wrong],
            "test": sign[:, 12:] == clean[12:],
        }
        of_seed = rows[(rows["arm"] == xor.LARGE) & (rows["seed"] == seed)]
        for part, hits in right.items():
            assert of_seed[of_seed["split"] == part]["exact"].tolist() == hits.sum(1).tolist()


def test_a_seed_does_not_depend_on_how_many_there_are(rows):
    alone = xor.simulate(dataclasses.replace(SMALL, seeds=1))
    pd.testing.assert_frame_equal(rows[rows["seed"] == 0].reset_index(drop=True), alone)
    assert rows.groupby("seed")["exact"].sum().nunique() == 3


def test_more_points_than_dimensions_are_refused():
    with pytest.raises(Refused, match="18 points in 17 dimensions"):
        xor.simulate(dataclasses.replace(SMALL, small_dimension=17))


def made(large, small):
    """Rows of two seeds of 100 points from {(part, step): accuracy}."""
    return pd.DataFrame(
        {"arm": arm, "seed": seed, "step": step, "split": part, "problems": 100, "exact": 100 * score, "chance": 0.5}
        for arm, scores in ((xor.LARGE, large), (xor.SMALL, small))
        for (part, step), score in scores.items()
        for seed in (0, 1)
    )


AT_ONCE = {("train", 1): 1, ("test", 1): 0.5, ("test", 15): 0.95, ("flipped", 100): 1, ("test", 100): 0.99}
LATER = {("train", 10): 0.6, ("test", 10): 0.5, ("train", 100): 1, ("test", 100): 0.6, ("test", 1000): 0.9}


@pytest.mark.parametrize(
    "large, small, failing",
    [
        ({}, {}, set()),
        ({("train", 1): 0.98}, {}, {"fits-at-once"}),
        ({("test", 1): 0.6}, {}, {"random-at-once"}),
        ({("test", 1): 0.4}, {}, {"random-at-once"}),
        ({("test", 15): 0.92}, {}, {"generalizes"}),
        ({("flipped", 100): 0.9}, {}, {"benign"}),
        ({("test", 100): 0.9}, {}, {"benign"}),
        ({}, {("train", 10): 1}, {"small-step-delays-both"}),
        ({}, {("test", 100): 0.9}, {"small-step-delays-both"}),
        ({}, {("test", 1000): 0.8}, {"small-step-delays-both"}),
    ],
)
def test_claims(large, small, failing):
    found = {claim.id: claim.verdict for claim in xor.claims(made(AT_ONCE | large, LATER | small))}
    assert found == {name: FAILS if name in failing else HOLDS for name in found} and len(found) == 5
