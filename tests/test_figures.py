import re

import numpy as np
import pandas as pd
import pytest

from e2h import figures


def rows(seeds=3, steps=(0, 10, 20), split="test", difficulties=(1, 2)):
    """Every seed scores a rate of its own: (seed + 1) / 10 at difficulty 1, twice that at 2."""
    return pd.DataFrame(
        [
            dict(seed=s, step=t, split=split, difficulty=d, problems=10.0, exact=(s + 1.0) * d, chance=0.25 * d)
            for s in range(seeds)
            for t in steps
            for d in difficulties
        ]
    )


@pytest.fixture
def axis():
    return figures.canvas(1)[1][0, 0]


def lines(axis, thick):
    return [line for line in axis.lines if (line.get_linewidth() > 1.5) == thick and line.get_linestyle() != ":"]


def test_every_seed_is_drawn_over_steps_and_the_median_thick(axis):
    figures.accuracy_over_steps(axis, rows(), "test", "red", "label")
    thin, (median,) = lines(axis, False), lines(axis, True)
    np.testing.assert_allclose([line.get_ydata() for line in thin], [[0.15] * 3, [0.3] * 3, [0.45] * 3])
    np.testing.assert_allclose(median.get_ydata(), [0.3] * 3)
    assert list(median.get_xdata()) == [1, 10, 20] and axis.get_xscale() == "log" and median.get_label() == "label"


def test_other_splits_are_not_drawn(axis):
    both = pd.concat([rows(), rows(seeds=3, split="train").assign(exact=0.0)])
    figures.accuracy_over_steps(axis, both, "test", "red", "")
    assert all(line.get_ydata().min() > 0 for line in axis.lines)


@pytest.mark.parametrize("step, at", [(None, 20), (10, 10)])
def test_every_seed_is_drawn_over_difficulty_with_chance(axis, step, at):
    several = rows()
    several.loc[several["step"] != at, "exact"] = 0
    mixed = rows(split="online", difficulties=(0,)).assign(step=30)
    figures.accuracy_over_difficulty(axis, pd.concat([several, mixed]), "red", "label", step)
    thin = lines(axis, False)
    np.testing.assert_allclose([line.get_ydata() for line in thin], [[0.1, 0.2], [0.2, 0.4], [0.3, 0.6]])
    (chance,) = [line for line in axis.lines if line.get_linestyle() == ":"]
    np.testing.assert_allclose(chance.get_ydata(), [0.25, 0.5])


def test_difficulties_without_problems_are_left_out(axis):
    several = rows()
    several.loc[several["difficulty"] == 2, ["problems", "exact"]] = 0
    figures.accuracy_over_difficulty(axis, several, "red", "")
    assert all(list(line.get_xdata()) == [1] for line in axis.lines)


def test_a_measure_is_its_sum_over_its_count(axis):
    measured = rows(split="measured", difficulties=(0,))
    measured["norm"], measured["norm_count"] = 6.0 * (measured["seed"] + 1), 2.0
    figures.measure_over_steps(axis, pd.concat([rows(), measured]), "norm", "red", "")
    assert [set(line.get_ydata()) for line in lines(axis, False)] == [{3.0}, {6.0}, {9.0}]


@pytest.mark.parametrize("seeds, says", [(1, "(only 1!)"), (4, "(only 4!)"), (5, None), (9, None)])
def test_a_figure_of_few_seeds_says_so(seeds, says):
    drawn, _ = figures.canvas(1)
    figures.caption(drawn, rows(seeds), "words")
    text = drawn.get_supxlabel()
    assert text.startswith("words; ") and f"{seeds} seeds" in text
    assert re.findall(r"\(only \d+!\)", text) == ([says] if says else [])


def test_a_figure_saves_to_the_same_bytes(tmp_path):
    for name in "ab":
        drawn, axes = figures.canvas(2, 1)
        figures.accuracy_over_steps(axes[0, 0], rows(), "test", "red", "label")
        figures.training_range(axes[0, 1], 3)
        figures.save(drawn, tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_no_window_and_no_global_state():
    import matplotlib

    figures.canvas(1)
    assert "matplotlib.pyplot" not in __import__("sys").modules or not matplotlib._pylab_helpers.Gcf.figs
