"""The linear student: its averages against other routes to them, its solution against the iteration of it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from e2h.claims import FAILS, HOLDS
from experiments import linear_grokking as linear

every_ratio = pytest.mark.parametrize("ratio", linear.RATIOS)
STEPS = np.array([0, 1, 10, 100, 1000, 10_000, 100_000])


def density(ratio, nu):
    """Eq. 6 without its atom, written as in the paper."""
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    return np.sqrt(np.maximum((high - nu) * (nu - low), 0)) / (2 * np.pi * ratio * nu)


@every_ratio
def test_the_spectrum_has_mass_1_mean_1_and_second_moment_1_plus_lambda(ratio):
    nu, weight = linear.marchenko_pastur(ratio)
    np.testing.assert_allclose([weight @ nu**k for k in range(3)], [1, 1, 1 + ratio], rtol=1e-12)
    atom = weight[nu == 0].sum()
    np.testing.assert_allclose(atom, max(0, 1 - 1 / ratio), atol=1e-15)


@every_ratio
def test_averages_over_the_spectrum_are_integrals_of_its_density(ratio):
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    u = (np.arange(200_000) + 0.5) / 200_000  # nu = low + (high - low) u^2 softens the edge at `low`
    at, jacobian = low + (high - low) * u**2, 2 * (high - low) * u
    nu, weight = linear.marchenko_pastur(ratio)
    for of in (np.exp, np.cos, lambda x: 1 / (1 + x)):
        integral = np.mean(density(ratio, at) * of(at) * jacobian) + max(0, 1 - 1 / ratio) * of(0.0)
        np.testing.assert_allclose(weight @ of(nu), integral, rtol=1e-5)


@every_ratio
def test_the_training_loss_is_the_bessel_function_of_eq_9(ratio):
    """0F1(2; z^2 / 4) regularised is 2 I1(z) / z, here with z = 8 eta sqrt(lambda) t."""
    step = STEPS[1:]
    z = 8 * linear.ETA * math.sqrt(ratio) * step
    with jax.enable_x64(True):
        scaled = np.asarray(jax.scipy.special.i1e(jnp.asarray(z)))  # e^-z I1(z)
    bessel = np.exp(z - 4 * linear.ETA * (1 + ratio) * step) * 2 * scaled / z
    train, _ = linear.exact(ratio, 0.0, step)
    np.testing.assert_allclose(train, bessel, rtol=1e-6, atol=1e-12)


@every_ratio
def test_both_losses_begin_at_1_and_the_test_is_the_higher(ratio):
    for decay in (0.0, 1e-3):
        train, test = linear.exact(ratio, decay, STEPS)
        np.testing.assert_allclose([train[0], test[0]], 1, rtol=1e-12)
        assert (train <= test * (1 + 1e-12)).all()


@pytest.mark.parametrize("decay", [1e-4, 1e-3])
def test_late_plateaus_with_decay_are_those_of_eq_15_for_small_decay(decay):
    """E[nu^-1] = 1 / (1 - lambda) and E[nu^-2] = 1 / (1 - lambda)^3."""
    (train,), (test,) = linear.exact(0.5, decay, np.array([10**6]))
    np.testing.assert_allclose([train, test], [decay**2 / 8 / 0.5, decay**2 / 8 / 0.5**3], rtol=0.02)


TIMES = {  # (lambda, weight decay, eps): steps at which training and test reach eps / 4, computed apart from this code
    (0.1, 0.0, 1e-3): (273.2, 296.5),
    (0.3, 0.0, 1e-3): (440.8, 560.9),
    (0.5, 0.0, 1e-3): (725.1, 1156.4),
    (0.7, 0.0, 1e-3): (1289.9, 3139.3),
    (0.8, 0.0, 1e-3): (1780.9, 6653.9),
    (0.9, 0.0, 1e-3): (2408.5, 22889.7),
    (0.95, 0.0, 1e-3): (2653.5, 75245),
    (0.5, 0.0, 1e-6): (2245.8, 2822.8),
    (0.9, 0.0, 1e-6): (31427, 74076),
    (0.9, 1e-5, 1e-3): (2408, 22906),
    (0.9, 1e-3, 1e-3): (2404, 27608),
    (0.9, 1e-2, 1e-3): (2589, math.inf),
}


@pytest.mark.parametrize("per_decade, tolerance", [(16, 0.01), (32, 0.002)])
@pytest.mark.parametrize("case", TIMES, ids=str)
def test_times_of_arrival(case, per_decade, tolerance):
    ratio, decay, eps = case
    step = linear.grid(per_decade)
    found = [linear.crossing(step, loss, eps) for loss in linear.exact(ratio, decay, step)]
    np.testing.assert_allclose(found, TIMES[case], rtol=tolerance)


def test_a_crossing_of_an_exponential_is_found_between_rows():
    step = np.array([0, 10, 1000])
    np.testing.assert_allclose(linear.crossing(step, np.exp(-0.01 * step), 4 * math.exp(-5)), 500)
    assert linear.crossing(step, np.array([1.0, 0.9, 0.8]), 1.0) == math.inf
    assert linear.crossing(step, np.array([1.0, 0.9, 0.8]), 4.0) == 0


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.5])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_iteration_has_the_losses_of_the_solution(ratio, decay):
    x, student, teacher = linear.draw(20, ratio, 3)
    step = np.array([0, 1, 2, 17, 400])
    nu, vector = np.linalg.eigh(x.T @ x / len(x))
    solved = linear.solved(np.maximum(nu, 0), vector.T @ student, vector.T @ teacher, decay, step)
    np.testing.assert_allclose(solved, linear.iterated(x, student, teacher, decay, step), rtol=1e-10)


def test_a_step_of_the_iteration_follows_the_gradient_of_the_training_loss():
    x, student, teacher = linear.draw(20, 0.5, 0)

    def loss(student):
        return jnp.mean((x @ (student - teacher)) ** 2) + 0.5 * 0.3 * student @ student  # decay .3

    with jax.enable_x64(True):
        after = student - linear.ETA * np.asarray(jax.grad(loss)(jnp.asarray(student)))
    want = [np.mean((x @ (after - teacher)) ** 2), np.sum((after - teacher) ** 2)]
    np.testing.assert_allclose(linear.iterated(x, student, teacher, 0.3, np.array([0, 1]))[:, 1], want, rtol=1e-12)


def test_draws_are_of_the_stated_size_and_do_not_depend_on_each_other():
    x, student, teacher = linear.draw(400, 0.8, 1)
    assert x.shape == (500, 400) and x.dtype == np.float64
    np.testing.assert_allclose([np.mean(x**2), np.sum((student - teacher) ** 2)], 1, rtol=0.2)
    few, more = (linear.simulate(linear.Settings(draws=n, iterated=1, dimension=20)) for n in (1, 2))
    pd.testing.assert_frame_equal(more[more["seed"] < 1].reset_index(drop=True), few)
    per_seed = more[(more["source"] == linear.DRAW) & (more["ratio"] == 0.5) & (more["step"] == 10)]
    assert per_seed["test"].nunique() == 2


def test_many_small_students_average_to_the_exact_losses():
    """D = 40: |S - T|^2 of 200 students has a standard error of 1.6 %."""
    step = np.array([0, 100, 300])
    losses = []
    for seed in range(200):
        x, student, teacher = linear.draw(40, 0.5, seed)
        nu, vector = np.linalg.eigh(x.T @ x / len(x))
        losses.append(linear.solved(nu, vector.T @ student, vector.T @ teacher, 0.0, step))
    np.testing.assert_allclose(np.mean(losses, 0), linear.exact(0.5, 0.0, step), rtol=0.12)


def rows(**changes):
    """What draws would give that were exact, but for the `changes`: {source: function of the rows of that source}."""
    step, found = linear.grid(16), []
    for ratio in linear.RATIOS:
        for decay in linear.DECAYS.get(ratio, (0.0,)):
            losses = linear.exact(ratio, decay, step)
            found.append(linear._rows(linear.EXACT, ratio, decay, -1, step, losses))
            sources = (linear.DRAW, linear.ITERATED) if (ratio, decay) == (0.5, 0.0) else (linear.DRAW,)
            found += [linear._rows(source, ratio, decay, seed, step, losses) for source in sources for seed in (0, 1)]
    found = pd.concat(found, ignore_index=True)
    parts = [changes.get(source, lambda r: r)(of_source.copy()) for source, of_source in found.groupby("source")]
    return pd.concat(parts, ignore_index=True)


def verdicts(found):
    return {claim.id: claim.verdict for claim in linear.claims(found)}


def test_exact_draws_fulfil_every_claim():
    found = verdicts(rows())
    assert set(found.values()) == {HOLDS} and len(found) == 14


def scaled(step=1.0, **columns):
    def change(r):
        r["step"] = r["step"] * step
        return r.assign(**{name: r[name] * factor for name, factor in columns.items()})

    return change


TEN_PERCENT = {"times-0.1", "times-0.3", "times-0.5", "times-0.7", "times-0.8"}


@pytest.mark.parametrize(
    "change, failing",
    [
        ({"draw": scaled(step=1.15), "iterated": scaled(step=1.15)}, TEN_PERCENT),
        ({"draw": scaled(step=0.85), "iterated": scaled(step=0.85)}, TEN_PERCENT),
        ({"iterated": scaled(train=1.001)}, {"iteration"}),
        ({"iterated": scaled(test=0.999)}, {"iteration"}),
    ],
    ids=["late", "early", "other training", "other test"],
)
def test_only_the_claims_that_are_concerned_fail(change, failing):
    assert {name for name, verdict in verdicts(rows(**change)).items() if verdict == FAILS} == failing


def test_a_test_loss_that_follows_training_has_no_delay():
    found = verdicts(rows(draw=lambda r: r.assign(test=r["train"])))
    fails = {name for name, verdict in found.items() if verdict == FAILS}
    assert {"delay-grows", "delay-is-of-eps", "never-beyond-1", "times-0.5", "times-0.9-decay-0.01"} <= fails
