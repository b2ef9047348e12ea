"""Delayed generalization on modular addition, and what removes the delay.

    ./launch/reproduce.sh grokking                      three minutes on two CPU cores
    ./launch/reproduce.sh grokking --model=transformer  Power et al.'s transformer on division mod 97 (hours)

Prieto et al. 2025, "Grokking at the edge of numerical stability" (arXiv 2501.04697), figure 1: a + b mod 113, an MLP
226-200-200-113, 40 % of the ordered table, full batch, learning rate 0.01. After the training problems are learned the
plain gradient only makes the logits larger; without decay the test never comes, with decay it comes late, and with the
component along the weights taken out of the gradient it comes at once. As in the paper the table is split in ordered
pairs, so about 40 % of the test problems a + b have b + a in training; `--split.by=orbit` keeps such twins together.

At paper scale the plain arms take the paper's float64 softmax and second-moment decay .99. Its Adam epsilon of 1e-25
is not used: the second moments of float32 gradients underflow beside it on a CPU.
"""

import dataclasses
import math
import sys

from e2h import figures
from e2h.claims import Claim, first_step, highest, score, verdict
from e2h.config import Config, chosen
from e2h.layouts.table import Table
from e2h.losses.cross_entropy import CrossEntropy
from e2h.models.mlp import MLP
from e2h.models.transformer import Transformer
from e2h.optimizers.adamw import AdamW
from e2h.optimizers.orthogonal_gradient import OrthogonalGradient
from e2h.positions.sinusoidal import Sinusoidal
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import Fraction
from e2h.tasks.modular import Modular
from experiments import _main

WHOLE = 2**20  # more than any table holds: full batch
PRIETO = "Prieto et al. 2025, arXiv 2501.04697"


def base(scale: str, argv: list[str]) -> Config:
    """Prieto et al.'s MLP, or Power et al.'s transformer (arXiv 2201.02177, appendix A.1) with --model=transformer."""
    paper = scale == "paper"
    if chosen(argv, "model", "mlp") == "transformer":
        return Config(
            task=Modular(op="divide", p=97),
            split=Fraction(train_fraction=0.5, by="ordered"),
            layout=Table(equals=True),
            position=Sinusoidal(),
            model=Transformer(norm="post", activation="relu", bias=False, kernel_init="torch_uniform"),
            optimizer=AdamW(learning_rate=1e-3, b2=0.98, warmup_steps=10),
            batch_size=512,
            seeds=3,
            test_size=8192,
            steps=100_000 if paper else 10_000,
            evaluate_every=100,
        )
    return Config(
        task=Modular(op="add", p=113),
        split=Fraction(train_fraction=0.4, by="ordered"),
        model=MLP(),
        loss=CrossEntropy(softmax_dtype="float64" if paper else "float32"),
        optimizer=AdamW(learning_rate=0.01, b2=0.99 if paper else 0.999),
        batch_size=WHOLE,
        test_size=8192,
        steps=80_000 if paper else 700,
        record_every=10,
        evaluate_every=100 if paper else 10,
        measures=("weight_norm", "softmax_collapse", "zero_loss"),
    )


def arms(config: Config) -> dict[str, Config]:
    """No decay; decay 1; no decay and the orthogonal gradient (a quarter of the budget is plenty)."""
    plain = dataclasses.replace(config.optimizer, weight_decay=0.0)
    decayed = dataclasses.replace(config.optimizer, weight_decay=1.0)
    return {
        "no decay": dataclasses.replace(config, optimizer=plain),
        "decay": dataclasses.replace(config, optimizer=decayed),
        "orthogonal gradient": dataclasses.replace(
            config,
            optimizer=OrthogonalGradient(inner=dataclasses.replace(plain, b2=0.999)),  # what its published code ran
            steps=max(1, min(config.steps // 4, 1000)),
            evaluate_every=config.record_every,
        ),
    }


def claims(rows):
    """t_mem and t_gen: the first evaluated steps at which the training and the test accuracy reach .99."""
    by_arm = dict(list(rows.groupby("arm")))
    t_mem = {arm: first_step(r, TRAIN, 0.99) for arm, r in by_arm.items()}
    t_gen = {arm: first_step(r, TEST, 0.99) for arm, r in by_arm.items()}
    ratio = {arm: (t_gen[arm] / t_mem[arm]).fillna(math.inf) for arm in by_arm}  # never / never
    yield Claim(
        "orthogonal-arrives", PRIETO, "With the orthogonal gradient the test accuracy reaches .99 within 150 steps.",
        "98 % at step 110, 100 % at step 120", "figure 1c, read from the authors' notebook",
        "step <= 150 on every seed", tuple(t_gen["orthogonal gradient"]),
        verdict((t_gen["orthogonal gradient"] <= 150).all()),
    )  # fmt: skip
    yield Claim(
        "orthogonal-no-delay", PRIETO, "With the orthogonal gradient the test arrives with the training accuracy.",
        "no delay", "figure 1c, read from the authors' notebook", "t_gen / t_mem <= 1.3 on every seed",
        tuple(ratio["orthogonal gradient"]), verdict((ratio["orthogonal gradient"] <= 1.3).all()),
    )  # fmt: skip
    plain = by_arm["no decay"]
    learned, best_test = score(plain, TRAIN), highest(plain, TEST)
    yield Claim(
        "no-decay-never", PRIETO, "Without decay the training problems are learned and the test never comes.",
        "0-1 % through step 80,000", "figure 1, cross-entropy in float64, read from the authors' notebook",
        "highest test accuracy <= .05 and final training accuracy 1 on every seed", tuple(best_test),
        verdict((best_test <= 0.05).all() and (learned == 1).all()),
    )  # fmt: skip
    yield Claim(
        "decay-late", PRIETO, "With decay the test arrives clearly after the training accuracy.",
        "no number at this learning rate and decay", "its authors: decay groks fast here; our threshold",
        "median t_gen / t_mem >= 3, and the test arrives", tuple(ratio["decay"]),
        verdict(3 <= ratio["decay"].median() < math.inf),
    )  # fmt: skip


def figure(rows):
    drawn, (axes,) = figures.canvas(2)
    for color, (arm, of_arm) in zip(figures.COLORS, rows.groupby("arm", sort=False), strict=False):
        figures.accuracy_over_steps(axes[0], of_arm, TRAIN, color, f"{arm}, train", "--")
        figures.accuracy_over_steps(axes[0], of_arm, TEST, color, f"{arm}, test")
        if "weight_norm" in rows:
            figures.measure_over_steps(axes[1], of_arm, "weight_norm", color, arm)
    axes[0].legend(fontsize=6.5)
    figures.caption(drawn, rows, "weight decay as named; all settings in claims.json's runs")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
