import json
import math

import pandas as pd
import pytest

from e2h import claims
from e2h.claims import FAILS, HOLDS, Claim, first_step, highest, score

INF, NAN = math.inf, math.nan


def rows(*cells):
    """Of (seed, step, split, difficulty, problems, exact)."""
    return pd.DataFrame(cells, columns=["seed", "step", "split", "difficulty", "problems", "exact"])


RUN = rows(
    *((0, step, "test", 1, 10, exact) for step, exact in ((0, 1), (10, 9), (20, 10), (30, 3))),
    *((1, step, "test", 1, 10, exact) for step, exact in ((0, 1), (10, 2), (20, 3), (30, 8))),
    *((seed, 40, "online", 0, 10, 10) for seed in (0, 1)),
)
UNEVEN = rows((0, 5, "far", 1, 1, 1), (0, 5, "far", 2, 99, 0), (1, 5, "far", 1, 1, 0), (1, 5, "far", 2, 99, 99))


@pytest.mark.parametrize(
    "threshold, steps", [(0.1, [0, 0]), (0.8, [10, 30]), (0.9, [10, INF]), (1.0, [20, INF]), (1.1, [INF, INF])]
)
def test_first_step_is_the_first_that_reaches_or_inf(threshold, steps):
    found = first_step(RUN, "test", threshold)
    assert list(found) == steps and list(found.index) == [0, 1] and found.dtype == float


def test_a_seed_without_rows_of_the_split_never_reaches_it():
    assert list(first_step(RUN[(RUN["seed"] == 0) | (RUN["split"] == "online")], "test", 0.1)) == [0, INF]


def test_scores_are_sums_over_sums_not_means_of_means():
    assert list(score(UNEVEN, "far")) == [0.01, 0.99]
    assert list(first_step(UNEVEN, "far", 0.5)) == [INF, 5]
    assert list(highest(UNEVEN, "far")) == [0.01, 0.99]


def test_scores_are_of_the_last_evaluated_step_or_the_one_asked_for():
    assert list(score(RUN, "test")) == [0.3, 0.8]
    assert list(score(RUN, "test", step=10)) == [0.9, 0.2]
    assert list(highest(RUN, "test")) == [1.0, 0.8]


def test_scores_are_of_the_difficulties_asked_for():
    assert list(score(UNEVEN, "far", difficulties=[1])) == [1.0, 0.0]
    assert list(score(UNEVEN, "far", difficulties=range(2, 3))) == [0.0, 1.0]


def claim(*per_seed, verdict=HOLDS):
    return Claim("id", "card", "statement", "published", "source", "threshold", per_seed, verdict)


@pytest.mark.parametrize(
    "per_seed, median, spread",
    [
        ((3.0, 1.0, 2.0), 2.0, [1.0, 3.0]),
        ((INF, 10.0, INF), ">budget", [10.0, ">budget"]),
        ((NAN, 4.0), 4.0, [4.0, 4.0]),
        ((NAN,), None, None),
        ((), None, None),
        ((1 / 3,), 0.33333, [0.33333, 0.33333]),
    ],
)
def test_what_was_measured_is_json_without_nan_or_infinity(tmp_path, per_seed, median, spread):
    claims.write(tmp_path / "claims.json", {"claims": [claim(*per_seed).as_dict()]})
    (read,) = json.loads((tmp_path / "claims.json").read_text(), parse_constant=pytest.fail)["claims"]
    measured = read["measured"]
    assert measured["median"] == median and measured["range"] == spread and len(measured["per_seed"]) == len(per_seed)
    assert [v is None for v in measured["per_seed"]] == [v != v for v in per_seed]


def test_a_claim_never_writes_nan_even_between_infinities():
    assert claim(-INF, INF).as_dict()["measured"]["median"] in (None, ">budget")


def test_verdicts_are_words():
    assert (claims.verdict(True), claims.verdict(False)) == (HOLDS, FAILS)
    assert claims.verdict(pd.Series([True, False]).all()) == FAILS  # of NumPy's truth too
    assert len({HOLDS, FAILS, claims.UNTESTABLE}) == 3


def test_a_document_says_what_was_run_where_and_when_it_took_how_long():
    made = claims.document("name", "cpu", "python -m x", {"arm": "0123"}, 12.345, [claim(1.0, verdict=FAILS)])
    assert list(made) == ["experiment", "scale", "command", "digest", "versions", "device", "wall_s", "claims"]
    assert made["wall_s"] == 12.3 and made["digest"] == {"arm": "0123"} and made["device"]
    assert list(made["claims"][0]) == ["id", "card", "statement", "published", "threshold", "measured", "verdict"]
    text = claims.table(made)
    for word in ("statement", "published", "threshold", FAILS, "1 seeds"):
        assert word in text
