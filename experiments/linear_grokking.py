"""A linear student groks, and nothing happens to it: two smooth losses cross one threshold at different times.

    ./launch/reproduce.sh linear_grokking                 two minutes on two CPU cores
    ./launch/reproduce.sh linear_grokking --scale=paper   fifty draws instead of ten

Levi et al. 2023, "Grokking in linear estimators" (arXiv 2310.16441), one output. A student S learns a teacher T from
N Gaussian inputs of D dimensions, lambda = D / N, by gradient descent. With Sigma = X'X / N its losses are
(S - T)' Sigma (S - T) in training and |S - T|^2 in test (eqs. 1, 2). An answer is right if its squared error is below
eps, so the accuracy is erf(sqrt(eps / 2L)), 95.45 % at L = eps / 4 (eq. 10): there training or test "arrives".

The paper's averages over the spectrum of Sigma (eqs. 6, 8, 15: gradient flow, D to infinity), by quadrature, are
compared with draws at a finite D, whose gradient descent is solved in the eigenbasis of Sigma; at lambda .5 some are
also iterated step by step. All is float64, which NumPy is without being asked. The late plateaus that the paper gives
with weight decay g (eq. 16, g^2 / 4 over 1 - lambda and its cube) are twice what its eq. 15 tends to; we take eq. 15.
"""

import dataclasses
import math
import sys
from typing import ClassVar

import numpy as np
import pandas as pd

from e2h import figures
from e2h.claims import Claim, verdict
from e2h.registry import Component, setting
from experiments import _main

LEVI = "Levi et al. 2023, arXiv 2310.16441"
EXACT, DRAW, ITERATED = "exact", "draw", "iterated"  # column `source`
RATIOS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.5)  # lambda
DECAYS = {0.9: (0.0, 1e-5, 1e-3, 1e-2)}  # weight decay gamma, by lambda; 0 elsewhere
TOLERANCES = {0.1: 0.1, 0.3: 0.1, 0.5: 0.1, 0.7: 0.1, 0.8: 0.1, 0.9: 0.25}  # set before the run
ETA, STEPS, ITERATED_STEPS = 0.01, 300_000, 3000
EPS, SMALL_EPS = 1e-3, 1e-6
QUICK = ["--dimension=60", "--draws=2"]


@dataclasses.dataclass(frozen=True)
class Settings(Component):
    """How many students of which size."""

    draws: int = setting(10, "students for each lambda, each with data and a teacher of its own", low=1, high=10_000)
    iterated: int = setting(3, "how many of them at lambda .5 are also iterated step by step", low=1)
    dimension: int = setting(1000, "D, the length of an input; there are D / lambda of them", low=20, high=10_000)

    kind: ClassVar[str] = ""


def base(scale: str, argv: list[str]) -> Settings:
    """Figures 1 and 3: D = 1000, eta = .01, eps = .001. The paper does not say how many draws it shows."""
    del argv
    return Settings(draws=50 if scale == "paper" else 10)


def marchenko_pastur(ratio: float, nodes: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues [K] and weights [K]: sum w f(nu) is the average of f over eq. 6, for lambda other than 1.

    With nu = 1 + lambda - 2 sqrt(lambda) cos a the density is (2 / pi) sin^2(a) / nu da, and equal steps of a are
    Gauss-Chebyshev nodes of the second kind. The last node is the atom of the null directions beyond lambda = 1.
    """
    angle_K = np.pi * np.arange(1, nodes + 1) / (nodes + 1)
    nu_K = 1 + ratio - 2 * math.sqrt(ratio) * np.cos(angle_K)
    weight_K = 2 / (nodes + 1) * np.sin(angle_K) ** 2 / nu_K
    return np.append(nu_K, 0.0), np.append(weight_K, max(0.0, 1 - 1 / ratio))


def remains(shrink_TxK, nu_K, decay: float) -> np.ndarray:
    """r [T, K] in S(t) - T = e S(0) - r T along an eigenvector, where the student's start has shrunk to e [T, K]."""
    pull_K = nu_K + decay / 2
    return np.divide(shrink_TxK * nu_K + decay / 2, pull_K, out=np.ones_like(shrink_TxK), where=pull_K != 0)


def exact(ratio: float, decay: float, step_T) -> np.ndarray:
    """Training and test loss [2, T] averaged over data, teachers and students: eq. 15, and eq. 8 without decay."""
    nu_K, weight_K = marchenko_pastur(ratio)
    shrink_TxK = np.exp(-2 * ETA * (nu_K + decay / 2) * step_T[:, None])
    error_TxK = (shrink_TxK**2 + remains(shrink_TxK, nu_K, decay) ** 2) / 2
    return np.stack([error_TxK @ (weight_K * nu_K), error_TxK @ weight_K])


def draw(dimension: int, ratio: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs [N, D], student [D] and teacher [D], |S - T|^2 being 1 in the mean."""
    count = round(dimension / ratio)
    random = np.random.default_rng((seed, count))
    return random.standard_normal((count, dimension)), *random.normal(0, (2 * dimension) ** -0.5, (2, dimension))


def solved(nu_D, student_D, teacher_D, decay: float, step_T) -> np.ndarray:
    """Losses [2, T] of gradient descent (eq. 14) after given steps; student and teacher in the eigenbasis of Sigma."""
    shrink_TxD = (1 - 2 * ETA * (nu_D + decay / 2)) ** step_T[:, None]
    error_TxD = shrink_TxD * student_D - remains(shrink_TxD, nu_D, decay) * teacher_D
    return np.stack([error_TxD**2 @ nu_D, (error_TxD**2).sum(1)])


def iterated(x_NxD, student_D, teacher_D, decay: float, step_T) -> np.ndarray:
    """The same losses [2, T], from the data, one step of gradient descent after the other."""
    losses = []
    for step in range(step_T[-1] + 1):
        error_N = x_NxD @ (student_D - teacher_D)
        if step in step_T:
            losses.append((np.mean(error_N**2), np.sum((student_D - teacher_D) ** 2)))
        student_D = student_D - ETA * (2 / len(x_NxD) * (x_NxD.T @ error_N) + decay * student_D)
    return np.transpose(losses)


def simulate(settings: Settings) -> pd.DataFrame:
    """Rows (source, ratio, decay, seed, step, train, test); the exact averages have seed -1."""
    step_T, dense_T = grid(16), grid(32)
    early_T = step_T[step_T <= ITERATED_STEPS]
    frames = []
    for ratio in RATIOS:
        decays = DECAYS.get(ratio, (0.0,))
        in_fact = settings.dimension / round(settings.dimension / ratio)  # N is a whole number
        frames += [_rows(EXACT, ratio, decay, -1, dense_T, exact(in_fact, decay, dense_T)) for decay in decays]
        for seed in range(settings.draws):
            x_NxD, *pair = draw(settings.dimension, ratio, seed)
            nu_D, vector_DxD = np.linalg.eigh(x_NxD.T @ x_NxD / len(x_NxD))
            nu_D, turned = np.maximum(nu_D, 0), [vector_DxD.T @ v_D for v_D in pair]
            for decay in decays:
                frames.append(_rows(DRAW, ratio, decay, seed, step_T, solved(nu_D, *turned, decay, step_T)))
            if ratio == 0.5 and seed < settings.iterated:
                frames.append(_rows(ITERATED, ratio, 0.0, seed, early_T, iterated(x_NxD, *pair, 0.0, early_T)))
    return pd.concat(frames, ignore_index=True)


def grid(per_decade: int) -> np.ndarray:
    """int [T]: step 0, and from step 10 on about so many in every factor of ten; before, little happens at this eta."""
    count = round(per_decade * math.log10(STEPS / 10)) + 1
    return np.unique(np.append(0, np.geomspace(10, STEPS, count).round())).astype(int)


def _rows(source: str, ratio: float, decay: float, seed: int, step_T, loss_2xT) -> pd.DataFrame:
    """With the six digits that are stored, as long as the test loss is above 1e-10: the smallest eps needs 1e-7."""
    train_T, test_T = (np.array([float(f"{v:.6g}") for v in loss_T]) for loss_T in loss_2xT)
    rows = pd.DataFrame({"source": source, "ratio": ratio, "decay": decay, "seed": seed, "step": step_T})
    return rows.assign(train=train_T, test=test_T)[test_T > 1e-10]


def crossing(step_T, loss_T, eps: float) -> float:
    """When a loss first reaches eps / 4, between two rows along an exponential; inf for never."""
    below = np.flatnonzero(loss_T <= eps / 4)
    if not len(below) or not below[0]:
        return 0.0 if len(below) else math.inf
    (t0, t1), (l0, l1) = step_T[below[0] - 1 : below[0] + 1], np.log(loss_T[below[0] - 1 : below[0] + 1])
    return float(t0 + (t1 - t0) * (l0 - math.log(eps / 4)) / (l0 - l1))


def times(rows, eps: float) -> pd.DataFrame:
    """When both losses reach eps / 4: columns train, test and delay over (source, ratio, decay, seed)."""
    keys, found = ["source", "ratio", "decay", "seed"], []
    for run, r in rows[rows["source"] != ITERATED].groupby(keys):
        train, test = (crossing(r["step"].to_numpy(), r[loss].to_numpy(), eps) for loss in ("train", "test"))
        found.append((*run, train, test, test - train if train < math.inf else math.nan))
    return pd.DataFrame(found, columns=[*keys, "train", "test", "delay"]).set_index(keys).sort_index()


def claims(rows):
    """The published values are those of the paper's formulas at the drawn D / N, evaluated by us."""
    at, at_small = times(rows, EPS), times(rows, SMALL_EPS)
    draws = rows[rows["source"] == DRAW]
    for ratio, tolerance in TOLERANCES.items():
        for decay in DECAYS.get(ratio, (0.0,)):
            known, found = at.loc[EXACT, ratio, decay].iloc[0], at.loc[DRAW, ratio, decay]
            near = [
                found[c].median() == known[c] or abs(found[c].median() / known[c] - 1) <= tolerance  # both may be never
                for c in ("train", "test")
            ]
            yield Claim(
                f"times-{ratio}" + (f"-decay-{decay:g}" if decay else ""), LEVI,
                f"At lambda {ratio} and weight decay {decay:g} training and test arrive when the exact averages do.",
                " and ".join(f"{c} {step:.0f}".replace("inf", "never") for c, step in known[["train", "test"]].items()),
                f"steps of eq. {15 if decay else 8}, evaluated by us",
                f"the median draw's steps of both within {tolerance:.0%}, never being never; measured: the test's",
                tuple(found["test"]), verdict(all(near)),
            )  # fmt: skip
    plateau = draws[draws["ratio"] == 1.5].groupby("seed")["test"].last()
    yield Claim(
        "never-beyond-1", LEVI, "With more dimensions than samples, lambda 1.5, the test loss stays on a plateau.",
        "1 - 1 / lambda = .3333", "section 3.1.1", "median of the last test loss within .03 of 1/3; no draw arrives",
        tuple(plateau), verdict(abs(plateau.median() - 1 / 3) <= 0.03 and (plateau > EPS / 4).all()),
    )  # fmt: skip
    delay = at["delay"].xs(0.0, level="decay").unstack("ratio").drop(columns=1.5)
    growth = (delay / delay.shift(axis=1)).loc[DRAW].iloc[:, 1:].min(axis=1, skipna=False)
    yield Claim(
        "delay-grows", LEVI, "The delay grows as lambda nears 1.",
        ", ".join(f"{step:.0f} at {ratio}" for ratio, step in delay.loc[EXACT].iloc[0].items()),
        "steps of eq. 8, evaluated by us", "every draw's delay grows at every lambda; measured: its smallest factor",
        tuple(growth), verdict((growth > 1).all()),
    )  # fmt: skip
    large, small = (found["delay"].xs((0.5, 0.0), level=("ratio", "decay")) for found in (at, at_small))
    yield Claim(
        "delay-is-of-eps", LEVI, "The delay is the threshold's: on the same losses a smaller eps gives another one.",
        f"{large[EXACT].iloc[0]:.0f} steps at eps 1e-3, {small[EXACT].iloc[0]:.0f} at 1e-6 (lambda .5)",
        "eq. 8, evaluated by us; that the losses know no threshold: section 3.1.4",
        "median over draws of the second delay / the first >= 1.2",
        tuple(small[DRAW] / large[DRAW]), verdict((small[DRAW] / large[DRAW]).median() >= 1.2),
    )  # fmt: skip
    half = draws[draws["ratio"] == 0.5]
    apart = (half["test"] / half["train"]).groupby(half["seed"]).max()
    yield Claim(
        "losses-fall-together", LEVI, "The losses themselves are at all times a bounded factor apart (lambda .5).",
        "test / training loss tends to (1 - sqrt(lambda))^-2 = 11.66", "eq. 11",
        "largest factor over all steps <= 12.8, a tenth above, on every draw",
        tuple(apart), verdict((apart <= 12.8).all()),
    )  # fmt: skip
    both = rows[rows["source"] == ITERATED].merge(draws, on=["ratio", "decay", "seed", "step"])
    off = np.maximum(*((both[f"{c}_x"] / both[f"{c}_y"] - 1).abs() for c in ("train", "test")))
    off = off.groupby(both["seed"]).max()
    yield Claim(
        "iteration", LEVI, "Gradient descent, iterated from the data, has the losses of its solution.",
        "no number: an identity", "eq. 3", "largest relative difference <= 1e-4; the rows keep six digits",
        tuple(off), verdict((off <= 1e-4).all()),
    )  # fmt: skip


def figure(rows):
    drawn, axes = figures.canvas(2, 2)
    free = rows[rows["decay"] == 0]
    for color, ratio in zip(figures.COLORS, (0.1, 0.5, 0.9, 1.5), strict=False):
        _losses(axes[0, 0], free[free["ratio"] == ratio], color, f"lambda {ratio}")
        _losses(axes[0, 1], free[free["ratio"] == ratio], color, f"lambda {ratio}", accuracy)
    for color, decay in zip(figures.COLORS, (0.0, 1e-3, 1e-2), strict=False):
        here = rows[(rows["ratio"] == 0.9) & (rows["decay"] == decay)]
        _losses(axes[1, 0], here, color, f"lambda 0.9, weight decay {decay:g}")
    for axis in (axes[0, 0], axes[1, 0]):
        axis.axhline(EPS / 4, color=figures.GREY, linewidth=1)
        axis.set(yscale="log", ylim=(1e-6, 3), ylabel="loss")
    axes[0, 1].set(ylabel=f"accuracy at eps {EPS:g}")
    for color, eps in zip(figures.COLORS, (1e-1, 1e-2, EPS, SMALL_EPS), strict=False):
        delay = times(free, eps)["delay"].reset_index().query("ratio < 1")
        known, found = (delay[delay["source"] == source] for source in (EXACT, DRAW))
        axes[1, 1].plot(found["ratio"], found["delay"], ".", color=color, markersize=3)
        axes[1, 1].plot(known["ratio"], known["delay"], color=color, label=f"eps {eps:g}")
    axes[1, 1].set(yscale="log", xlabel="lambda", ylabel="delay of the test in steps")
    for axis in axes.flat:
        axis.legend(fontsize=6.5)
    count = rows[rows["source"] == DRAW]["seed"].nunique()
    drawn.supxlabel(
        f"test solid, training dashed; {count} draws, thin lines and dots; median thick; black: exact; grey: eps / 4",
        fontsize=7,
    )
    return drawn


def accuracy(loss: float) -> float:
    """Eq. 10."""
    return math.erf(math.sqrt(EPS / 2 / loss)) if loss else 1.0


def _losses(axis, rows, color: str, label: str, of=float) -> None:
    """A function of both losses over the steps."""
    rows = rows[rows["step"] > 0]
    known = rows[rows["source"] == EXACT]
    for loss, style in (("train", "--"), ("test", "-")):
        wide = rows[rows["source"] == DRAW].pivot(index="step", columns="seed", values=loss)
        figures.seeds_and_median(axis, wide.map(of), color, label if loss == "test" else "", style)
        axis.plot(known["step"], known[loss].map(of), color="black", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlabel="step")


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
