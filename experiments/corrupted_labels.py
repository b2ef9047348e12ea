"""Learning the rule although a third of the training answers are random: what is learned, and where it sits.

    ./launch/reproduce.sh corrupted_labels              a quarter of an hour on two CPU cores

Doshi et al. 2023, "To grok or not to grok" (arXiv 2310.13061): a + b mod 97, a quadratic two-layer network of width 500
on mean squared error, half of the table, full batch, AdamW at learning rate 0.01; a share of the training answers is
drawn anew. With little decay the network learns the rule and the random answers beside it (coexistence), with more it
gives up the random ones (inversion), with too much everything (forgetting). Neurons that serve the rule are periodic:
pruning those of low inverse participation ratio forgets the random answers and keeps the rule, from the other end the
reverse. The published network starts at a standard deviation of .5 / (2 width)^(1/3) in both layers.

The phase diagram is one compiled program over (corruption, decay, seed), at p = 59 and 70 % of the table on the CPU.
The phases move with p, so it is drawn and not judged.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from e2h import evaluate, figures, grid, parallel
from e2h.claims import Claim, first_step, score, verdict
from e2h.config import Config
from e2h.losses.mse import MeanSquaredError
from e2h.measures import _fourier
from e2h.measures.fourier_ipr import participation
from e2h.models.mlp import MLP
from e2h.optimizers.adamw import AdamW
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import CORRUPTED, Fraction
from e2h.tasks.modular import Modular
from experiments import _main

WHOLE = 2**20  # more than any table holds: full batch
DOSHI = "Doshi et al. 2023, arXiv 2310.13061"
PHASES = "phases"
COEXISTENCE = "decay 0"
ROWS = {  # arm: (decay, steps), published accuracy on all training problems and on the test, at the last step
    COEXISTENCE: ((0.0, 1000), (0.978, 0.983)),
    "decay 5": ((5.0, 500), (0.7855, 1.0)),
    "decay 15": ((15.0, 500), (0.6537, 1.0)),
    "decay 20": ((20.0, 5000), (0.009, 0.011)),
}
PRUNED = tuple(np.linspace(0, 1, 21).round(2))


def start_std(width: int) -> float:
    """Of both layers, as in the authors' code."""
    return 0.5 / (2 * width) ** (1 / 3)


def base(scale: str, argv: list[str]) -> Config:
    del scale, argv  # the published scale is a CPU's
    return Config(
        task=Modular(op="add", p=97),
        split=Fraction(train_fraction=0.5, by="ordered", corrupted=0.35),
        model=MLP(hidden=(500,), activation="quadratic", kernel_init="normal_1"),
        init_scale=start_std(500),
        loss=MeanSquaredError(),
        optimizer=AdamW(learning_rate=0.01, b2=0.98),
        batch_size=WHOLE,
        test_size=16384,
        record_every=20,
        evaluate_every=20,
        measures=("fourier_ipr",),
        steps=5000,
    )


def arms(config: Config) -> dict[str, Config]:
    """The published rows, training without corruption, and the phase diagram."""

    def decayed(decay: float, steps: int, **changes) -> Config:
        optimizer = dataclasses.replace(config.optimizer, weight_decay=decay)
        return dataclasses.replace(config, optimizer=optimizer, steps=min(steps, config.steps), **changes)

    clean = dataclasses.replace(config.split, corrupted=0.0)
    found = {arm: decayed(*setting) for arm, (setting, _) in ROWS.items()}
    found["no corruption"] = decayed(5.0, 160, split=clean, record_every=2, evaluate_every=2)
    found["decay 20"] = dataclasses.replace(found["decay 20"], evaluate_every=5 * config.evaluate_every)
    return found | {PHASES: phases(config)}


def phases(config: Config) -> Config:
    width = 300
    return dataclasses.replace(
        config,
        task=dataclasses.replace(config.task, p=min(config.task.p, 59)),
        split=dataclasses.replace(config.split, train_fraction=0.7),
        model=dataclasses.replace(config.model, hidden=(width,)),
        init_scale=start_std(width),
        grid=("split.corrupted=0.05:0.2:0.35:0.5:0.65", "optimizer.weight_decay=0:5:10:15:20"),
        steps=min(config.steps, 400),
        evaluate_every=20 * config.evaluate_every,
        halt=False,
    )


def inspect(arm: str, config: Config, state) -> pd.DataFrame | None:
    """Scores of the coexisting network with a share of its neurons cut off, from either end of their ratios."""
    if arm != COEXISTENCE:
        return None
    data, members, rows = parallel.prepare(config), parallel.members(config), []
    for first, sign in (("lowest first", 1), ("highest first", -1)):
        rank = jax.vmap(lambda params, sign=sign: jnp.argsort(jnp.argsort(sign * ratio(config, params))))(state.params)
        for share in PRUNED:
            params = jax.vmap(cut)(state.params, rank >= round(share * rank.shape[1]))
            for part, capacity, difficulties in evaluate.sweeps(config):
                cells = parallel.sweep(config, part, capacity)(data, members, params, difficulties)
                for (seed, _), right, of in zip(
                    grid.members(config), cells.score.exact, cells.score.problems, strict=True
                ):
                    rows.append((f"pruned, {first}", seed, share, part, int(of[0]), int(right[0])))
    return pd.DataFrame(rows, columns=["arm", "seed", "pruned", "split", "problems", "exact"]).assign(step=config.steps)


def ratio(config: Config, params):
    """The mean inverse participation ratio of each hidden neuron's three weight vectors, [N]."""
    to_operands_2xNxP, to_classes_NxP = _fourier.inputs(params, config), _fourier.outputs(params, config)
    vectors_3xNxP = jnp.concatenate([to_operands_2xNxP, to_classes_NxP[None]])
    ratio_3xN, live_3xN = jax.vmap(participation)(vectors_3xNxP)
    return jnp.where(live_3xN, ratio_3xN, 0.0).mean(0)


def cut(params, kept_N):
    """The network without the neurons that are not kept."""
    kernel = jnp.where(kept_N[:, None], params["Dense_0"]["kernel"], 0.0)
    return params | {"Dense_0": params["Dense_0"] | {"kernel": kernel}}


def claims(rows):
    """Scores at the last step."""
    for arm, (_, (train, test)) in ROWS.items():
        of_arm = rows[rows["arm"] == arm]
        found = {part: score(of_arm, part) for part in (TRAIN, TEST)}
        for part, published in ((TRAIN, train), (TEST, test)):
            yield Claim(
                f"{arm.replace(' ', '-')}-{part}", DOSHI,
                f"With 35 % random answers and {arm} the {part} accuracy ends at the published one.",
                f"{published}", "printed in the authors' notebooks, one seed",
                "median over seeds within .03 of it", tuple(found[part]),
                verdict(abs(found[part].median() - published) <= 0.03),
            )  # fmt: skip
    clean = first_step(rows[rows["arm"] == "no corruption"], TEST, 0.99)
    yield Claim(
        "clean-at-once", DOSHI, "Without corruption and with decay 5 the test reaches .99 within 60 steps.",
        "42", "printed in the authors' notebooks, one seed", "step <= 60 on every seed", tuple(clean),
        verdict((clean <= 60).all()),
    )  # fmt: skip
    low, high = (pruned(rows, f"pruned, {first}") for first in ("lowest first", "highest first"))
    forgot, kept = low(CORRUPTED, 0.65), low(TEST, 0.65)
    yield Claim(
        "prune-lowest", DOSHI, "Without the 65 % least periodic neurons the random answers go and the rule stays.",
        "random answers about .01, test 1", "read from a figure in the authors' notebooks",
        "random answers <= .10 and test >= .95 on every seed", tuple(forgot),
        verdict(len(kept) > 0 and (forgot <= 0.1).all() and (kept >= 0.95).all()),
    )  # fmt: skip
    lost, remembered = high(TEST, 0.3), high(CORRUPTED, 0.3)
    yield Claim(
        "prune-highest", DOSHI, "Without the 30 % most periodic neurons the rule is gone and the random answers stay.",
        "test about .01, random answers about .97", "read from a figure in the authors' notebooks",
        "test <= .10 and random answers >= .90 on every seed", tuple(lost),
        verdict(len(lost) > 0 and (lost <= 0.1).all() and (remembered >= 0.9).all()),
    )  # fmt: skip


def pruned(rows, arm: str):
    """(part, share) -> the accuracy of each seed."""
    of_arm = rows[rows["arm"] == arm]

    def at(part: str, share: float):
        return score(of_arm[(of_arm["pruned"] - share).abs() < 1e-6], part)

    return at


def figure(rows):
    drawn, axes = figures.canvas(4, 2)
    for axis, arm in zip(axes.flat, ("no corruption", *ROWS), strict=False):
        of_arm = rows[rows["arm"] == arm]
        parts = [part for part in of_arm["split"].unique() if part != "measured"]
        for color, part in zip(figures.COLORS, parts, strict=False):
            figures.accuracy_over_steps(axis, of_arm, part, color, part.replace("_", ", "))
        axis.set_title(arm if arm == "no corruption" else f"35 % random answers, {arm}", fontsize=9)
        axis.legend(fontsize=6.5)
    draw_pruning(axes[1, 1], rows)
    for axis, part in zip(axes[1, 2:], (TEST, CORRUPTED), strict=True):
        draw_phases(axis, rows[rows["arm"] == PHASES], part)
    figures.caption(drawn, rows, "maps: p = 59, 70 % of the table, median of the seeds at the last step")
    return drawn


def draw_phases(axis, rows, part: str) -> None:
    """A map of the median accuracy on a part over (corruption, decay)."""
    axis.grid(visible=False)
    last = rows[(rows["split"] == part) & (rows["step"] == rows["step"].max())]
    wide = (last["exact"] / last["problems"]).groupby(
        [last["optimizer.weight_decay"], last["split.corrupted"]]
    ).median().unstack()  # fmt: skip
    axis.imshow(wide.to_numpy(), vmin=0, vmax=1, cmap="viridis", origin="lower", aspect="auto")
    for (i, j), value in np.ndenumerate(wide.to_numpy()):
        axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if value < 0.6 else "black")
    axis.set(xlabel="share of random answers", ylabel="decay", title=f"phases: {part.replace('_', ', ')}")
    axis.set_xticks(range(len(wide.columns)), wide.columns)
    axis.set_yticks(range(len(wide.index)), [f"{v:g}" for v in wide.index])


def draw_pruning(axis, rows) -> None:
    for style, first in (("-", "lowest first"), ("--", "highest first")):
        of_arm = rows[rows["arm"] == f"pruned, {first}"]
        for color, part in zip(figures.COLORS[1:], (CORRUPTED, TEST), strict=False):
            here = of_arm[of_arm["split"] == part].set_index(["pruned", "seed"])
            wide = (here["exact"] / here["problems"]).unstack("seed")
            figures.seeds_and_median(axis, wide, color, f"{part.replace('_', ', ')}: {first}", style)
    axis.set(xlabel="share of neurons cut off, by periodicity", ylabel="exact match", title="decay 0")
    axis.legend(fontsize=6.5)


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
