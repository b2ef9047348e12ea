"""A network that fits every label after one step, flipped ones too, and knows nothing; fifteen steps later it knows.

    ./launch/reproduce.sh xor_grokking                 a minute or two on two CPU cores
    ./launch/reproduce.sh xor_grokking --scale=paper   100 runs, and the small step at full size too: half an hour

Xu et al. 2023, "Benign overfitting and grokking in ReLU networks for XOR cluster data" (arXiv 2310.02541). Points lie
around +-mu1 (label +1) and +-mu2 (label -1) in very many dimensions, and some training labels are flipped. The first
layer of a ReLU network learns by gradient descent on the logistic loss. If a step is large beside the initial weights,
the network is after one step a linear classifier, which fits all and predicts nothing; later its neurons turn to the
means. A small step delays both. Test labels are never flipped.

The first layer [p, m] is never formed: gradient descent adds to it combinations of training points, so the points' Gram
matrix carries the whole run. All is float64: outputs are of the order of 1e-12, and a loss must tell them from 0.
At CPU scale the small step runs at p = 8000, n = 100, m = 200: its 10 000 steps would take minutes at full size.
"""

import dataclasses
import functools
import sys
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from e2h import figures
from e2h.claims import Claim, first_step, score, verdict
from e2h.registry import Component, Refused, setting
from experiments import _main

XU = "Xu et al. 2023, arXiv 2310.02541"
LARGE, SMALL = "step 1e-12", "step 1e-16"  # column `arm`
PARTS = ("train", "flipped", "test")  # column `split`; flipped: those of train whose label is wrong
STEPS = (0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000)
QUICK = ["--seeds=2", "--steps=15", "--small_steps=100", "--tests=20"] + [
    f"--{prefix}{size}" for prefix in ("", "small_") for size in ("dimension=400", "samples=20", "neurons=20")
]


@dataclasses.dataclass(frozen=True)
class Settings(Component):
    """Appendix A.7. Those called small_... are of the runs with the small step."""

    seeds: int = setting(20, "runs of each step size, each with points and weights of its own", low=1, high=65536)
    dimension: int = setting(40_000, "p, of a point", low=2)
    samples: int = setting(200, "n, training points", low=2)
    neurons: int = setting(1000, "m, in the hidden layer", low=1)
    steps: int = setting(100, "the budget", low=15)
    small_dimension: int = setting(8000, "p at the small step", low=2)
    small_samples: int = setting(100, "n at the small step", low=2)
    small_neurons: int = setting(200, "m at the small step", low=1)
    small_steps: int = setting(10_000, "the budget at the small step", low=100)
    tests: int = setting(200, "test points of a run", low=1)
    flips: float = setting(0.05, "probability that a training label is flipped", low=0.0, high=0.5)
    mean: float = setting(2.5, "norm of mu1 and mu2 in units of sqrt(p / n)", low=0.0)
    start: float = setting(1e-15, "standard deviation of the initial weights", low=1e-30)

    kind: ClassVar[str] = ""


class Run(NamedTuple):
    """The P = n + tests points of a run, those of training first, and its network before training."""

    gram_PxP: np.ndarray
    start_PxM: np.ndarray  # pre-activations
    readout_M: np.ndarray  # second layer, which stays
    clean_P: np.ndarray  # +-1
    label_P: np.ndarray  # the same, but flipped for some points of training


def base(scale: str, argv: list[str]) -> Settings:
    """The paper averages 100 runs, of one size."""
    del argv
    paper = Settings(seeds=100, small_dimension=40_000, small_samples=200, small_neurons=1000)
    return paper if scale == "paper" else Settings()


def sample(settings: Settings, seed: int) -> Run:
    """Draws a run (definition 2.1, section 2.3), by NumPy, whose numbers are float64 without being asked."""
    p, n, m, count = settings.dimension, settings.samples, settings.neurons, settings.samples + settings.tests
    random = np.random.default_rng(seed)
    axis_P, side_P = random.integers(0, 2, (2, count))
    clean_P = 1.0 - 2 * axis_P
    x_PxD = random.standard_normal((count, p))  # a Gaussian has no axes: mu1 and mu2 may lie along the first two
    x_PxD[np.arange(count), axis_P] += settings.mean * (p / n) ** 0.5 * (1 - 2 * side_P)
    gram_PxP = x_PxD @ x_PxD.T
    start_PxM = settings.start * np.linalg.cholesky(gram_PxP) @ random.standard_normal((count, m))  # the law of x W
    readout_M = random.choice([-1, 1], m) / m**0.5
    flipped_P = (random.random(count) < settings.flips) & (np.arange(count) < n)
    return Run(gram_PxP, start_PxM, readout_M, clean_P, np.where(flipped_P, -clean_P, clean_P))


def outputs(run: Run, samples: int, step_size: float, step_R) -> jax.Array:
    """The network's outputs [R, P] after each of the given steps of full-batch gradient descent (eq. 2.2).

    A neuron's weights are those it began with and a combination of training points, whose coefficients [N, M] are
    `moved`: its pre-activations are those it began with and Gram times `moved`.
    """
    label_N, gram_NxN = run.label_P[:samples], run.gram_PxP[:samples, :samples]

    def step(_, state):
        hidden_NxM, moved_NxM = state
        output_N = jax.nn.relu(hidden_NxM) @ run.readout_M
        push_N = step_size / samples * label_N * jax.nn.sigmoid(-label_N * output_N)
        change_NxM = jnp.where(hidden_NxM > 0, push_N[:, None] * run.readout_M[None, :], 0.0)
        return hidden_NxM + gram_NxN @ change_NxM, moved_NxM + change_NxM

    def record(state, steps):
        state = jax.lax.fori_loop(0, steps, step, state)
        hidden_PxM = run.start_PxM + run.gram_PxP[:, :samples] @ state[1]
        return state, jax.nn.relu(hidden_PxM) @ run.readout_M

    start_NxM = run.start_PxM[:samples]
    return jax.lax.scan(record, (start_NxM, jnp.zeros_like(start_NxM)), jnp.diff(step_R, prepend=0))[1]


@functools.partial(jax.jit, static_argnums=1)
def train(runs: Run, samples: int, step_size: float, step_R) -> jax.Array:
    """Outputs [S, R, P] of runs with a leading axis, one run after the other."""
    return jax.lax.map(lambda run: outputs(run, samples, step_size, step_R), runs)


def simulate(settings: Settings) -> pd.DataFrame:
    """Rows (arm, seed, step, split, problems, exact, chance), as a trained run has them."""
    names = ("dimension", "samples", "neurons", "steps")
    small = dataclasses.replace(settings, **{name: getattr(settings, f"small_{name}") for name in names})
    for size in (settings, small):
        if size.dimension < size.samples + size.tests:
            raise Refused(f"{size.samples + size.tests} points in {size.dimension} dimensions depend on each other.")
    return pd.concat([_arm(settings, LARGE, 1e-12), _arm(small, SMALL, 1e-16)], ignore_index=True)


def _arm(settings: Settings, arm: str, step_size: float) -> pd.DataFrame:
    steps = sorted({*(s for s in STEPS if s < settings.steps), settings.steps})
    runs = Run(*map(np.stack, zip(*(sample(settings, seed) for seed in range(settings.seeds)), strict=True)))
    with jax.enable_x64(True):
        output_SxRxP = np.asarray(train(runs, settings.samples, step_size, np.array(steps)))
    training_SxP = np.broadcast_to(np.arange(settings.samples + settings.tests) < settings.samples, runs.label_P.shape)
    part_SxPx3 = np.stack([training_SxP, runs.label_P != runs.clean_P, ~training_SxP], -1).astype(int)  # as in PARTS
    exact_SxRx3 = (output_SxRxP * runs.label_P[:, None, :] > 0).astype(int) @ part_SxPx3
    problems_SxRx3 = np.broadcast_to(part_SxPx3.sum(1)[:, None, :], exact_SxRx3.shape)
    index = pd.MultiIndex.from_product([range(settings.seeds), steps, PARTS], names=["seed", "step", "split"])
    rows = pd.DataFrame({"problems": problems_SxRx3.ravel(), "exact": exact_SxRx3.ravel()}, index).reset_index()
    return rows.assign(arm=arm, chance=0.5)


def claims(rows):
    """Test accuracy is on labels that are not flipped."""
    large, small = rows[rows["arm"] == LARGE], rows[rows["arm"] == SMALL]
    train, test = (score(large, part, 1) for part in ("train", "test"))
    yield Claim(
        "fits-at-once", XU, "After one step of gradient descent every training label is fitted.",
        "100 %", "theorem 3.1; figure 1, left", "mean training accuracy at step 1 >= .99",
        tuple(train), verdict(train.mean() >= 0.99),
    )  # fmt: skip
    yield Claim(
        "random-at-once", XU, "After one step the test is random.",
        "50 %", "theorem 3.1; figure 1, left", "mean test accuracy at step 1 in .45 to .58",
        tuple(test), verdict(0.45 <= test.mean() <= 0.58),
    )  # fmt: skip
    test = score(large, "test", 15)
    yield Claim(
        "generalizes", XU, "A few steps later the network generalizes.",
        "near 100 % after 15 to 20 steps", "figure 1, left, read off", "mean test accuracy at step 15 >= .93",
        tuple(test), verdict(test.mean() >= 0.93),
    )  # fmt: skip
    flipped, test = (score(large, part) for part in ("flipped", "test"))
    yield Claim(
        "benign", XU, "It generalizes with the flipped labels still fitted.",
        "100 % of training, near 100 % of test", "figure 1, left, read off",
        "at the last step mean accuracy on flipped labels >= .99, and on the test >= .95; measured: on flipped labels",
        tuple(flipped), verdict(flipped.mean() >= 0.99 and test.mean() >= 0.95),
    )  # fmt: skip
    fit, learned = first_step(small, "train", 0.99), first_step(small, "test", 0.9)
    yield Claim(
        "small-step-delays-both", XU, "With a small step the fit comes late, and the test much later.",
        "no number: `a delayed time for both`", "section 1; figure 1, right",
        "medians: training accuracy .99 not before step 30 (1 above), test accuracy .9 at least 3 times as late, within"
        " the budget; measured: the test's step",
        tuple(learned), verdict(30 <= fit.median() <= learned.median() / 3 < np.inf),
    )  # fmt: skip


def figure(rows):
    drawn, (axes,) = figures.canvas(2)
    shifted = rows.assign(step=rows["step"] + 1)  # step 0 has a place on a logarithmic axis, as in figure 1
    for axis, (arm, of_arm) in zip(axes, shifted.groupby("arm", sort=False), strict=True):
        for color, part, style in zip(figures.COLORS, PARTS, ("--", ":", "-"), strict=False):
            figures.accuracy_over_steps(axis, of_arm, part, color, part, style)
        axis.set(title=arm, xlabel="step + 1", ylabel="accuracy")
        axis.legend(fontsize=7)
    figures.caption(drawn, rows, "flipped: the training labels that are wrong; the test's are right")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
