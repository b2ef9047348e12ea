"""What the claims of `fourier` say of rows made by hand, and the spectra that it reads off a network."""

import itertools

import _tiny
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from e2h.claims import FAILS, HOLDS, UNTESTABLE
from e2h.train import State
from experiments import fourier

SEEDS, STEPS = range(3), (0, 50, 100, 400, 500, 1000)
GROKS = dict(  # one value for each step
    train=(0, 0.5, 1, 1, 1, 1), test=(0, 0, 0, 0.2, 0.6, 1), loss=(4, 6, 9, 5, 2, 1e-3),
    restricted=(4, 4, 3, 1.5, 1, 1e-3), excluded=(4, 1, 0.1, 2, 4, 5), gini=(0.1, 0.1, 0.1, 0.3, 0.5, 0.9),
)  # fmt: skip
MEMORIZES = GROKS | dict(test=(0,) * 6, restricted=(4,) * 6, excluded=(4, 1, 0.1, 0.1, 0.1, 0.1), gini=(0.1,) * 6)
LEARNS_NOTHING = {name: (0.1,) * 6 for name in GROKS}
IDS = {"groks", "restricted-is-enough", "excluded-is-nothing", "restricted-comes-first", "embedding-becomes-sparse"}


def rows(arm, *courses):
    """Rows of one seed for each course; logits over 59 classes."""
    found = []
    for (seed, course), (i, step) in itertools.product(enumerate(courses), enumerate(STEPS)):
        here = {name: values[i] for name, values in course.items()}
        row = dict(arm=arm, seed=seed, step=step)
        for part, loss in (("train", 0.1), ("test", here["loss"])):
            found.append(row | dict(split=part, problems=200, exact=200 * here[part], loss=200 * loss, chance=1 / 59))
        measured = dict(restricted_loss=59**2 * here["restricted"], excluded_loss=100 * here["excluded"])
        measured |= {"restricted_loss_count": 59**2, "excluded_loss_count": 100}
        measured |= {"fourier_gini:inputs": here["gini"], "fourier_gini:inputs_count": 1}
        found.append(row | dict(split="measured", problems=0) | measured)
    return found


def verdicts(changed=(), **arms):
    """Of three decays of which the second is the least that generalizes; `changed` is changed in it."""
    courses = {"decay 0": [MEMORIZES] * 3, "decay 1": [GROKS, MEMORIZES, MEMORIZES]}
    courses |= {"decay 2": [GROKS | dict(changed)] * 3, "decay 5": [LEARNS_NOTHING] * 3}
    courses |= {name.replace("_", " "): value for name, value in arms.items()}
    return judged(frame(courses))


def frame(courses):
    return pd.DataFrame([row for arm, course in courses.items() for row in rows(arm, *course)])


def judged(rows):
    return {claim.id: claim.verdict for claim in fourier.claims(rows)}


def test_all_hold_at_the_least_decay_that_generalizes():
    assert verdicts() == dict.fromkeys((*IDS, "no-decay-never"), HOLDS)


def test_two_of_three_seeds_are_enough_and_are_judged_alone():
    assert set(verdicts(decay_1=[GROKS, MEMORIZES, GROKS], decay_2=[LEARNS_NOTHING] * 3).values()) == {HOLDS}
    worse = GROKS | dict(restricted=(4,) * 6)
    assert verdicts(decay_1=[GROKS, MEMORIZES, worse])["restricted-is-enough"] == FAILS


@pytest.mark.parametrize(
    "claim, changed",
    [
        ("groks", dict(train=(0, 0.5, 0.5, 0.9, 1, 1))),
        ("restricted-is-enough", dict(restricted=(4, 4, 3, 1.5, 1, 1.3e-3))),
        ("excluded-is-nothing", dict(excluded=(4, 1, 0.1, 2, 4, 0.9))),
        ("restricted-comes-first", dict(restricted=(4, 4, 3, 2.1, 1, 1e-3))),  # ln 59 / 2 = 2.04; both at step 500
        ("embedding-becomes-sparse", dict(gini=(0.1,) * 5 + (0.4,))),
        ("embedding-becomes-sparse", dict(gini=(0.6,) + (0.9,) * 5)),
    ],
)
def test_a_claim_can_fail_alone(claim, changed):
    assert [name for name, found in verdicts(changed).items() if found != HOLDS] == [claim]
    assert verdicts(changed)[claim] == FAILS


def test_a_restricted_loss_that_never_falls_does_not_come_first():
    assert verdicts(dict(restricted=(4,) * 6))["restricted-comes-first"] == FAILS


def test_where_nothing_generalizes_there_is_nothing_to_look_into():
    found = verdicts(**{arm.replace(" ", "_"): [MEMORIZES] * 3 for arm in fourier.STEPS})
    assert found == dict.fromkeys((*IDS, "no-decay-never"), UNTESTABLE) | {"groks": FAILS}


@pytest.mark.parametrize("course, expected", [(GROKS, FAILS), (LEARNS_NOTHING, FAILS), (MEMORIZES, HOLDS)])
def test_a_control_must_memorize_and_not_generalize(course, expected):
    assert verdicts(decay_0=[MEMORIZES, course, MEMORIZES])["no-decay-never"] == expected


def test_a_control_that_was_trained_for_less_says_nothing():
    long = frame({"decay 0": [MEMORIZES]} | {arm: [GROKS] for arm in fourier.DECAYED})
    short = long[(long["arm"] != "decay 0") | (long["step"] < 1000)]
    assert [judged(of)["no-decay-never"] for of in (long, short)] == [HOLDS, UNTESTABLE]


def test_without_its_measures_the_rest_is_judged():
    everything = frame({arm: [GROKS] * 3 for arm in fourier.STEPS})
    rest = everything[everything["split"] != "measured"].dropna(axis=1)
    assert judged(rest) == dict.fromkeys(IDS, UNTESTABLE) | {"groks": HOLDS, "no-decay-never": FAILS}
    fourier.figure(rest)


def test_the_spectrum_is_of_each_seeds_embedding():
    config = fourier.base("cpu", [])
    config = _tiny.replace(config, task=_tiny.replace(config.task, p=7))
    angle = 2 * np.pi * np.outer([1, 2, 3], np.arange(7)) / 7
    shares = np.array([[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]])
    tokens_SxVxD = np.full((3, 8, 3), 9.0)  # a constant, and the row of the equals sign, which is no residue
    tokens_SxVxD[:, :7] += np.swapaxes(shares[:, :, None] ** 0.5 * np.cos(angle + 0.3), 1, 2)
    found = fourier.inspect("decay 2", config, State({"tokens": jnp.float32(tokens_SxVxD)}, None, jnp.int32(40)))
    assert set(found["arm"]) == {"decay 2"} and set(found["step"]) == {40}
    np.testing.assert_allclose(found.pivot(index="seed", columns="frequency", values="share"), shares, atol=2e-5)
