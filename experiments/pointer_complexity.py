"""Train on few hops, test on more, in prompts of one length: does a transformer of fixed depth hop on?

    ./launch/reproduce.sh pointer_complexity            about fifteen minutes on two CPU cores

Complexity out of distribution in the sense of Samiei et al. 2025 (arXiv 2510.06274), on a task of our own
(e2h/tasks/pointer_chasing.py). The control, "counting", has the same prompts over the cycle f(i) = i + 1: a network
that fails there cannot count the flags, whatever it does about the table. In the stored outcome the control, perfect
on the trained counts, fails beyond them too: so the failure to hop on is at least a failure to count on.

At CPU scale the cycle has 11 names (24 at paper scale) and 5 flags, so that only 4 and 5 hops are beyond the trained
1..3, and at 5 every flag is set. A net that knows which names are wrong, but no further hop, scores at most 1/4 there.
"""

import dataclasses
import sys

import numpy as np

from e2h import figures
from e2h.claims import UNTESTABLE, Claim, score, verdict
from e2h.config import Config
from e2h.curricula.uniform import Uniform
from e2h.layouts.tagging import Tagging
from e2h.models.transformer import Transformer
from e2h.optimizers.adamw import AdamW
from e2h.positions.learned import Learned
from e2h.splits import TEST
from e2h.splits.complexity import Complexity
from e2h.tasks.pointer_chasing import PointerChasing
from experiments import _main

SAMIEI = "Samiei et al. 2025, arXiv 2510.06274"
UNSEEN = "test_complexity"


def base(scale: str, argv: list[str]) -> Config:
    """Four encoder layers; places are learned for the flags alone, since the table stands in no order.

    At CPU scale three hops are trained: by their in-distribution accuracy alone, four are not learned in its budget.
    """
    del argv
    paper = scale == "paper"
    return Config(
        task=PointerChasing(names=24, flags=12) if paper else PointerChasing(names=11, flags=5),
        split=Complexity(train_max=4, test_max=10) if paper else Complexity(train_max=3, test_max=5),
        layout=Tagging(),
        position=Learned(max_length=64),
        model=Transformer(width=64, layers=4, heads=4, causal=False),
        curriculum=Uniform(mixed=True),
        optimizer=AdamW(learning_rate=1e-3),
        batch_size=256,
        seeds=5 if paper else 3,
        steps=40_000 if paper else 2700,
        record_every=50,
        evaluate_every=500,
        checkpoint_every=500,
        test_size=600,
    )


def arms(config: Config) -> dict[str, Config]:
    """The control is soon learned; it has a quarter of the budget."""
    counting = dataclasses.replace(
        config, task=dataclasses.replace(config.task, cycle="counting"), steps=max(1, config.steps // 4)
    )
    return {"pointer chasing": config, "counting control": counting}


def claims(rows):
    chasing = rows[rows["arm"] == "pointer chasing"]
    easy, hard = score(chasing, TEST), score(chasing, UNSEEN)
    judged = verdict(hard.median() <= 0.30) if easy.median() >= 0.95 else UNTESTABLE
    yield Claim(
        "in-distribution", SAMIEI, "A four-layer transformer learns the hops it is trained on.",
        "no number published", "our task", "median >= .95 on fresh problems of the trained hops",
        tuple(easy), verdict(easy.median() >= 0.95),
    )  # fmt: skip
    yield Claim(
        "beyond", SAMIEI, "It does not hop on: accuracy falls on problems of more steps and the same length.",
        "no number published", "our task",
        "median <= .30 over the untrained hops, where the trained ones are known (>= .95)",
        tuple(hard), judged,
    )  # fmt: skip


def figure(rows):
    drawn, (axes,) = figures.canvas(2)
    for axis, (arm, of_arm) in zip(axes, rows.groupby("arm", sort=False), strict=True):
        figures.accuracy_over_difficulty(axis, of_arm, figures.COLORS[0], "4-layer transformer")
        trained = rows[rows["split"] == TEST]["difficulty"].max()
        if arm == "pointer chasing":
            _baselines(axis, of_arm, trained)
        figures.training_range(axis, trained)
        axis.set(title=arm, xlabel="hops (shaded: seen in training)")
        axis.legend(fontsize=7)
    figures.caption(drawn, rows, "every prompt has the same length")
    return drawn


def _baselines(axis, rows, trained: int) -> None:
    """What a network that cannot make the next hop could score at best: it knows only which names are wrong."""
    names = round(1 / rows["chance"].dropna().iloc[0])
    hops = np.arange(trained + 1, rows["difficulty"].max() + 1)
    for excluded, label, style in (
        (1, "any name but the start", "--"),
        (1 + trained, "none of the trained hops", "-."),
        (1 + 2 * trained, "nor their reverse", ":"),
    ):
        axis.plot(
            hops, np.full(len(hops), 1 / (names - excluded)), color="#555555", linestyle=style, label=label, linewidth=1
        )


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
