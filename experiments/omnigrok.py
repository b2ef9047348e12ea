"""Delayed generalization without algorithms: large initial weights, and weight decay that takes its time.

    ./launch/reproduce.sh omnigrok                      ten minutes on two CPU cores

Liu et al. 2022, "Omnigrok: grokking beyond algorithmic data" (arXiv 2210.01117). At a given norm of the weights the
training loss is low for every norm that is large enough, and the test loss only near one norm (an L and a U). Start far
above it and training is over long before decay has brought the weights down, after a time inverse to the decay.

Teacher and student: 5-100-100-5 tanh networks, 100 training and 100 test problems, AdamW at learning rate 3e-4; a
problem is answered if its mean squared error is below .01. The L and the U are traced by projecting the student back to
its norm after every step. Digits: the images that scikit-learn ships in place of MNIST, 500 for training, a ReLU
network of width 200 on mean squared error, batches of 200, AdamW at learning rate 1e-3; decay is at least ten times the
paper's .01 and the budget as many times shorter, since what counts is their product. Both scale all initial parameters;
the digits' biases start at 0.
"""

import dataclasses
import functools
import itertools
import math
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from e2h import figures, rng
from e2h.claims import Claim, first_step, score, verdict
from e2h.config import Config
from e2h.losses.mse import MeanSquaredError
from e2h.models.mlp import MLP
from e2h.optimizers.adamw import AdamW
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import Fraction
from e2h.tasks.digits import Digits
from experiments import _main

LIU = "Liu et al. 2022, arXiv 2210.01117"
LARGE, SMALL = 2.0, 0.5  # scales of the student's start
DECAYS = (0.03, 0.1, 0.3)
RATE, PROBLEMS, WIDTH, ENDS = 3e-4, 100, 100, 5
CLOSE = 0.01  # mean squared error below which a problem is answered
ANSWERED = 0.95  # share of the problems
NORMS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # of the projected students, in units of a plain start's
SWOLLEN, PLAIN = "digits, start x 8", "digits, start x 1"
DIGITS = {SWOLLEN: 8.0, PLAIN: 1.0}


def base(scale: str, argv: list[str]) -> Config:
    """Of the digits; the students take its number of seeds, and in proportion its steps."""
    del argv
    paper = scale == "paper"
    return Config(
        task=Digits(),
        split=Fraction(train_fraction=500 / 1797, by="ordered"),
        model=MLP(hidden=(200, 200), bias=True, numbers=True),
        loss=MeanSquaredError(),
        optimizer=AdamW(learning_rate=1e-3, weight_decay=0.01 if paper else 0.1),
        batch_size=200,
        test_size=2048,
        steps=250_000 if paper else 25_000,
        record_every=100,
        evaluate_every=200,
    )


def arms(config: Config) -> dict[str, Config]:
    """The digits, from a large and from a plain start, which is soon done."""
    found = {name: dataclasses.replace(config, init_scale=scale) for name, scale in DIGITS.items()}
    return found | {PLAIN: dataclasses.replace(found[PLAIN], steps=max(1, config.steps // 5))}


class Student(NamedTuple):
    scale: float  # of its start
    decay: float
    held: bool  # whether it keeps the norm of its start
    steps: int


def students(config: Config) -> dict[str, Student]:
    """Arm -> its students: large and small starts by decay, and those that are held at a norm."""

    def by_decay(scale: float, steps) -> dict[str, Student]:
        return {f"scale {scale:g}, decay {d:g}": Student(scale, d, False, steps(d)) for d in DECAYS}

    longest = 4 * config.steps
    found = by_decay(LARGE, lambda decay: max(1, round(longest * DECAYS[0] / decay)))
    found |= by_decay(SMALL, lambda decay: max(1, longest // 10))
    return found | {f"norm {n:g}": Student(n, 0.0, True, max(1, longest // 10)) for n in NORMS}


def simulate(config: Config) -> pd.DataFrame:
    """Rows of all students, each at up to 60 steps of its budget, evenly spaced in their logarithm."""
    kinds = students(config)
    members = [(arm, seed) for arm in kinds for seed in config.seed_range]
    stops = {arm: np.geomspace(1, kind.steps, 60).astype(np.int32) for arm, kind in kinds.items()}  # the first repeat
    of = [kinds[arm] for arm, _ in members]
    own = dict(
        seed=np.array([seed for _, seed in members], np.int32),
        scale=np.array([kind.scale for kind in of], np.float32),
        decay=np.array([kind.decay for kind in of], np.float32),
        held=np.array([kind.held for kind in of]),
        stops=np.stack([stops[arm] for arm, _ in members]),
    )
    answered, error = jax.device_get(jax.jit(lambda own: jax.lax.map(lambda one: train_student(**one), own))(own))
    rows = []
    for m, (arm, seed) in enumerate(members):
        seen = np.unique(stops[arm], return_index=True)[1]
        for r in seen[-1:] if kinds[arm].held else seen:  # of those that are held only the end is looked at
            for i, part in enumerate((TRAIN, TEST)):
                row = dict(arm=arm, seed=seed, step=stops[arm][r], split=part, difficulty=1, problems=PROBLEMS)
                rows.append(row | dict(exact=answered[m, r, i], loss=float(f"{PROBLEMS * error[m, r, i]:.6g}")))
    return pd.DataFrame(rows)


def network(seed, stream: str):
    """The initial parameters of a 5-100-100-5 network: weights and biases uniform in +-1/sqrt(fan-in), as PyTorch's."""
    sizes = (ENDS, WIDTH, WIDTH, ENDS)
    draw = lambda key, shape, fan: jax.random.uniform(key, shape, minval=-(fan**-0.5), maxval=fan**-0.5)  # noqa: E731
    return [
        {"w": draw(rng.stream(seed, stream, 2 * i), (a, b), a), "b": draw(rng.stream(seed, stream, 2 * i + 1), (b,), a)}
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]


def outputs(params, x_NxI):
    for i, layer in enumerate(params):
        x_NxI = (jnp.tanh(x_NxI) if i else x_NxI) @ layer["w"] + layer["b"][None]
    return x_NxI


def train_student(seed, scale, decay, held, stops):
    """(problems answered, mean squared error), each [records, (train, test)], at the steps `stops`.

    With `held` the parameters are brought back to the norm of their start after every step.
    """
    teacher = network(seed, "teacher")
    x_2xNxI = jax.random.normal(rng.stream(seed, "points"), (2, PROBLEMS, ENDS))
    y_2xNxI = jax.vmap(functools.partial(outputs, teacher))(x_2xNxI)
    student = jax.tree.map(lambda w: scale * w, network(seed, "student"))
    norm = optax.tree.norm(student)
    adamw = optax.adamw(RATE, weight_decay=decay)

    def errors(params, x_NxI, y_NxI):
        return jnp.square(outputs(params, x_NxI) - y_NxI).mean(-1)

    def step(_, carry):
        params, moments = carry
        gradient = jax.grad(lambda p: errors(p, x_2xNxI[0], y_2xNxI[0]).mean())(params)
        with jax.numpy_dtype_promotion("standard"):  # Optax raises Python floats to the power of an int32 count
            updates, moments = adamw.update(gradient, moments, params)
        params = optax.apply_updates(params, updates)
        back = jnp.where(held, norm / optax.tree.norm(params), 1.0)
        return jax.tree.map(lambda w: back * w, params), moments

    def record(carry, span):
        carry = jax.lax.fori_loop(span[0], span[1], step, carry)
        error_2xN = jax.vmap(functools.partial(errors, carry[0]))(x_2xNxI, y_2xNxI)
        return carry, ((error_2xN < CLOSE).sum(-1), error_2xN.mean(-1))

    spans = jnp.stack([jnp.concatenate([jnp.zeros(1, jnp.int32), stops[:-1]]), stops], 1)
    return jax.lax.scan(record, (student, adamw.init(student)), spans)[1]


def claims(rows):
    by_arm = dict(list(rows.groupby("arm")))
    large, small = ([f"scale {scale:g}, decay {d:g}" for d in DECAYS] for scale in (LARGE, SMALL))
    t_mem, t_gen = ({a: first_step(by_arm[a], part, ANSWERED) for a in large + small} for part in (TRAIN, TEST))
    delay, quick = (t_gen[arm] - t_mem[arm] for arm in (large[0], small[0]))
    yield Claim(
        "large-start-delays", LIU, "From a large start the student generalizes long after training, from a small not.",
        "no number", "figure 2", "delay at scale 2 above 5 times that at scale .5, at decay .03, on every seed",
        tuple(delay / np.maximum(quick, 1)),
        verdict(bool((delay < math.inf).all() and (delay > 5 * np.maximum(quick, 1)).all())),
    )  # fmt: skip
    product = pd.DataFrame({d: d * t_gen[arm] for d, arm in zip(DECAYS, large, strict=True)})
    spread = product.max(axis=1) / product.min(axis=1)
    yield Claim(
        "inverse-to-decay", LIU, "The time to generalize is inverse to the decay.", "t = ln(w0 / wc) / decay",
        "section 3", "t_gen times decay within a factor of 2 over decays .03, .1, .3, of the median seed",
        tuple(spread), verdict(spread.median() <= 2 and product.median().max() < math.inf),
    )  # fmt: skip
    train, test = (final_losses(by_arm, part) for part in (TRAIN, TEST))
    u = np.minimum(test[NORMS[-1]] / test.min(axis=1) / 5, test[NORMS[0]] / test.min(axis=1) / 2)
    yield Claim(
        "u-of-the-test", LIU, "At a fixed norm the test loss is a U: least at one norm, high on either side of it.",
        "no number", "figure 1",
        "at norm 4 at least 5, at norm .25 at least 2 times the least, on every seed (measured: the lesser ratio)",
        tuple(u), verdict(bool((u >= 1).all())),
    )  # fmt: skip
    l_shape = train[NORMS[-1]] / train[NORMS[0]]
    yield Claim(
        "l-of-training", LIU, "The training loss is an L: high below that norm and low above it.", "no number",
        "figure 1", "at norm 4 at most a tenth of that at norm .25, on every seed", tuple(l_shape),
        verdict(bool((l_shape <= 0.1).all())),
    )  # fmt: skip
    early = {arm: test_when_trained(by_arm[arm]) for arm in (SWOLLEN, PLAIN)}
    final = score(by_arm[SWOLLEN], TEST)
    yield Claim(
        "digits-late", LIU, "Digits: from a start 8 times too large, the test comes long after training is over.",
        "training 1 by about 1,000 steps; test .1 to .2 then, .85 to .9 in the end (MNIST)", "read from figures",
        "when training first reaches .99 test <= .7, and >= .85 at the end, on every seed", tuple(early[SWOLLEN]),
        verdict(bool((early[SWOLLEN] <= 0.7).all() and (final >= 0.85).all())),
    )  # fmt: skip
    yield Claim(
        "digits-at-once", LIU, "Digits: from a plain start test and training arrive together.", "no number", "figure 5",
        "when training first reaches .99 test >= .85, on every seed", tuple(early[PLAIN]),
        verdict(bool((early[PLAIN] >= 0.85).all())),
    )  # fmt: skip


def final_losses(by_arm, part: str) -> pd.DataFrame:
    """seed x norm: mean squared error of the held students at the end of the budget."""
    found = {}
    for norm in NORMS:
        here = by_arm[f"norm {norm:g}"]
        last = here[(here["split"] == part) & (here["step"] == here["step"].max())].set_index("seed")
        found[norm] = last["loss"] / last["problems"]
    return pd.DataFrame(found)


def test_when_trained(rows) -> pd.Series:
    """Each seed's test accuracy at the first evaluation with training accuracy .99; nan if that never is."""
    when = first_step(rows, TRAIN, 0.99)
    test = rows[rows["split"] == TEST].set_index(["seed", "step"])
    accuracy = test["exact"] / test["problems"]
    return pd.Series({seed: accuracy.get((seed, step), math.nan) for seed, step in when.items()})


def figure(rows):
    drawn, axes = figures.canvas(4)
    axes = axes[0]
    by_arm = dict(list(rows.groupby("arm")))
    for color, decay in zip(figures.COLORS, DECAYS, strict=False):
        arm = by_arm[f"scale {LARGE:g}, decay {decay:g}"]
        figures.accuracy_over_steps(axes[0], arm, TEST, color, f"scale {LARGE:g}, decay {decay:g}")
        figures.accuracy_over_steps(axes[0], arm, TRAIN, color, "", "--")
    figures.accuracy_over_steps(
        axes[0], by_arm[f"scale {SMALL:g}, decay 0.1"], TEST, "black", f"scale {SMALL:g}, decay 0.1"
    )
    axes[0].set(title="teacher and student (dashed: training)", ylabel="share within .01")
    scaled = axes[1]
    for color, decay in zip(figures.COLORS, DECAYS, strict=False):
        arm = by_arm[f"scale {LARGE:g}, decay {decay:g}"]
        figures.accuracy_over_steps(scaled, arm.assign(step=arm["step"] * decay), TEST, color, f"decay {decay:g}")
    scaled.set(title=f"scale {LARGE:g}: the same over steps x decay", xlabel="steps x decay", ylabel="share within .01")
    for part, color in ((TRAIN, figures.COLORS[0]), (TEST, figures.COLORS[1])):
        figures.seeds_and_median(axes[2], final_losses(by_arm, part).T, color, part)
    axes[2].set(xscale="log", yscale="log", xlabel="norm / that of a plain start", ylabel="mean squared error",
                title="students held at a norm: L and U")  # fmt: skip
    axes[2].set_xticks(NORMS, [f"{norm:g}" for norm in NORMS], minor=False)
    axes[2].set_xticks([], minor=True)
    for arm, color in ((SWOLLEN, figures.COLORS[0]), (PLAIN, figures.COLORS[1])):
        figures.accuracy_over_steps(axes[3], by_arm[arm], TEST, color, arm.removeprefix("digits, "))
        figures.accuracy_over_steps(axes[3], by_arm[arm], TRAIN, color, "", "--")
    axes[3].set_title("digits (dashed: training)", fontsize=9)
    for axis in axes:
        axis.legend(fontsize=6.5)
    figures.caption(drawn, rows, "every seed and the median")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
