"""How much of Grokfast's speed is the filter's, and how much is weight decay's or a larger step's.

    ./launch/reproduce.sh grokfast                      a quarter of an hour on two CPU cores

Lee et al. 2024, "Grokfast: accelerated grokking by amplifying slow gradients" (arXiv 2405.20233): a slow part of the
gradient, its moving average, is amplified before Adam takes it. Its fastest arms also have a weight decay that its
baseline lacks. So here every arm comes with and without the decay (L2 in the gradient, as in its code), and the filter,
which multiplies a constant gradient by 1 + lambda, is set beside a learning rate as many times as high. x y mod p, half
of the table; at CPU scale one layer of width 64 at p = 59, at most 20,000 steps; an arm ends when all of its seeds have
held the test at .99.
"""

import dataclasses
import math
import sys

import numpy as np
import pandas as pd

from e2h import figures
from e2h.claims import Claim, first_step, verdict
from e2h.config import Config
from e2h.layouts.table import Table
from e2h.models.transformer import Transformer
from e2h.optimizers.adam_l2 import AdamL2
from e2h.optimizers.grokfast_ema import GrokfastEMA
from e2h.optimizers.grokfast_ma import GrokfastMA
from e2h.positions.learned import Learned
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import Fraction
from e2h.tasks.modular import Modular
from experiments import _main

LEE = "Lee et al. 2024, arXiv 2405.20233"
PLAIN, DECAYED = "Adam", "Adam, decay"
FILTERED, BOTH = "filter", "filter, decay"
FASTER, FASTER_DECAYED = "Adam, rate x 3", "Adam, rate x 3, decay"
AVERAGED = "windowed filter, decay .01"
LAM = 2.0  # of the filter; the learning rate of the control is 1 + LAM times as high


def base(scale: str, argv: list[str]) -> Config:
    del argv
    paper = scale == "paper"
    return Config(
        task=Modular(op="multiply", p=97 if paper else 59),
        split=Fraction(train_fraction=0.5, by="ordered"),
        layout=Table(equals=True),
        position=Learned(max_length=8),
        model=Transformer(width=128 if paper else 64, layers=2 if paper else 1),
        optimizer=AdamL2(learning_rate=1e-3, b2=0.98, warmup_steps=10),
        batch_size=512,
        test_size=16384,
        seeds=3,
        steps=300_000 if paper else 20_000,
        record_every=10,
        evaluate_every=40,
        until=0.99,
    )


def arms(config: Config) -> dict[str, Config]:
    """Adam, the filter, and the larger step, each without and with decay .005; and the paper's windowed filter."""

    def adam(decay: float = 0.0, times: float = 1.0) -> AdamL2:
        rate = config.optimizer.learning_rate * times
        return dataclasses.replace(config.optimizer, weight_decay=decay, learning_rate=rate)

    optimizers = {
        PLAIN: adam(),
        DECAYED: adam(0.005),
        FILTERED: GrokfastEMA(inner=adam(), alpha=0.98, lam=LAM),
        BOTH: GrokfastEMA(inner=adam(0.005), alpha=0.98, lam=LAM),
        FASTER: adam(0.0, 1 + LAM),
        FASTER_DECAYED: adam(0.005, 1 + LAM),
        AVERAGED: GrokfastMA(inner=adam(0.01), window=100, lam=5.0),
    }
    found = {arm: dataclasses.replace(config, optimizer=optimizer) for arm, optimizer in optimizers.items()}
    for arm in (PLAIN, DECAYED, FASTER, FASTER_DECAYED):  # slower, so that fewer evaluations say as much
        found[arm] = dataclasses.replace(found[arm], evaluate_every=3 * config.evaluate_every)
    return found


def arrivals(rows) -> pd.DataFrame:
    """The first evaluated step with test >= .95, as in the paper: seed x arm; inf if not within the budget."""
    return pd.DataFrame({arm: first_step(r, TEST, 0.95) for arm, r in rows.groupby("arm", sort=False)})


def kept(rows: pd.DataFrame) -> pd.DataFrame:
    return _main.thin(rows, 0.95, 0.99)


def claims(rows):
    times = arrivals(rows)
    budget = float(rows["step"].max())
    median = times.median()
    others = [PLAIN, DECAYED, FILTERED, FASTER, FASTER_DECAYED]
    yield Claim(
        "fastest", LEE, "The filter with weight decay is the fastest arm.", "910 steps; 39,890 for plain Adam",
        "table 1 and the authors' code",
        "its median is below those of plain Adam, of decay or filter alone, of both larger steps", tuple(times[BOTH]),
        verdict(median[BOTH] < math.inf and all(median[BOTH] < median[arm] for arm in others)),
    )  # fmt: skip
    headline = np.minimum(times[PLAIN], budget) / times[BOTH]
    yield Claim(
        "headline", LEE, "Filter and decay together speed grokking up many times over plain Adam without decay.",
        "43.84", "the authors' code, one run", "median ratio >= 10 (a lower bound where plain Adam never arrives)",
        tuple(headline), verdict(headline.median() >= 10),
    )  # fmt: skip
    matched = np.minimum(times[DECAYED], budget) / times[BOTH]
    yield Claim(
        "decay-matched", LEE, "At the same weight decay the filter still speeds grokking up.",
        "no number; without decay on both sides 13.57, with another filter", "the authors' code, one run",
        "median ratio > 1.5", tuple(matched), verdict(matched.median() > 1.5),
    )  # fmt: skip
    stepped = np.minimum(times[FASTER_DECAYED], budget) / times[BOTH]
    yield Claim(
        "more-than-a-larger-step", LEE, "The filter does more than a learning rate 1 + lambda times as high.",
        "no number", "a control asked for in its code's discussion", "median ratio > 1, at the same decay",
        tuple(stepped), verdict(stepped.median() > 1),
    )  # fmt: skip


def figure(rows):
    drawn, (axes,) = figures.canvas(2)
    times = arrivals(rows)
    for color, arm in zip((*figures.COLORS, "#000000"), times.columns, strict=False):
        of_arm = rows[rows["arm"] == arm]
        figures.accuracy_over_steps(axes[0], of_arm, TEST, color, arm)
        figures.accuracy_over_steps(axes[0], of_arm, TRAIN, color, "", "--")
        at = list(times.columns).index(arm)
        seen = times[arm][np.isfinite(times[arm])]
        axes[1].plot([at] * len(seen), seen, "o", color=color, alpha=0.6)
        axes[1].plot([at] * (len(times) - len(seen)), [rows["step"].max()] * (len(times) - len(seen)), "o", color=color,
                     markerfacecolor="none")  # fmt: skip
    axes[0].legend(fontsize=6)
    axes[1].set(yscale="log", ylabel="first step with test >= .95 (open: not in budget)")
    axes[1].set_xticks(range(len(times.columns)), times.columns, rotation=30, ha="right", fontsize=7)
    figures.caption(drawn, rows, "x y mod p, half of the table (dashed: training)")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
