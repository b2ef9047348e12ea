"""Train on bit strings of up to 20, test on up to 100: who learns parity, and who only looks at the ends?

    ./launch/reproduce.sh parity_length                 about ten minutes on two CPU cores
    ./launch/reproduce.sh parity_length --scale=paper   lengths 1..40 -> 500, width 256, a million steps

Delétang et al. 2022, "Neural networks and the Chomsky hierarchy" (arXiv 2207.02098), tasks parity check and even pairs.
The recurrent networks have to keep one bit; the transformer has no such automaton and stays at chance beyond its
training lengths on parity. Even pairs only asks whether the first and last bits differ, which attention can do.
The paper scores tokens; here an answer is one token, so exact match is the same number.
"""

import dataclasses
import sys

from e2h import figures
from e2h.claims import Claim, score, verdict
from e2h.config import Config
from e2h.layouts.query import Query
from e2h.models.lstm import LSTM
from e2h.models.rnn import RNN
from e2h.models.transformer import Transformer
from e2h.optimizers.adamw import AdamW
from e2h.positions.none import NoPosition
from e2h.positions.sinusoidal import Sinusoidal
from e2h.splits.length import Length
from e2h.tasks.even_pairs import EvenPairs
from e2h.tasks.parity import Parity
from experiments import _main

DELETANG = "Delétang et al. 2022, arXiv 2207.02098"
TASKS = {"parity": Parity(), "even pairs": EvenPairs()}


def base(scale: str, argv: list[str]) -> Config:
    """Adam with the gradient clipped at norm 1 and one length a batch, as in the paper's code."""
    del argv
    paper = scale == "paper"
    return Config(
        task=Parity(),
        split=Length(train_max=40, test_max=500, test_every=10) if paper else Length(test_every=5),
        layout=Query(),
        model=RNN(width=256 if paper else 64),
        optimizer=AdamW(learning_rate=3e-4 if paper else 1e-3, clip_norm=1.0),
        seeds=10 if paper else 5,
        steps=1_000_000 if paper else 2500,
        record_every=100,
        evaluate_every=10_000 if paper else 500,
        checkpoint_every=10_000 if paper else 500,
    )


def arms(config: Config) -> dict[str, Config]:
    """Each network on each task.

    The transformer is the paper's encoder (5 layers and 8 heads there, 2 and 4 at CPU scale) without its dropout, with
    biases, and with places counted from the start.
    """
    width = config.model.width
    deep = config.split.train_max >= 40  # the paper's depth at the paper's lengths
    encoder = Transformer(
        width=64, layers=5 if deep else 2, heads=8 if deep else 4, causal=False, norm="post", activation="relu",
        embed_std=0.16,  # as in its code: 0.02 times the root of the width
    )  # fmt: skip
    networks = {
        "rnn": (RNN(width=width), NoPosition()),
        "lstm": (LSTM(width=width), NoPosition()),
        "transformer": (encoder, Sinusoidal()),
    }
    return {
        f"{network}, {task}": dataclasses.replace(config, task=TASKS[task], model=model, position=position)
        for task in TASKS
        for network, (model, position) in networks.items()
    }


def claims(rows):
    """Scores are over all lengths beyond training together, at the last step."""
    beyond = {arm: score(r, "test_length") for arm, r in rows.groupby("arm")}
    for network, published in (("rnn", "100.0"), ("lstm", "100.0")):
        yield Claim(
            f"{network}-parity", DELETANG, f"The {network.upper()} solves parity beyond its training lengths.",
            f"{published} % (maximum over runs)", "table 2", "best seed >= .99 over lengths 21, 25, ..., 100",
            tuple(beyond[f"{network}, parity"]), verdict(beyond[f"{network}, parity"].max() >= 0.99),
        )  # fmt: skip
    transformer = beyond["transformer, parity"]
    yield Claim(
        "transformer-parity", DELETANG, "The transformer stays at chance on parity beyond its training lengths.",
        "52.0 % (maximum over runs)", "table 2", "every seed between .45 and .57 over lengths 21, 25, ..., 100",
        tuple(transformer), verdict(transformer.between(0.45, 0.57).all()),
    )  # fmt: skip


def figure(rows):
    drawn, (axes,) = figures.canvas(len(TASKS))
    for axis, task in zip(axes, TASKS, strict=True):
        here = rows[rows["arm"].str.endswith(task)]
        for color, (arm, of_arm) in zip(figures.COLORS, here.groupby("arm", sort=False), strict=False):
            figures.accuracy_over_difficulty(axis, of_arm, color, arm.split(",")[0])
        figures.training_range(axis, rows[rows["split"] == "test"]["difficulty"].max())
        axis.set(title=task, xlabel="length (shaded: seen in training)")
        axis.legend(fontsize=7)
    figures.caption(drawn, rows, "lengths 1..n in training, one a batch")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
