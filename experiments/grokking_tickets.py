"""Is generalization late because the weights that generalize must first be found? Retraining them alone, and controls.

    ./launch/reproduce.sh grokking_tickets              half an hour on two CPU cores
    ./launch/reproduce.sh grokking_tickets --scale=paper   every run to the end of its 30,000 steps

Minegishi et al. 2023, "Bridging lottery ticket and grokking" (arXiv 2310.19470): a + b mod 67 on 40 % of the unordered
pairs, a network of four matrices, AdamW with decay 1. The ticket is what is left of the trained network's largest 40 %
of weights, put back to their initial values and trained again. It should generalize as soon as it knows the training
problems; a ticket of memorized weights, a random mask and a dense network of the ticket's norm should not.

1. A ticket is a start (`--start=ticket`); its mask, what starts at 0, is kept in the optimizer's state.
2. Each arm is a run like any other; its start is a setting, so the digest says of which dense run, step and share.
3. The dense run is trained again while a ticket's start is drawn, rather than read from the dense arm's checkpoint:
   that costs minutes, and buys a start that is a function of config and seed, whatever lies on the disk.

Set before any run: the ticket is of step 25,000 (the paper's fully generalized network); memorized weights are of step
200 (one seed outside of these, 100, knew 95 % of the training problems at step 90 and all at 110; its test was not
looked at); the transition is step 600 (so long after memorizing, the paper's table 1 has half of the test). A run ends
early once every seed has .99 of the test.

What the outcome showed: the ticket of the generalized network has .95 of the test after 3 times as long as training,
where the dense network takes 180 times as long; that is not the 1.5 that was asked for. A random mask and tickets of
memorized or of transition weights generalize in none of the seeds, later than the dense network itself.
"""

import dataclasses
import math
import sys

import numpy as np

from e2h import figures
from e2h.claims import UNTESTABLE, Claim, first_step, highest, verdict
from e2h.config import Config
from e2h.losses.cross_entropy import CrossEntropy
from e2h.models.embedding_mlp import EmbeddingMLP
from e2h.optimizers.adamw import AdamW
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import Fraction
from e2h.starts.fresh import Fresh
from e2h.starts.ticket import Ticket
from e2h.tasks.modular import Modular
from experiments import _main

WHOLE = 2**20  # more than any table holds: full batch
MINEGISHI = "Minegishi et al. 2023, arXiv 2310.19470"
DENSE, TICKET, MEMORIZED, TRANSITION = "dense", "ticket", "ticket, memorized", "ticket, transition"
RANDOM, L1, L2, FEW, SHARES = "random mask", "dense, L1 norm", "dense, L2 norm", "ticket, keep 0.1", "ticket, keep more"
KEEP = "start.keep"
LEARNED = 0.95  # the accuracy at which t_mem and t_gen are read, as in the paper
DELAYED = 3.0  # the least t_gen / t_mem that is called a delay


def base(scale: str, argv: list[str]) -> Config:
    del argv
    return Config(
        task=Modular(op="add", p=67, unordered=True),
        split=Fraction(train_fraction=0.4, by="ordered"),  # each pair is in the table once
        model=EmbeddingMLP(dimensions=500, units=48),
        loss=CrossEntropy("float64"),
        optimizer=AdamW(learning_rate=1e-3, b2=0.98, weight_decay=1.0),
        start=Ticket(steps=25_000, keep=0.4),
        batch_size=WHOLE,
        seeds=3,
        test_size=2560,
        steps=30_000,
        record_every=10,
        evaluate_every=100,
        evaluate_early=1000,
        until=math.inf if scale == "paper" else 0.99,
    )


def arms(config: Config) -> dict[str, Config]:
    """The dense run; tickets of three of its steps; controls of the last; other shares."""

    def ticket(**changes) -> Config:
        return dataclasses.replace(config, start=dataclasses.replace(config.start, **changes))

    return {
        DENSE: dataclasses.replace(config, start=Fresh()),
        TICKET: config,
        MEMORIZED: ticket(steps=200),
        TRANSITION: ticket(steps=600),
        RANDOM: ticket(control="random"),
        L1: ticket(control="l1"),
        L2: ticket(control="l2"),
        FEW: ticket(keep=0.1),
        SHARES: dataclasses.replace(config, grid=(f"{KEEP}=0.3:0.5:0.7",)),
    }


def times(rows):
    """(t_mem, t_gen) of each seed of an arm: the first evaluated steps at which training and test reach .95."""
    return tuple(first_step(rows, part, LEARNED) for part in (TRAIN, TEST))


def delay(rows):
    """t_gen / t_mem of each seed of an arm; inf if it never generalizes, NaN if it never learns to fit."""
    known, general = times(rows)
    return (general / known).where(known < math.inf)


def kept(rows):
    return _main.thin(rows, LEARNED)


def claims(rows):
    """Orders are judged on every seed, ratios of delays by the median over seeds."""
    arm = dict(list(rows.groupby("arm")))
    dense, ticket = delay(arm[DENSE]), delay(arm[TICKET])
    arrived = bool((dense < math.inf).all())
    delayed = arrived and bool((dense >= DELAYED).all())
    yield Claim(
        "dense-late", MINEGISHI, "The dense network knows the training problems long before the test problems.",
        "test jumps long after training, no number for this network", "paper text",
        "t_gen / t_mem >= 3 on every seed, and every seed generalizes", tuple(dense), verdict(delayed),
    )  # fmt: skip
    yield Claim(
        "ticket-no-delay", MINEGISHI, "The ticket of the generalized network generalizes when it memorizes.",
        "test rises when the dense network memorizes", "paper text",
        "t_gen / t_mem <= 1.5 on every seed", tuple(ticket), verdict((ticket <= 1.5).all()),
    )  # fmt: skip
    (known, memorized), (_, general) = times(arm[MEMORIZED]), times(arm[TICKET])
    later = memorized / general  # NaN if both never come
    yield Claim(
        "memorized-later", MINEGISHI, "A ticket of memorized weights generalizes later than the ticket.",
        "tickets of earlier epochs keep the delay", "paper text",
        "t_gen / t_gen of the ticket > 1 on every seed; training reaches .95", tuple(later),
        verdict((later > 1).all() and (known < math.inf).all()),
    )  # fmt: skip
    random = delay(arm[RANDOM]) / dense
    yield Claim(
        "random-no-better", MINEGISHI, "A random mask with as many weights in each matrix keeps the delay.",
        "random pruning is no better than the dense network", "paper text",
        "median over seeds of t_gen / t_mem over that of the dense network is within .5 and 1.5; dense-late holds",
        tuple(random), verdict(0.5 <= random.median() <= 1.5 and random.notna().all()) if delayed else UNTESTABLE,
    )  # fmt: skip
    for name in (L1, L2):
        scaled = delay(arm[name]) / dense
        yield Claim(
            f"norm-{name.split()[1].lower()}", MINEGISHI,
            f"The dense network scaled to the {name.split()[1]} norm of the ticket keeps the delay.",
            "still delayed", "paper text",
            "median over seeds of t_gen / t_mem over that of the dense network >= 2/3; dense-late holds",
            tuple(scaled), verdict(scaled.median() >= 2 / 3 and scaled.notna().all()) if delayed else UNTESTABLE,
        )  # fmt: skip
    few = highest(arm[FEW], TEST)
    yield Claim(
        "too-few", MINEGISHI, "With a tenth of the weights the ticket does not generalize.",
        "fails to train", "paper text", "highest test accuracy < .9 on every seed; the dense network reaches .95",
        tuple(few), verdict((few < 0.9).all()) if arrived else UNTESTABLE,
    )  # fmt: skip


def networks(rows):
    """{label: rows} of every arm, those of the grid share by share."""
    found = {}
    for name, of_arm in rows.groupby("arm", sort=False):
        if name == SHARES:
            found |= {f"ticket, keep {keep:g}": of_share for keep, of_share in of_arm.groupby(KEEP)}
        else:
            found[name] = of_arm
    return found


def figure(rows):
    drawn, ((found, controls, delays),) = figures.canvas(3)
    arm = networks(rows)
    for axis, names in (
        (found, (DENSE, TICKET, MEMORIZED, TRANSITION)),
        (controls, (DENSE, TICKET, RANDOM, L1, L2, FEW)),
    ):
        for color, name in zip(figures.COLORS, names, strict=False):
            figures.accuracy_over_steps(axis, arm[name], TEST, color, name)
            if name in (DENSE, TICKET):
                figures.accuracy_over_steps(axis, arm[name], TRAIN, color, f"{name}, train", "--")
        axis.set_ylabel("exact match, test")
        axis.legend(fontsize=6.5)
    draw_delays(delays, arm)
    figures.caption(drawn, rows, "dashed: training; a run ends at .99 of the test; triangles: not within the budget")
    return drawn


def draw_delays(axis, arm) -> None:
    """t_gen / t_mem of each seed that fits; if it never generalizes, the budget over t_mem, as a bound from below."""
    for at, (name, of_arm) in enumerate(arm.items()):
        tau = delay(of_arm).dropna()
        known = times(of_arm)[0][tau.index]
        never = np.isinf(tau)
        color = figures.COLORS[0] if name == DENSE else figures.COLORS[1]
        axis.plot([at] * int((~never).sum()), tau[~never], "o", color=color, alpha=0.7)
        axis.plot([at] * int(never.sum()), (of_arm["step"].max() / known)[never], "^", color=figures.GREY, alpha=0.7)
    axis.axhline(1, color=figures.GREY, linestyle=":")
    axis.set(yscale="log", ylabel="t_gen / t_mem, at .95", title="delay of each seed")
    axis.set_xticks(range(len(arm)), list(arm), rotation=60, ha="right", fontsize=6.5)


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
