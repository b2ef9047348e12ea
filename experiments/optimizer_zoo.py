"""Eleven ways to make a step, each tuned alike: how many gradients they need to generalize, and what a step costs.

    ./launch/reproduce.sh optimizer_zoo                 an hour on two CPU cores, resumable

Speed-ups of grokking are mostly reported against a baseline that nobody tuned. Here every optimizer and every gradient
rule (on AdamW) gets the same grid: three learning rates, a factor of three apart around its usual one, times no decay,
a third of its usual decay and all of it. The choice is made on two seeds by the accuracy on their held-out problems,
averaged over the budget; what is reported are five other seeds, with splits and starts of their own. Usual values are
AdamW's in the experiment `grokking`; those of SGD and Lion were found by a few runs of one further seed on x + y. The
budget counts gradients, not steps, since SAM and the finite difference take two a step and Entropy-SGD as many as its
inner loop.

Tasks: x + y and x / y mod 31 (65 % of the table) and products in S_4 (75 %), on an MLP with two hidden layers of width
128, full batch, softmax in float64 so that no optimizer ends in its collapse. Muon takes the matrix between the hidden
layers and leaves the other two to Adam. Winsorized gradients are clipped among the means of 16 groups of problems, one
at either end: those of every single problem would be 4 to 18 million numbers a step.
"""

import dataclasses
import functools
import sys
import time
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

from e2h import figures, grid, parallel, train
from e2h.claims import UNTESTABLE, Claim, first_step, verdict
from e2h.config import Config
from e2h.gradients import GradientRule
from e2h.gradients.entropy_sgd import EntropySGD
from e2h.gradients.finite_difference import FiniteDifference
from e2h.gradients.plain import Plain
from e2h.gradients.sam import SAM
from e2h.gradients.winsorized import Winsorized
from e2h.losses.cross_entropy import CrossEntropy
from e2h.models.mlp import MLP
from e2h.optimizers import Optimizer, Wrapper
from e2h.optimizers.adam_l2 import AdamL2
from e2h.optimizers.adamw import AdamW
from e2h.optimizers.grokfast_ema import GrokfastEMA
from e2h.optimizers.lion import Lion
from e2h.optimizers.muon import Muon
from e2h.optimizers.orthogonal_gradient import OrthogonalGradient
from e2h.optimizers.sgd import SGD
from e2h.splits import TEST
from e2h.splits.fraction import Fraction
from e2h.tasks.modular import Modular
from e2h.tasks.permutation import Permutation
from experiments import _main

TVEIT = "Tveit et al. 2025, arXiv 2504.16041"
LEE = "Lee et al. 2024, arXiv 2405.20233"
PRIETO = "Prieto et al. 2025, arXiv 2501.04697"
OURS = "our own control"
WHOLE = 2**20  # more than any table holds: full batch
ARRIVED = 0.95  # held-out accuracy, as in Tveit et al. and Lee et al.
FRESH = 100  # the first of the seeds that are reported
RATES, DECAYS = (1 / 3, 1.0, 3.0), (0.0, 1 / 3, 1.0)  # times the usual ones


class Entry(NamedTuple):
    """An optimizer at its usual learning rate and decay, and a gradient rule with the gradients that it takes."""

    optimizer: Optimizer
    rule: GradientRule = Plain()
    gradients: int = 1


ADAMW = AdamW(learning_rate=0.01, b2=0.98, weight_decay=1.0)
ZOO = {
    "AdamW": Entry(ADAMW),
    "Adam, L2": Entry(AdamL2(learning_rate=0.01, b2=0.98, weight_decay=3e-3)),
    "SGD": Entry(SGD(learning_rate=3.0, momentum=0.9, weight_decay=3e-3)),
    "Lion": Entry(Lion(learning_rate=3e-3, weight_decay=3.0)),
    "Muon": Entry(Muon(learning_rate=0.02, adam_rate=0.01, weight_decay=1.0)),
    "Grokfast": Entry(GrokfastEMA(inner=ADAMW)),
    "orthogonal": Entry(OrthogonalGradient(inner=ADAMW)),
    "SAM": Entry(ADAMW, SAM(), 2),
    "finite difference": Entry(ADAMW, FiniteDifference(), 2),
    "Entropy-SGD": Entry(ADAMW, EntropySGD(inner=5), 5),
    "winsorized": Entry(ADAMW, Winsorized(share=0.07, groups=16)),
}


def base(scale: str, argv: list[str]) -> Config:
    """The first task; the other two differ in task and share alone."""
    del argv
    paper = scale == "paper"
    return Config(
        task=Modular(op="add", p=97 if paper else 31),
        split=Fraction(train_fraction=0.5 if paper else 0.65, by="ordered"),
        model=MLP(hidden=(128, 128)),
        loss=CrossEntropy(softmax_dtype="float64"),
        optimizer=ADAMW,
        batch_size=WHOLE,
        test_size=16384,
        steps=10_000 if paper else 2500,
        record_every=50,
        evaluate_every=50,
        halt=False,
    )


def tasks(config: Config) -> dict[str, Config]:
    """Task -> AdamW's config on it."""
    small = config.task.p < 20  # a table that the tests shrank
    division = dataclasses.replace(config.task, op="divide")
    products = dataclasses.replace(config.split, train_fraction=0.75)
    return {
        "x + y": config,
        "x / y": dataclasses.replace(config, task=division),
        "S_4": dataclasses.replace(config, task=Permutation(n=3 if small else 4), split=products),
    }


def entries(config: Config) -> dict[tuple[str, str], Config]:
    """(task, optimizer) -> config. The budget and the cadence of evaluations are counted in gradients."""
    found = {}
    for (task, of_task), (name, entry) in ((t, e) for t in tasks(config).items() for e in ZOO.items()):
        fewer = {field: max(1, getattr(of_task, field) // entry.gradients) for field in ("steps", "record_every")}
        cadence = fewer["record_every"]
        found[task, name] = dataclasses.replace(
            of_task, optimizer=entry.optimizer, gradient=entry.rule, checkpoint_every=100 * cadence,
            evaluate_every=cadence * max(1, config.evaluate_every // config.record_every), **fewer,
        )  # fmt: skip
    return found


def arms(config: Config) -> dict[str, Config]:
    """The grid of each optimizer on each task, on two seeds, evaluated a fifth as often."""
    found = {}
    for (task, name), c in entries(config).items():
        inner, path = (
            (c.optimizer.inner, "optimizer.inner") if isinstance(c.optimizer, Wrapper) else (c.optimizer, "optimizer")
        )
        axes = [f"{path}.learning_rate={_times(inner.learning_rate, RATES)}"]
        axes += [f"{path}.weight_decay={_times(inner.weight_decay, DECAYS)}"]
        found[f"{task}, {name}, grid"] = dataclasses.replace(
            c, grid=tuple(axes), seeds=min(2, config.seeds), evaluate_every=5 * c.evaluate_every
        )
    return found


def _times(usual: float, factors) -> str:
    return ":".join(f"{usual * factor:.4g}" for factor in factors)


def then(config: Config, rows: pd.DataFrame) -> dict[str, Config]:
    """Each optimizer at its best cell, on fresh seeds; ends when all have arrived."""
    found, tried = {}, arms(config)
    for (task, name), c in entries(config).items():
        arm = f"{task}, {name}, grid"
        best = max(grid.cells(tried[arm]), key=functools.partial(validation, rows, arm))
        found[f"{task}, {name}"] = dataclasses.replace(grid.at(c, best), first_seed=FRESH, until=0.98)
    return found


def validation(rows: pd.DataFrame, arm: str, cell: grid.Cell) -> float:
    """Held-out accuracy of a cell of a grid, averaged over its seeds and evaluations."""
    of_cell = rows[(rows["arm"] == arm) & (rows["split"] == TEST)]
    for name, value in cell.items():
        of_cell = of_cell[np.isclose(of_cell[name], value, rtol=1e-4)]
    return of_cell["exact"].sum() / of_cell["problems"].sum()


def kept(rows: pd.DataFrame) -> pd.DataFrame:
    """The tests alone; of the grids one row a member, the sum over its evaluations."""
    tests = rows[rows["split"].isin((TEST, "cost"))].drop(columns=["loss", "difficulty", "chance"], errors="ignore")
    in_grid = tests["arm"].str.endswith(", grid")
    member = ["arm", "seed", "split", *(c for c in tests.columns if "." in c)]
    summed = tests[in_grid].groupby(member, dropna=False, sort=False).agg(dict(exact="sum", problems="sum", step="max"))
    return pd.concat([summed.reset_index(), tests[~in_grid]])


def inspect(arm: str, config: Config, state) -> pd.DataFrame | None:
    """What a step of one network costs on the first task: time, the least of three stretches, and bytes."""
    del state
    if config.grid or not arm.startswith("x + y, "):
        return None
    one = dataclasses.replace(config, seeds=1)
    data, members, start = parallel.prepare(one), parallel.members(one), parallel.init(one)
    run, steps, taken = parallel.chunk(one), min(40, one.steps), []
    jax.block_until_ready(run(data, members, start, 1))
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(run(data, members, start, steps))
        taken.append((time.perf_counter() - began) / steps)
    own = jax.tree.map(lambda a: a[0], (data, start.params, start.opt_state))
    carried = sum(a.nbytes for a in jax.tree.leaves(own[1:]))
    program = jax.jit(lambda own: train.chunk(one, own[0], one.first_seed, train.State(*own[1:], np.int32(0)), 1))
    scratch = program.lower(own).compile().memory_analysis().temp_size_in_bytes
    found = dict(
        arm=arm, seed=one.first_seed, step=steps, split="cost", ms=1e3 * min(taken), carried=carried, scratch=scratch
    )
    return pd.DataFrame([found])


def arrivals(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    """Gradients until a seed's held-out accuracy first reaches .95: seed x optimizer; inf if not within the budget."""
    found = {name: rows[rows["arm"] == f"{task}, {name}"] for name in ZOO}
    return pd.DataFrame({n: first_step(r, TEST, ARRIVED) * ZOO[n].gradients for n, r in found.items() if len(r)})


def claims(rows):
    names = list(dict.fromkeys(arm.split(", ")[0] for arm in rows["arm"]))
    median = pd.DataFrame({task: arrivals(rows, task).median() for task in names})

    def ratio(slow: str, fast: str) -> tuple[float, ...]:
        """Median gradients of one over those of the other, on each task; nan if neither arrives, or was run."""
        of = median.reindex([slow, fast])
        return tuple(of.loc[slow] / of.loc[fast])

    def often(values, least: float) -> str:
        return UNTESTABLE if np.isnan(values).all() else verdict(sum(v >= least for v in values) >= 2)

    muon, grokfast, decoupled = ratio("AdamW", "Muon"), ratio("AdamW", "Grokfast"), ratio("Adam, L2", "AdamW")
    yield Claim(
        "muon", TVEIT, "Tuned Muon needs fewer gradients to generalize than tuned AdamW.",
        "1.49 (153.09 against 102.89 epochs, on seven other tasks)", "quoted by third parties",
        "ratio of medians >= 1.2 on two of three tasks", muon, often(muon, 1.2),
    )  # fmt: skip
    yield Claim(
        "grokfast", LEE, "Grokfast needs fewer gradients than AdamW also where both are tuned.",
        "43.84 against Adam without decay, untuned", "the authors' code, one run",
        "ratio of medians >= 1.5 on two of three tasks", grokfast, often(grokfast, 1.5),
    )  # fmt: skip
    yield Claim(
        "decoupled", OURS, "AdamW needs fewer gradients than Adam with L2 in the gradient.", "no number", OURS,
        "ratio of medians > 1 on two of three tasks", decoupled, often(decoupled, 1 + 1e-9),
    )  # fmt: skip
    several = [v for name, entry in ZOO.items() if entry.gradients > 1 for v in ratio("AdamW", name)]
    yield Claim(
        "counted-in-gradients", OURS, "No rule that takes several gradients a step beats AdamW by gradients.",
        "no number", OURS, "ratio of medians < 1 for SAM, finite difference and Entropy-SGD on every task",
        tuple(several), verdict(all(v < 1 for v in several)) if several else UNTESTABLE,
    )  # fmt: skip
    orthogonal, plain = ([best_undecayed(rows, f"{t}, {n}, grid") for t in names] for n in ("orthogonal", "AdamW"))
    yield Claim(
        "orthogonal-undecayed", PRIETO, "Without decay the orthogonal gradient generalizes and AdamW does not.",
        "no number", "figures 1 and 5",
        "held-out accuracy averaged over the budget, best rate: >= .5 with it and < .5 without on every task",
        tuple(orthogonal), verdict(all(v >= 0.5 for v in orthogonal) and all(v < 0.5 for v in plain)),
    )  # fmt: skip


def best_undecayed(rows: pd.DataFrame, arm: str) -> float:
    """The best cell's validation among those of a grid without decay; nan if there are none."""
    of_arm = rows[rows["arm"] == arm].dropna(axis=1, how="all")
    decays = [c for c in of_arm.columns if c.endswith(".weight_decay")]
    if not decays:
        return float("nan")
    rates = [c for c in of_arm.columns if c.endswith(".learning_rate")]
    sums = of_arm[(of_arm[decays[0]] == 0) & (of_arm["split"] == TEST)].groupby(rates)[["exact", "problems"]].sum()
    return float((sums["exact"] / sums["problems"]).max())


def figure(rows):
    drawn, axes = figures.canvas(3, 2)
    names = [task for task in ("x + y", "x / y", "S_4") if (rows["arm"] == f"{task}, AdamW").any()]
    budget = max(rows[rows["arm"] == f"{task}, AdamW, grid"]["step"].max() for task in names)
    order = list(ZOO)
    for axis, task in zip(axes[0], names, strict=False):
        times = arrivals(rows, task).reindex(columns=order)
        for at, name in enumerate(order):
            seen = times[name][np.isfinite(times[name])]
            never = times[name].notna() & np.isinf(times[name])
            axis.plot(seen, [at] * len(seen), "o", color=figures.COLORS[0], alpha=0.5, markersize=4)
            axis.plot([budget] * never.sum(), [at] * never.sum(), "o", color=figures.COLORS[0], markerfacecolor="none")
            axis.plot(times[name].median(), at, "|", color="black", markersize=12)
        axis.set(title=task, xlabel="gradients until held-out accuracy is .95 (open: not in budget)")
    cost = rows[rows["split"] == "cost"].copy()
    cost["optimizer"] = cost["arm"].str.split(", ", n=1).str[1]
    cost = cost.set_index("optimizer").reindex(order)
    titles = {"ms": "time of a step", "carried": "bytes of parameters and state", "scratch": "scratch bytes of a step"}
    for axis, (what, title) in zip(axes[1], titles.items(), strict=True):
        axis.plot(cost[what] / cost[what]["AdamW"], range(len(order)), "o", color=figures.COLORS[1])
        axis.set(xlabel=f"{title} / AdamW's, on x + y")
    for axis in axes.flat:
        axis.set_yticks(range(len(order)), order, fontsize=7)
        axis.invert_yaxis()
    figures.caption(drawn, rows[~rows["arm"].str.endswith(", grid")], "each tuned by one grid on two other seeds")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
