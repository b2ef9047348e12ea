"""Grokking that can be written down: a quadratic network on modular arithmetic, plain gradient descent, no decay.

    ./launch/reproduce.sh gromov                        a quarter of an hour on two CPU cores

Gromov 2023, "Grokking modular arithmetic" (arXiv 2301.02679): f(x) = W2 (W1 x / sqrt(2p))^2 / N with all weights from
N(0, 1), mean squared error, full batch. The paper prints no learning rate; the gradient at the start is about
2 / (p^3 N), so that rates are large and grow as p^3 N: here 10^6 at p = 97, N = 500. Addition is learned because a
periodic solution exists for f(g(x) + h(y)); a cross term forbids it, and the same network only memorizes (Doshi et al.
2024, "Grokking modular polynomials", arXiv 2406.03495, whose matched pairs are trained here at the same budget).

The step counts and accuracies beside ours are of a careful replication by a third party, as the papers state none.
"""

import dataclasses
import math
import sys

from e2h import figures
from e2h.claims import Claim, first_step, score, verdict
from e2h.config import Config
from e2h.losses.mse import MeanSquaredError
from e2h.models.mlp import MLP
from e2h.optimizers.sgd import SGD
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import Fraction
from e2h.tasks.modular import Modular
from experiments import _main

WHOLE = 2**20  # more than any table holds: full batch
GROMOV, DOSHI = "Gromov 2023, arXiv 2301.02679", "Doshi et al. 2024, arXiv 2406.03495"
REPLICATED = "a third party's replication, one seed; the paper states no number"
ADD, CROSS = "x + y", "x^3 + x y^2 + y"
PAIRS = {  # learnable, and the same with a term more
    "(2x + 3y)^4": ("fourth_2x_plus_3y", 1500),
    "(2x + 3y)^4 - x^2": ("fourth_2x_plus_3y_minus_x2", 1500),
    "(4x + y^2)^3": ("cubed_4x_plus_y2", 2500),
    "(4x + y^2)^3 + x y": ("cubed_4x_plus_y2_plus_xy", 2500),
}
SMALL, STARVED = "x + y mod 23, 70 %", "x + y mod 23, 50 %"


def base(scale: str, argv: list[str]) -> Config:
    del argv
    paper = scale == "paper"
    return Config(
        task=Modular(op="add", p=97),
        split=Fraction(train_fraction=0.5, by="ordered"),
        model=MLP(hidden=(500,), activation="quadratic", kernel_init="normal_1", mean_field=True),
        loss=MeanSquaredError(),
        optimizer=SGD(learning_rate=1e5 if paper else 1e6),
        batch_size=WHOLE,
        test_size=16384,
        record_every=20,
        evaluate_every=40,
        steps=100_000 if paper else 2500,
        measures=("weight_norm",),
    )


def arms(config: Config) -> dict[str, Config]:
    """Addition and what has no periodic solution; matched pairs; p = 23 with enough and too few training problems."""
    longer = config.steps / 2500
    config = at_size(config, 97, 500)

    def at(op: str, steps: int) -> Config:
        return dataclasses.replace(
            config, task=dataclasses.replace(config.task, op=op), steps=max(2, math.ceil(steps * longer))
        )

    found = {ADD: at("add", 2000), CROSS: at("x3_plus_xy2_plus_y", 2000)}
    found |= {arm: at(*pair) for arm, pair in PAIRS.items()}
    small = dataclasses.replace(
        config,
        task=dataclasses.replace(config.task, p=min(config.task.p, 23)),
        model=dataclasses.replace(config.model, hidden=(min(config.model.hidden[0], 200),)),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=1e4),
        steps=min(config.steps, 2000),
    )
    small = at_size(small, 23, 200)
    for arm, fraction in ((SMALL, 0.7), (STARVED, 0.5)):
        found[arm] = dataclasses.replace(small, split=dataclasses.replace(config.split, train_fraction=fraction))
    return found


def at_size(config: Config, p: int, width: int) -> Config:
    """The learning rate, given for a modulus and a width, brought to those of the config: it grows as p^3 N."""
    scale = (config.task.p / p) ** 3 * config.model.hidden[0] / width
    rate = config.optimizer.learning_rate * scale
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=rate))


def claims(rows):
    """t_mem and t_gen: the first evaluated steps at which training reaches .99 and the test .95."""
    by_arm = dict(list(rows.groupby("arm")))
    t_mem = {arm: first_step(r, TRAIN, 0.99) for arm, r in by_arm.items()}
    t_gen = {arm: first_step(r, TEST, 0.95) for arm, r in by_arm.items()}
    last = {arm: score(r, TEST) for arm, r in by_arm.items()}
    for name, times, published in (("memorized", t_mem, 960), ("generalized", t_gen, 1200)):
        yield Claim(
            f"add-{name}", GROMOV, f"At learning rate 10^6 addition mod 97 is {name} at about step {published}.",
            str(published), REPLICATED, "median within 25 % of it", tuple(times[ADD]),
            verdict(abs(times[ADD].median() / published - 1) <= 0.25),
        )  # fmt: skip
    yield Claim(
        "add-learned", GROMOV, "Gradient descent without any regularization generalizes addition completely.",
        "test 1.0", REPLICATED, "test >= .99 at the end on every seed", tuple(last[ADD]),
        verdict((last[ADD] >= 0.99).all()),
    )  # fmt: skip
    yield Claim(
        "cross-never", GROMOV, f"{CROSS}, which has no periodic solution, is memorized and never generalized.",
        "test <= .0113", REPLICATED, "training >= .99 and test <= .02 at the end on every seed", tuple(last[CROSS]),
        verdict((last[CROSS] <= 0.02).all() and (score(by_arm[CROSS], TRAIN) >= 0.99).all()),
    )  # fmt: skip
    learnable = list(PAIRS)[::2]
    for arm, broken, (published, failed) in zip(
        learnable, list(PAIRS)[1::2], (("1.0", ".019"), ("1.0", ".012")), strict=True
    ):
        yield Claim(
            f"pair-{PAIRS[arm][0]}", DOSHI, f"{arm} is generalized.", published, REPLICATED,
            "test >= .95 at the end on every seed", tuple(last[arm]), verdict((last[arm] >= 0.95).all()),
        )  # fmt: skip
        yield Claim(
            f"pair-{PAIRS[broken][0]}", DOSHI, f"{broken} is memorized and not generalized.", failed, REPLICATED,
            "training >= .99 and test <= .06 at the end on every seed", tuple(last[broken]),
            verdict((last[broken] <= 0.06).all() and (score(by_arm[broken], TRAIN) >= 0.99).all()),
        )  # fmt: skip
    yield Claim(
        "small-enough-data", GROMOV, "mod 23 with 70 % of the table the test follows the training accuracy.",
        "300 and 560 steps", "our float64 run in NumPy of the same protocol, one seed",
        "median t_gen within 40 % of 560", tuple(t_gen[SMALL]), verdict(abs(t_gen[SMALL].median() / 560 - 1) <= 0.4),
    )  # fmt: skip
    yield Claim(
        "small-too-little-data", GROMOV, "mod 23 with half of the table the training problems are only memorized.",
        "test .05-.08", REPLICATED, "training >= .99 and test <= .15 at the end on every seed", tuple(last[STARVED]),
        verdict((last[STARVED] <= 0.15).all() and (score(by_arm[STARVED], TRAIN) >= 0.99).all()),
    )  # fmt: skip


def figure(rows):
    drawn, axes = figures.canvas(4, 2)
    panels = [[ADD, CROSS], *(list(PAIRS)[i : i + 2] for i in (0, 2)), [SMALL, STARVED]]
    for column, panel in zip(axes.T, panels, strict=True):
        for color, arm in zip(figures.COLORS, panel, strict=False):
            of_arm = rows[rows["arm"] == arm]
            figures.accuracy_over_steps(column[0], of_arm, TRAIN, color, f"{arm}, train", "--")
            figures.accuracy_over_steps(column[0], of_arm, TEST, color, f"{arm}, test")
            figures.measure_over_steps(column[1], of_arm, "weight_norm", color, arm)
        column[0].legend(fontsize=6)
    figures.caption(drawn, rows, "full batch, no decay, no momentum")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
