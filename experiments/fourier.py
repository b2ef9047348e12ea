"""What forms before it shows: Fourier progress measures of a transformer that groks a + b mod p.

    ./launch/reproduce.sh fourier                       a quarter of an hour on two CPU cores
    ./launch/reproduce.sh fourier --scale=paper         p = 113, 30 % of the table, 40,000 steps, for an accelerator

Nanda et al. 2023, "Progress measures for grokking via mechanistic interpretability" (arXiv 2301.05217): one layer of
width 128 without layer norm, four heads, learned positions, biases in the feed-forward layers alone, read at `=`; full
batch, AdamW at learning rate .001, cross-entropy in float64. With decay it memorizes, then forms a circuit of few waves
(the restricted loss falls, the excluded loss rises), then drops what it had learned by heart, and only there the test
accuracy jumps. At CPU scale p = 59, 40 % of the table and 256 hidden units instead of 512.

Which decay suits p = 59 was not known, so claims are judged at the least of 1, 2 and 5 at which two thirds of the
seeds arrive within the budget, and of these seeds. Every matrix, the positions and the embedding start at a standard
deviation of 1 / sqrt(128); the published unembedding starts at one over the root of the vocabulary, and has a logit for
`=`. The published split is a shuffle of Python's; ours differs between the seeds. As published it is of ordered pairs:
a test problem a + b may have b + a in training.
"""

import dataclasses
import math
import sys

import jax
import numpy as np
import pandas as pd

from e2h import figures, grid
from e2h.claims import UNTESTABLE, Claim, first_step, highest, verdict
from e2h.config import Config
from e2h.layouts.table import Table
from e2h.losses.cross_entropy import CrossEntropy
from e2h.measures import _fourier
from e2h.measures.fourier_gini import FourierGini
from e2h.models.transformer import Transformer
from e2h.optimizers.adamw import AdamW
from e2h.positions.learned import Learned
from e2h.registry import Refused
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import Fraction
from e2h.tasks.modular import Modular
from experiments import _main

WHOLE = 2**20  # more than any table holds: full batch
NANDA = "Nanda et al. 2023, arXiv 2301.05217"
QUOTED = "p = 113, decay 1, one seed; quoted by third parties"
CONTROL, DECAYED = "decay 0", ("decay 1", "decay 2", "decay 5")
STEPS = {CONTROL: (0.0, 3000), "decay 1": (1.0, 4000), "decay 2": (2.0, 5000), "decay 5": (5.0, 4000)}
RESTRICTED, EXCLUDED, GINI = "restricted_loss", "excluded_loss", "fourier_gini:inputs"
SPECTRUM = "spectrum"  # the split of the rows that `inspect` adds


def base(scale: str, argv: list[str]) -> Config:
    del argv
    paper, width = scale == "paper", 128
    return Config(
        task=Modular(op="add", p=113 if paper else 59),
        split=Fraction(train_fraction=0.3 if paper else 0.4, by="ordered"),
        layout=Table(equals=True),
        position=Learned(max_length=3),
        model=Transformer(
            width=width, layers=1, heads=4, expansion=4 if paper else 2, norm="none", activation="relu",
            bias_in="feed_forward", kernel_init="normal_1",
        ),
        init_scale=width**-0.5,
        loss=CrossEntropy("float64"),
        optimizer=AdamW(learning_rate=1e-3, b2=0.98, warmup_steps=10),
        batch_size=WHOLE,
        seeds=3,
        test_size=16384,
        steps=40_000 if paper else 5000,
        record_every=50,
        evaluate_every=100 if paper else 50,
        until=1.0,  # the end of the clean-up
        measures=(RESTRICTED, EXCLUDED, "fourier_gini", "fourier_ipr", "fourier_entropy", "weight_norm"),
    )  # fmt: skip


def arms(config: Config) -> dict[str, Config]:
    """Without decay, and with each decay; at CPU scale with budgets that fit the minutes."""

    def at(decay: float, steps: int) -> Config:
        optimizer = dataclasses.replace(config.optimizer, weight_decay=decay)
        return dataclasses.replace(
            config, optimizer=optimizer, steps=config.steps if config.task.p >= 113 else min(steps, config.steps)
        )

    return {arm: at(*setting) for arm, setting in STEPS.items()}


def inspect(arm: str, config: Config, state) -> pd.DataFrame | None:
    """Each frequency's share of the embedding's power but for its constant, when the arm ends."""
    try:
        FourierGini().check(config)
    except Refused:
        return None

    def power(params):
        return _fourier.power(_fourier.inputs(params, config).reshape(-1, config.task.p))[1:]

    power_SxK = np.asarray(jax.jit(jax.vmap(power))(state.params), np.float64)
    share_SxK = power_SxK / power_SxK.sum(1, keepdims=True)
    of_seeds = [
        pd.DataFrame(dict(seed=seed, frequency=np.arange(1, len(share_K) + 1), share=share_K.round(5)))
        for (seed, _), share_K in zip(grid.members(config), share_SxK, strict=True)
    ]
    return pd.concat(of_seeds).assign(arm=arm, split=SPECTRUM, step=int(state.step))


def claims(rows):
    """t_mem and t_gen: the first evaluated steps at which the training and the test accuracy reach .99."""
    arm = dict(list(rows.groupby("arm")))
    t_mem = {name: first_step(arm[name], TRAIN, 0.99) for name in STEPS}
    t_gen = {name: first_step(arm[name], TEST, 0.99) for name in STEPS}
    grokked = [name for name in DECAYED if (t_gen[name] < math.inf).mean() >= 2 / 3 - 1e-9]
    least = grokked[0] if grokked else DECAYED[-1]
    of_least, arrived, where = arm[least], t_gen[least] < math.inf, "at the least decay that generalizes"
    delay = (t_gen[least] / t_mem[least]).where(arrived, math.inf)
    yield Claim(
        "groks", NANDA, "With decay the test arrives long after the training accuracy.",
        "memorized before step 1,400, generalized at about 14,000", QUOTED,
        f"{where}, t_gen / t_mem >= 5 on every seed that arrives, and two thirds arrive", tuple(delay),
        verdict(bool(grokked) and (delay[arrived] >= 5).all()),
    )  # fmt: skip

    def judged(value, holds) -> str:
        """Of the seeds that arrive. Without any, or without the measure, nothing is known."""
        if not grokked or value[arrived].isna().any():
            return UNTESTABLE
        return verdict(holds[arrived].all())

    restricted, excluded = at_step(of_least, RESTRICTED), at_step(of_least, EXCLUDED)
    ratio = restricted / at_step(of_least, "loss", TEST, "problems")
    yield Claim(
        "restricted-is-enough", NANDA, "Key frequencies alone answer as well as the whole network, or better.",
        "restricted 5.54e-8, full 2.41e-7", QUOTED,
        f"{where}, final restricted loss <= 1.2 x test loss on every seed that arrives", tuple(ratio),
        judged(ratio, ratio <= 1.2),
    )  # fmt: skip
    yield Claim(
        "excluded-is-nothing", NANDA, "Without the key frequencies the training problems are no longer known.",
        "rises while the circuit forms; no number", QUOTED,
        f"{where}, final excluded loss >= 1 nat on every seed that arrives", tuple(excluded),
        judged(excluded, excluded >= 1),
    )  # fmt: skip
    early = first_step(of_least, TEST, 0.5) / first_below_half(of_least)
    yield Claim(
        "restricted-comes-first", NANDA, "The restricted loss falls before the test accuracy rises.",
        "circuit from step 1,400 to 9,400, test after it", QUOTED,
        f"{where}, (step of test accuracy .5) / (step of restricted loss below half of ln p) > 1 on every seed that "
        "arrives", tuple(early), judged(early, early > 1),
    )  # fmt: skip
    first, last = at_step(of_least, GINI, last=False), at_step(of_least, GINI)
    yield Claim(
        "embedding-becomes-sparse", NANDA, "The embedding becomes sparse in Fourier space, which it is not at first.",
        "five key frequencies of 56; no Gini coefficient", QUOTED,
        f"{where}, Gini coefficient of the embedding's Fourier norms >= .5 at the end and < .5 at step 0, on every "
        "seed that arrives", tuple(last), judged(last + first, (last >= 0.5) & (first < 0.5)),
    )  # fmt: skip
    never = (t_gen[CONTROL] == math.inf).all() and (t_mem[CONTROL] < math.inf).all()
    compared = bool(grokked) and arm[CONTROL]["step"].max() >= t_gen[least].median()
    best = highest(arm[CONTROL], TEST)
    yield Claim(
        "no-decay-never", NANDA, "Without decay the training problems are learned and the test is not.",
        "does not grok within 40,000 steps", QUOTED,
        "highest test accuracy < .99 and training reaches .99, on every seed; judged if it was trained for longer than "
        "the least decay's median t_gen", tuple(best), UNTESTABLE if never and not compared else verdict(never),
    )  # fmt: skip


def over_steps(rows, name: str, split: str, of: str) -> pd.DataFrame:
    """Sum over count of one column on one split: [step, seed]; NaN where it is not."""
    rows = rows[rows["split"] == split]
    missing = pd.Series(math.nan, rows.index)
    mean = rows.get(name, missing) / rows.get(of, missing).where(lambda count: count > 0)
    return mean.groupby([rows["step"], rows["seed"]]).mean().unstack("seed")


def at_step(rows, name: str, split: str = "measured", of: str = "", last: bool = True) -> pd.Series:
    """Each seed's number at the last evaluated step, or the first; NaN for what was not measured."""
    wide = over_steps(rows, name, split, of or f"{name}_count")
    seeds = sorted(rows["seed"].unique())
    return wide.iloc[-1 if last else 0].reindex(seeds) if len(wide) else pd.Series(math.nan, seeds)


def first_below_half(rows) -> pd.Series:
    """The first evaluated step at which each seed's restricted loss is below half of that of a guess, ln p.

    Infinite for a seed where it never is, NaN where it was not measured.
    """
    wide = over_steps(rows, RESTRICTED, "measured", f"{RESTRICTED}_count")
    if not len(wide) or wide.isna().any(axis=None):
        return pd.Series(math.nan, sorted(rows["seed"].unique()))
    ln_p = -math.log(rows["chance"].max())
    below = wide < ln_p / 2
    return below.idxmax().where(below.any(), math.inf).astype(float)


def figure(rows):
    """A column for each arm: accuracies, losses, sparsity, and the final embedding of each seed."""
    drawn, axes = figures.canvas(len(STEPS), 4, width=3.2, height=2.3)
    for column, arm in zip(axes.T, STEPS, strict=True):
        of_arm = rows[rows["arm"] == arm]
        for color, part in zip(figures.COLORS, (TRAIN, TEST), strict=False):
            figures.accuracy_over_steps(column[0], of_arm, part, color, part)
        column[0].set_title(arm, fontsize=9)
        draw_losses(column[1], of_arm)
        for color, name in zip(figures.COLORS, (GINI, "fourier_gini:outputs", "fourier_ipr"), strict=False):
            if name in rows:
                figures.measure_over_steps(column[2], of_arm, name, color, name.replace("_", " "))
        column[2].set(ylim=(0, 1), ylabel="sparsity")
        if "share" in rows:
            draw_spectrum(column[3], of_arm[of_arm["split"] == SPECTRUM])
        for axis in column[:3]:
            if axis.get_legend_handles_labels()[0]:  # some of it may not have been measured
                axis.legend(fontsize=6)
    figures.caption(drawn, rows, "one layer, full batch, AdamW; spectra: a color for each seed, at the last step")
    return drawn


def draw_losses(axis, rows) -> None:
    """Training, test, restricted and excluded loss."""
    sources = {TRAIN: ("loss", TRAIN, "problems"), TEST: ("loss", TEST, "problems")}
    sources |= {name.replace("_", " "): (name, "measured", f"{name}_count") for name in (RESTRICTED, EXCLUDED)}
    for color, (label, source) in zip(figures.COLORS, sources.items(), strict=False):
        wide = over_steps(rows, *source)
        wide.index = np.maximum(wide.index, 1)
        figures.seeds_and_median(axis, wide, color, label)
    axis.set(xscale="log", yscale="log", xlabel="step", ylabel="loss")


def draw_spectrum(axis, rows) -> None:
    for color, (_, of_seed) in zip(figures.COLORS, rows.groupby("seed"), strict=False):
        axis.plot(of_seed["frequency"], of_seed["share"], color=color, linewidth=0.9, marker=".", markersize=3)
    axis.set(xlabel="frequency", ylabel="share of the embedding")


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
