"""Curves that are thinned say what the whole ones say."""

import numpy as np
import pandas as pd
import pytest

from e2h.claims import first_step, highest, score
from experiments import _main


def curves(seed, steps=400):
    """Random walks between 0 and 100 right of 100, with plateaus and falls, of two arms, three seeds and two parts."""
    draw, rows = np.random.default_rng(seed), []
    for arm, of_seed, split in [(a, s, p) for a in "ab" for s in range(3) for p in ("train", "test")]:
        right = np.clip(np.cumsum(draw.integers(-3, 5, steps)), 0, 100)
        end = steps - 50 * (arm == "b")  # which ends sooner
        rows += [
            dict(arm=arm, seed=of_seed, split=split, step=50 * i, problems=100, exact=right[i]) for i in range(end)
        ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("seed", range(4))
def test_first_steps_highest_and_last_scores_are_those_of_all_rows(seed):
    whole = curves(seed)
    thin = _main.thin(whole, 0.5, 0.95)
    assert len(thin) < len(whole) / 3
    for arm, split in [(a, p) for a in "ab" for p in ("train", "test")]:
        a, b = (rows[rows["arm"] == arm] for rows in (whole, thin))
        for value in (0.5, 0.95):
            pd.testing.assert_series_equal(first_step(a, split, value), first_step(b, split, value))
        pd.testing.assert_series_equal(highest(a, split), highest(b, split))
        pd.testing.assert_series_equal(score(a, split), score(b, split))


def test_a_step_is_kept_for_all_seeds_of_an_arm_and_part():
    thin = _main.thin(curves(0), 0.5)
    assert (thin.groupby(["arm", "split", "step"])["seed"].nunique() == 3).all()
    assert not thin.duplicated(["arm", "split", "step", "seed"]).any()


def test_short_curves_and_parts_without_problems_stay():
    rows = curves(1, steps=60)
    measured = rows[(rows["split"] == "train") & (rows["arm"] == "a")].assign(split="measured", problems=0, exact=0)
    thin = _main.thin(pd.concat([rows, measured]), 0.95)
    assert set(thin["step"]) <= set(rows["step"]) and {0, 59 * 50} <= set(thin[thin["arm"] == "a"]["step"])
    assert set(thin["split"]) == {"train", "test", "measured"}


def test_the_cells_of_a_grid_have_curves_of_their_own():
    one, other, plain = (curves(seed) for seed in (5, 6, 7))
    plain = plain.assign(arm=plain["arm"] + " without a grid")
    thin = _main.thin(pd.concat([one.assign(**{"model.x": 0.1}), other.assign(**{"model.x": 0.2}), plain]), 0.5)
    for rows, here in ((one, thin["model.x"] == 0.1), (other, thin["model.x"] == 0.2), (plain, thin["model.x"].isna())):
        for arm in rows["arm"].unique():
            of = [r[r["arm"] == arm] for r in (rows, thin[here])]
            pd.testing.assert_series_equal(*(first_step(r, "test", 0.5) for r in of))
            pd.testing.assert_series_equal(*(highest(r, "test") for r in of))
