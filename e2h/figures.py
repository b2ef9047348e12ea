"""House style: rows -> axes. Every seed is drawn; the median is thick; chance and baselines are grey."""

import io
import pathlib

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image  # a dependency of matplotlib

COLORS = ("#3366aa", "#cc5533", "#228866", "#885599", "#aa8800", "#777777")
GREY = "#999999"
FEW = 5  # with fewer seeds than this a figure says so


def canvas(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.2) -> tuple[Figure, np.ndarray]:
    """A figure and its axes [rows, columns]; no window, no global state."""
    figure = Figure(
        figsize=(width * columns, height * rows), dpi=100 if rows * columns > 4 else 140, layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def seeds_and_median(axis: Axes, wide: pd.DataFrame, color: str, label: str, style: str = "-") -> None:
    """One thin line for each column (seed) of `wide` and a thick one for their median, over its index."""
    axis.plot(wide.index, wide.to_numpy(), color=color, linewidth=0.7, alpha=0.45, linestyle=style)
    axis.plot(wide.index, wide.median(axis=1), color=color, linewidth=2.0, linestyle=style, label=label)


def accuracy_over_steps(axis: Axes, rows: pd.DataFrame, split: str, color: str, label: str, style: str = "-") -> None:
    """Exact match on a split against the step, all difficulties together; log steps, step 0 at the left edge."""
    sums = rows[rows["split"] == split].groupby(["step", "seed"])[["exact", "problems"]].sum()
    wide = (sums["exact"] / sums["problems"]).unstack("seed")
    wide.index = np.maximum(wide.index, 1)
    seeds_and_median(axis, wide, color, label, style)
    chance = rows[rows["split"] == split].groupby("step")["chance"].mean()
    axis.plot(np.maximum(chance.index, 1), chance, color=GREY, linestyle=":", linewidth=1.2)
    axis.set(xscale="log", ylim=(-0.03, 1.03), xlabel="step", ylabel="exact match")


def accuracy_over_difficulty(axis: Axes, rows: pd.DataFrame, color: str, label: str, step: int | None = None) -> None:
    """Exact match against the difficulty at one step (default: the last), with its chance; one line for each seed."""
    rows = rows[rows["difficulty"] > 0]
    rows = rows[(rows["step"] == (rows["step"].max() if step is None else step)) & (rows["problems"] > 0)]
    wide = (rows["exact"] / rows["problems"]).groupby([rows["difficulty"], rows["seed"]]).mean().unstack("seed")
    seeds_and_median(axis, wide, color, label)
    chance = rows.groupby("difficulty")["chance"].first()
    axis.plot(chance.index, chance, color=GREY, linestyle=":", linewidth=1.2)
    axis.set(ylim=(-0.03, 1.03), ylabel="exact match")


def training_range(axis: Axes, last: float) -> None:
    """Shades what training saw."""
    axis.axvspan(axis.get_xlim()[0], last + 0.5, color="#000000", alpha=0.05, linewidth=0)


def measure_over_steps(axis: Axes, rows: pd.DataFrame, name: str, color: str, label: str, style: str = "-") -> None:
    """A measure against the step."""
    measured = rows[rows["split"] == "measured"]
    wide = (
        (measured[name] / measured[f"{name}_count"])
        .groupby([measured["step"], measured["seed"]])
        .mean()
        .unstack("seed")
    )
    wide.index = np.maximum(wide.index, 1)
    seeds_and_median(axis, wide, color, label, style)
    axis.set(xscale="log", xlabel="step", ylabel=name.replace("_", " "))


def caption(figure: Figure, rows: pd.DataFrame, words: str) -> None:
    """A line under the figure: what was run, and how many seeds are drawn."""
    count = rows["seed"].nunique()
    mark = "" if count >= FEW else f" (only {count}!)"
    figure.supxlabel(f"{words}; {count} seeds, each a thin line{mark}; median thick; dotted: chance", fontsize=7)


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes a PNG of at most 128 colours, a third of the size: outcomes are committed."""
    pixels = io.BytesIO()
    figure.savefig(pixels, metadata={"Software": None})
    Image.open(pixels).convert("RGB").quantize(128).save(path, optimize=True)
