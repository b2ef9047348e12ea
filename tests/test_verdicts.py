"""What the experiments' claims say of rows made by hand: a run that never learned cannot confirm anything."""

import itertools

import pandas as pd
import pytest

from e2h.claims import FAILS, HOLDS, UNTESTABLE
from experiments import grokking, parity_length, pointer_complexity


def rows(arm, scores):
    """Rows of three seeds from {(split, step): exact match}."""
    return pd.DataFrame(
        {"arm": arm, "seed": seed, "step": step, "split": split, "difficulty": 1, "problems": 100, "exact": 100 * score}
        for seed, ((split, step), score) in itertools.product(range(3), scores.items())
    )


def verdicts(module, *arms):
    return {claim.id: claim.verdict for claim in module.claims(pd.concat(arms))}


LEARNED = {("train", 10): 1.0, ("test", 10): 0.0, ("train", 50): 1.0}
NEVER = LEARNED | {("test", 50): 0.0}
LATE = LEARNED | {("test", 50): 1.0}
AT_ONCE = {("train", 10): 1.0, ("test", 10): 1.0}
NOTHING = {("train", 10): 0.0, ("test", 10): 0.0}


@pytest.mark.parametrize(
    "decay, expected", [(LATE, HOLDS), (NEVER, FAILS), (AT_ONCE, FAILS), (NOTHING, FAILS)], ids=str
)
def test_a_late_test_must_arrive_to_be_late(decay, expected):
    arms = [rows("no decay", NEVER), rows("decay", decay), rows("orthogonal gradient", AT_ONCE)]
    assert verdicts(grokking, *arms)["decay-late"] == expected


@pytest.mark.parametrize("orthogonal, expected", [(AT_ONCE, HOLDS), (LATE, FAILS), (NEVER, FAILS), (NOTHING, FAILS)])
def test_no_delay_needs_both_to_arrive(orthogonal, expected):
    arms = [rows("no decay", NEVER), rows("decay", LATE), rows("orthogonal gradient", orthogonal)]
    assert verdicts(grokking, *arms)["orthogonal-no-delay"] == expected


@pytest.mark.parametrize("plain, expected", [(NEVER, HOLDS), (LATE, FAILS), (NOTHING, FAILS)])
def test_never_generalizing_needs_the_training_problems_learned(plain, expected):
    arms = [rows("no decay", plain), rows("decay", LATE), rows("orthogonal gradient", AT_ONCE)]
    assert verdicts(grokking, *arms)["no-decay-never"] == expected


@pytest.mark.parametrize("easy, hard, expected", [(1, 0.1, HOLDS), (1, 0.9, FAILS), (0.5, 0.1, UNTESTABLE)])
def test_failing_beyond_means_nothing_before_the_easy_range_is_known(easy, hard, expected):
    found = rows("pointer chasing", {("test", 10): easy, ("test_complexity", 10): hard})
    assert verdicts(pointer_complexity, found)["beyond"] == expected


@pytest.mark.parametrize("transformer, expected", [(0.5, HOLDS), (0.6, FAILS), (0.3, FAILS)])
def test_chance_is_a_band(transformer, expected):
    scores = {"rnn, parity": 1.0, "lstm, parity": 0.9, "transformer, parity": transformer}
    found = verdicts(parity_length, *(rows(arm, {("test_length", 10): score}) for arm, score in scores.items()))
    assert found == {"rnn-parity": HOLDS, "lstm-parity": FAILS, "transformer-parity": expected}
