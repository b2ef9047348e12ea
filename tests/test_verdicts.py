"""What the experiments' claims say of rows made by hand: a run that never learned cannot confirm anything."""

import dataclasses
import importlib
import itertools
import math

import pandas as pd
import pytest

from e2h import grid
from e2h.claims import FAILS, HOLDS, UNTESTABLE
from experiments import (
    _main,
    grokking,
    group_words,
    numerical_stability,
    parity_length,
    pointer_complexity,
    word_rank,
)


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


def measured(arm, collapse, cosine):
    """Rows of three seeds from the share of collapsed problems and the cosine at steps 0, 10, 20, ..."""
    return pd.DataFrame(
        {"arm": arm, "seed": seed, "step": 10 * i, "split": "measured", "difficulty": 0, "problems": 0}
        | {"softmax_collapse": 100 * share, "softmax_collapse_count": 100}
        | {"naive_alignment": along, "naive_alignment_count": 1}
        for seed, (i, (share, along)) in itertools.product(range(3), enumerate(zip(collapse, cosine, strict=True)))
    )


def reaches(score, learned=1.0):
    """The training problems at step 20, and a test accuracy at step 30, the last."""
    early = {("train", 10): 0.5 * learned, ("train", 20): learned, ("test", 20): 0.0}
    return early | {("train", 30): learned, ("test", 30): score}


STABLE = {  # arm -> its scores, where every claim holds
    "float16": reaches(0.4), "float32": reaches(0.6), "float64": reaches(0.8),
    "float16, 0.4": reaches(0.0), "float32, 0.4": reaches(0.0), "float64, 0.4": reaches(0.0),
    "cross-entropy": reaches(0.0), "StableMax": reaches(1.0),
    "MLP, AdamW": reaches(0.0), "MLP, orthogonal AdamW": AT_ONCE, "MLP, orthogonal SGD": AT_ONCE,
    "transformer, AdamW": reaches(0.0), "transformer, decay 1.5": LATE, "transformer, orthogonal AdamW": AT_ONCE,
}  # fmt: skip
COLLAPSE = {"float16": (0, 0.6, 1, 1), "float32": (0, 0, 0.6, 1), "float64": (0, 0, 0, 0)}
ALONG = (0.0, 0.1, 0.6, 0.8)


def stability(changed=(), collapse=(), along=ALONG):
    scores, shares = STABLE | dict(changed), COLLAPSE | dict(collapse)
    found = [rows(arm, s) for arm, s in scores.items()]
    found += [measured(arm, shares.get(arm, (0, 0, 0, 0)), along) for arm in scores]
    return verdicts(numerical_stability, *found)


def test_every_claim_of_numerical_stability_can_hold():
    assert set(stability().values()) == {HOLDS} and len(stability()) == 10


def test_no_claim_of_numerical_stability_holds_for_runs_that_learned_nothing():
    found = stability({arm: reaches(0.0, learned=0.0) for arm in STABLE})
    assert set(found.values()) == {FAILS}
    found = stability(
        {arm: reaches(score, learned=0.0) for arm, score in zip(STABLE, (0.4, 0.6, 0.8) * 5, strict=False)}
    )
    assert {found[name] for name in ("precision-orders-test", "precision-orders-collapse", "gradient-aligns")} == {
        FAILS
    }


@pytest.mark.parametrize(
    "claim, changed",
    [
        ("precision-orders-test", {"float32": reaches(0.42)}),
        ("precision-orders-test", {"float64": reaches(0.6)}),
        ("few-problems-never", {"float64, 0.4": reaches(0.2)}),
        ("few-problems-never", {"float16, 0.4": reaches(0.0, learned=0.9)}),
        ("stablemax-generalizes", {"StableMax": reaches(0.8)}),
        ("cross-entropy-does-not", {"cross-entropy": reaches(0.3)}),
        ("mlp-adamw-never", {"MLP, AdamW": reaches(0.1)}),
        ("mlp-orthogonal-adamw", {"MLP, orthogonal AdamW": LATE}),
        ("mlp-orthogonal-sgd", {"MLP, orthogonal SGD": NEVER}),
        ("transformer-before-decay", {"transformer, orthogonal AdamW": LATE}),
        ("transformer-before-decay", {"transformer, orthogonal AdamW": NEVER, "transformer, decay 1.5": NEVER}),
        ("transformer-before-decay", {"transformer, decay 1.5": NOTHING}),
    ],
)
def test_a_claim_of_numerical_stability_can_fail_alone(claim, changed):
    assert [name for name, found in stability(changed).items() if found == FAILS] == [claim]


def test_decay_that_never_arrives_is_later():
    assert stability({"transformer, decay 1.5": NEVER})["transformer-before-decay"] == HOLDS


@pytest.mark.parametrize(
    "collapse", [{"float32": (0, 0.6, 1, 1)}, {"float32": (0, 0, 0, 0)}, {"float64": (0, 0, 1, 1)}]
)
def test_collapse_in_order_needs_each_type_later_than_the_last(collapse):
    assert stability(collapse=collapse)["precision-orders-collapse"] == FAILS


@pytest.mark.parametrize("along", [(0.6, 0.6, 0.6, 0.6), (0.9, 0.8, 0.5, 0.4), (0.0, 0.0, 0.05, 0.1)])
def test_a_gradient_that_does_not_turn_to_the_weights_is_not_aligned(along):
    assert stability(along=along)["gradient-aligns"] == FAILS


def test_numerical_stability_without_its_measures_judges_the_rest():
    found = verdicts(numerical_stability, *(rows(arm, s) for arm, s in STABLE.items()))
    assert set(stability()) - set(found) == {"precision-orders-collapse", "gradient-aligns"}


@pytest.mark.parametrize("test, expected", [(LATE, HOLDS), (AT_ONCE, FAILS), (NEVER, FAILS), (NOTHING, FAILS)])
def test_words_are_grokked_only_if_most_arrive_late(test, expected):
    arms = {"S_4 ab": test, "S_4 aba": test, "D_12 ab": test, "S_4 x": NEVER}
    found = verdicts(group_words, *(words(arm, test, inside=0.5) for arm, test in arms.items()))
    assert found["groks"] == expected
    assert found["learns-S_4-ab"] == (HOLDS if test in (LATE, AT_ONCE) else FAILS)
    assert found["learns-S_4-x"] == FAILS


def words(arm, scores, inside):
    """With the share of the tensor that was read off the end."""
    return rows(arm, scores | {("tensor", 50): 0.0}).assign(inside=inside)


@pytest.mark.parametrize(
    "test, inside, expected",
    [
        (LATE, 0.995, (HOLDS, UNTESTABLE)),
        (LATE, 0.98, (FAILS, UNTESTABLE)),
        (NEVER, 0.98, (UNTESTABLE, HOLDS)),
        (NEVER, 0.995, (UNTESTABLE, FAILS)),
    ],
)
def test_where_a_tensor_lies_is_judged_by_whether_it_generalizes(test, inside, expected):
    found = verdicts(group_words, words("S_4 ab", test, inside))
    assert (found["tensor-inside"], found["tensor-outside"]) == expected


FIT, NOT = 1e-20, 1e-2


@pytest.mark.parametrize(
    "errors, expected",
    [
        ({8: [NOT, NOT], 9: [NOT, FIT]}, HOLDS),
        ({8: [NOT, FIT], 9: [NOT, FIT]}, FAILS),
        ({8: [NOT, NOT], 9: [NOT, NOT], 10: [FIT, FIT]}, FAILS),
        ({8: [NOT, NOT], 9: [2e-6, 2e-6]}, FAILS),
        ({9: [FIT, FIT]}, UNTESTABLE),
    ],
)
def test_a_rank_is_least_only_if_fewer_were_tried(errors, expected):
    found = pd.DataFrame(
        dict(part="fit", case="S3-ab", neurons=r, seed=seed, mse=mse, outside=None, deviation=None)
        for r, each in errors.items()
        for seed, mse in enumerate(each)
    )
    assert verdicts(word_rank, found)["least-S3-ab"] == expected


@pytest.mark.parametrize("outside, deviation, fusion, blocks", [(0, 0, HOLDS, HOLDS), (1e-3, 1e-3, FAILS, FAILS)])
def test_no_part_of_a_tensor_may_be_where_fusion_forbids_it(outside, deviation, fusion, blocks):
    found = pd.DataFrame(
        [
            dict(part="support", case="S4-ab", outside=0.0, deviation=deviation),
            dict(part="support", case="S4-aba", outside=outside),
        ]
    )
    assert verdicts(word_rank, found) == {"fusion": fusion, "blocks": blocks}


FORGOTTEN = {"decay-20-train", "decay-20-test"}  # claims that say that nothing is known


def unlearned(module):
    """Rows of an experiment in which no network ever answers a problem."""
    base = module.base("cpu", [])
    found = unlearned_arms(module.arms(base))
    if hasattr(module, "then"):
        found = pd.concat([found, unlearned_arms(module.then(base, found))])
    if hasattr(module, "simulate"):
        found = pd.concat([found, module.simulate(dataclasses.replace(base, steps=2, seeds=3))])
    return found


def unlearned_arms(arms):
    found = []
    for arm, chosen in arms.items():
        for seed, cell in itertools.product(range(3), grid.cells(chosen)):
            for step, part in itertools.product((0, chosen.steps), chosen.split.parts):
                row = dict(arm=arm, seed=seed, step=step, split=part, difficulty=1, problems=100, exact=0, **cell)
                found.append(row | {"pruned": math.nan})
    return pd.DataFrame(found)


@pytest.mark.parametrize("name", [n for n in _main.names() if n not in ("effective_theory", "group_words", "train")])
def test_no_claim_holds_of_networks_that_learned_nothing(name):
    module = importlib.import_module(f"experiments.{name}")
    if hasattr(module, "arms"):
        held = {claim.id for claim in module.claims(unlearned(module)) if claim.verdict == HOLDS}
        assert held <= FORGOTTEN
