"""Why does a + b mod p stop being learned? Softmax collapse by precision, and what prevents it.

    ./launch/reproduce.sh numerical_stability                 a quarter of an hour on two CPU cores
    ./launch/reproduce.sh numerical_stability --scale=paper   p = 113 throughout, the published budgets

Prieto et al. 2025, "Grokking at the edge of numerical stability" (arXiv 2501.04697), figures 2, 1, 4 and 6: once the
training problems are known the gradient only makes the logits larger, until the softmax rounds every other class away
(collapse) and the right logit's gradient is exactly 0. A wider float collapses later and generalizes further; StableMax
does not collapse; the orthogonal gradient does not go that way. At CPU scale p = 59 instead of 113, higher learning
rates than in the paper for fewer steps, and a smaller transformer; the orthogonal MLP runs at p = 113 as published.

The paper's Adam epsilon of 1e-25 cannot be had with float32 moments on a CPU, which flushes (1 - b2) g^2 to 0 below
|g| = 1e-18 (b2 .99): the update would be m / 1e-25. Here it is 1e-18, the smallest that keeps updates bounded, so that
gradients matter down to about where float64 collapses. The orthogonal AdamW has Adam's usual 1e-8 and b2 .999, which is
what the paper's code ran. A float16 sum is rounded after each term. The transformer has no dropout, and the table all
residues, where the paper's has dropout .1 and no 0. As in the paper the table is split in ordered pairs, so
a test problem a + b may have b + a in training; `--split.by=orbit` keeps such twins together.

Five claims do not hold in the committed CPU outcome; all lack steps, we think. The float types are in the paper's order
(.02, .06 and .13 of the test) by less than the threshold, after a quarter of its steps. StableMax is at chance after
14,000 steps; the paper's has 5 % at 20,000 and 94 % at 50,000. Evaluated every 25 steps, one seed of the orthogonal
MLP has t_gen / t_mem = 1.43, and one with SGD ends just short of .99. The transformer has .28 of the test after 1,000
steps with the orthogonal gradient and nothing with decay 1.5: the paper's order, but neither arrives.
"""

import dataclasses
import math
import sys

import pandas as pd

from e2h import figures
from e2h.claims import Claim, first_step, highest, score, verdict
from e2h.config import Config
from e2h.losses.cross_entropy import CrossEntropy
from e2h.losses.stablemax import StableMax
from e2h.models.transformer import Transformer
from e2h.optimizers.adamw import AdamW
from e2h.optimizers.orthogonal_gradient import OrthogonalGradient
from e2h.optimizers.sgd import SGD
from e2h.splits import TEST, TRAIN
from e2h.splits.fraction import Fraction
from e2h.tasks.modular import Modular
from experiments import _main

WHOLE = 2**20  # more than any table holds: full batch
TYPES = ("float16", "float32", "float64")
PLAIN, ORTHOGONAL = "MLP, AdamW", "MLP, orthogonal AdamW"
PRIETO = "Prieto et al. 2025, arXiv 2501.04697"
NOTEBOOK = "read from the authors' notebook; p = 113"


def base(scale: str, argv: list[str]) -> Config:
    """Figure 2's network and optimizer; `steps` and `evaluate_every` are those of the longest arms, StableMax's."""
    del argv
    paper = scale == "paper"
    return Config(
        task=Modular(op="add", p=113 if paper else 59),
        split=Fraction(train_fraction=0.7, by="ordered"),
        optimizer=AdamW(learning_rate=5e-4 if paper else 1e-3, b2=0.99, eps=1e-18),
        batch_size=WHOLE,
        seeds=3,
        test_size=2560,
        steps=80_000 if paper else 14_000,
        record_every=25,
        evaluate_every=2000 if paper else 700,
        measures=("softmax_collapse", "naive_alignment", "weight_norm"),
        halt=False,  # numbers that break are an outcome
    )


def arms(config: Config) -> dict[str, Config]:
    """Figure 2 (types and fractions), figures 1 and 4 (StableMax), figure 6 (the orthogonal gradient)."""
    full = config.task.p >= 113
    new = dataclasses.replace
    adam, wide = config.optimizer, CrossEntropy("float64")
    usual = new(adam, b2=0.999, eps=1e-8)

    def at(fraction: float, **changes) -> Config:
        return new(config, split=new(config.split, train_fraction=fraction), **changes)

    found = {}
    for name in TYPES:
        found[name] = _short(new(config, loss=CrossEntropy(name)), 20_000 if full else 5000, 40)
    for fraction in (0.6, 0.4) if full else (0.4,):  # at CPU scale fewer steps, for the minutes
        for name in TYPES:
            arm = at(fraction, loss=CrossEntropy(name))
            found[f"{name}, {fraction:g}"] = _short(arm, 20_000 if full else 2000, 40 if full else 16)
    fast = new(adam, learning_rate=0.01)
    found["cross-entropy"] = at(0.4 if full else 0.5, loss=wide, optimizer=fast)
    found["StableMax"] = at(0.4 if full else 0.5, loss=StableMax(), optimizer=new(fast, b2=0.999))
    published = at(0.4, task=new(config.task, p=113))
    for name, loss, optimizer in (
        (PLAIN, wide, new(adam, learning_rate=5e-3)),
        (ORTHOGONAL, wide, OrthogonalGradient(inner=new(usual, learning_rate=5e-3))),
        ("MLP, orthogonal SGD", StableMax(), OrthogonalGradient(inner=SGD(learning_rate=10.0, momentum=0.8))),
    ):
        found[name] = _short(new(published, loss=loss, optimizer=optimizer), 500, 25)
    encoder = Transformer(
        width=128 if full else 64, layers=1, heads=4, expansion=16 if full else 4, causal=False, norm="post",
        activation="relu", kernel_init="torch_uniform",
    )  # fmt: skip
    slow = new(adam, learning_rate=1e-3)
    for name, optimizer in (
        ("transformer, AdamW", slow),
        ("transformer, decay 1.5", new(slow, weight_decay=1.5)),
        ("transformer, orthogonal AdamW", OrthogonalGradient(inner=new(usual, learning_rate=1e-3))),
    ):
        arm = new(at(0.4) if full else config, model=encoder, optimizer=optimizer)
        found[name] = _short(arm, 5000 if full else 1000, 25 if full else 20)
    return found


def _short(config: Config, steps: int, evaluations: int) -> Config:
    """At most so many steps, evaluated so often in them, in whole records."""
    every = min(config.evaluate_every, steps // evaluations) // config.record_every * config.record_every
    return dataclasses.replace(config, steps=min(config.steps, steps), evaluate_every=max(config.record_every, every))


def claims(rows):
    """t_mem and t_gen: the first evaluated steps at which the training and the test accuracy reach .99.

    Learned: the training accuracy reaches .99 on every seed.
    """
    arm = dict(list(rows.groupby("arm")))
    final = pd.DataFrame({name: score(arm[name], TEST) for name in TYPES})
    gap = final.diff(axis=1).iloc[:, 1:].min(axis=1)
    learned = {name: (highest(of_arm, TRAIN) >= 0.99).all() for name, of_arm in arm.items()}
    yield Claim(
        "precision-orders-test", PRIETO, "The wider the float of the softmax, the higher the final test accuracy.",
        "float16 48 %, float32 about 67 %, float64 82-91 % after a peak of 93 %", f"figure 2, fraction .7, {NOTEBOOK}",
        "median over seeds of the smaller of float32 - float16 and float64 - float32 >= .05; training reaches .99",
        tuple(gap), verdict(gap.median() >= 0.05 and all(learned[name] for name in TYPES)),
    )  # fmt: skip
    if "softmax_collapse" in rows:
        onset = pd.DataFrame({name: _onset(arm[name]) for name in TYPES})
        later = (onset / onset.shift(axis=1)).iloc[:, 1:].fillna(0.0).min(axis=1)  # never / never is no order
        yield Claim(
            "precision-orders-collapse", PRIETO, "The wider the float, the later half the problems collapse.",
            "steps of about 2,000 (float16), 3,000 (float32), 7,000 (float64)", f"figure 2, fraction .7, {NOTEBOOK}",
            "smaller ratio of steps, float32 / float16 or float64 / float32, > 1 on every seed; training reaches .99",
            tuple(later), verdict((later > 1).all() and all(learned[name] for name in TYPES)),
        )  # fmt: skip
    few = pd.DataFrame({name: highest(arm[f"{name}, 0.4"], TEST) for name in TYPES}).max(axis=1)
    yield Claim(
        "few-problems-never", PRIETO, "With a fraction of .4 no float type generalizes.",
        "all about 0", f"figure 2, fraction .4, {NOTEBOOK}",
        "highest test accuracy of all types <= .1 within 2,000 steps and training reaches .99, on every seed",
        tuple(few), verdict((few <= 0.1).all() and all(learned[f"{name}, 0.4"] for name in TYPES)),
    )  # fmt: skip
    stable = score(arm["StableMax"], TEST)
    yield Claim(
        "stablemax-generalizes", PRIETO, "StableMax generalizes without decay.",
        "94 % at step 50,000, 98-99 % at 75,000", f"figure 1b, fraction .4, {NOTEBOOK}",
        "final test accuracy >= .9 on every seed", tuple(stable), verdict((stable >= 0.9).all()),
    )  # fmt: skip
    softmax = highest(arm["cross-entropy"], TEST)
    yield Claim(
        "cross-entropy-does-not", PRIETO, "Cross-entropy in float64 with the same learning rate does not.",
        "0-1 % through step 80,000", f"figure 1a, fraction .4, {NOTEBOOK}",
        "highest test accuracy < .2 and training reaches .99, on every seed",
        tuple(softmax), verdict((softmax < 0.2).all() and learned["cross-entropy"]),
    )  # fmt: skip
    yield from _orthogonal(arm, learned)
    if "naive_alignment" in rows:
        before, after = _alignment(arm[PLAIN])
        yield Claim(
            "gradient-aligns", PRIETO, "Once the training problems are known, the gradient goes along the weights.",
            "strongly aligned, no number", "abstract; our threshold",
            "MLP, AdamW: mean cosine from t_mem on minus mean cosine before it >= .1 on every seed",
            tuple(after - before), verdict((after - before >= 0.1).all()),
        )  # fmt: skip


def _orthogonal(arm, learned):
    """Figure 6: the orthogonal gradient."""
    plain = highest(arm[PLAIN], TEST)
    yield Claim(
        "mlp-adamw-never", PRIETO, "AdamW on the MLP learns the training problems and no test problems in 500 steps.",
        "about 0", f"figure 6, {NOTEBOOK}", "highest test accuracy <= .05 and training reaches .99, on every seed",
        tuple(plain), verdict((plain <= 0.05).all() and learned[PLAIN]),
    )  # fmt: skip
    for name, published in (("AdamW", "about 98 % at step 220"), ("SGD", "100 % at about step 400")):
        delay = _ratio(*(first_step(arm[f"MLP, orthogonal {name}"], part, 0.99) for part in (TEST, TRAIN)))
        yield Claim(
            f"mlp-orthogonal-{name.lower()}", PRIETO, f"With the orthogonal gradient and {name} the MLP has no delay.",
            published, f"figure 6, {NOTEBOOK}", "t_gen / t_mem <= 1.3 on every seed, within 500 steps",
            tuple(delay), verdict((delay <= 1.3).all()),
        )  # fmt: skip
    decayed, orthogonal = arm["transformer, decay 1.5"], arm["transformer, orthogonal AdamW"]
    arrives = first_step(orthogonal, TEST, 0.9)
    lead = (first_step(decayed, TEST, 0.9) / arrives).where(arrives < math.inf, 0.0)
    trained = highest(decayed, TRAIN) >= 0.9  # a decay that forbids learning is not late
    yield Claim(
        "transformer-before-decay", PRIETO, "On the transformer the orthogonal gradient generalizes before decay does.",
        "100 % at step 600-800 against 93 % at about 1,200 with decay 1.5", f"figure 6, logged steps, {NOTEBOOK}",
        "t_gen of decay / t_gen of the orthogonal gradient > 1 on every seed, at .9; training reaches .9 with decay",
        tuple(lead), verdict((lead > 1).all() and trained.all()),
    )  # fmt: skip


def _ratio(late, early):
    """late / early of each seed; infinite where the late event never comes."""
    return (late / early).where(late < math.inf, math.inf)


def _onset(rows):
    """The first evaluated step at which half of the training problems are collapsed."""
    return first_step(rows, "measured", 0.5, "softmax_collapse", "softmax_collapse_count")


def _alignment(rows):
    """Each seed's mean cosine over the evaluations before the training problems are known, and over those after."""
    measured = rows[rows["split"] == "measured"]
    known = measured["step"] >= measured["seed"].map(first_step(rows, TRAIN, 0.99))
    seeds = sorted(rows["seed"].unique())
    return [measured[k].groupby("seed")["naive_alignment"].mean().reindex(seeds) for k in (~known, known)]


def figure(rows):
    drawn, ((by_type, collapse, stable), (mlp, transformer, cosine)) = figures.canvas(3, 2, width=3.5, height=2.6)
    arm = dict(list(rows.groupby("arm", sort=False)))
    for color, name in zip(figures.COLORS, TYPES, strict=False):
        for which, style in ((name, "-"), (f"{name}, 0.4", "--")):
            figures.accuracy_over_steps(by_type, arm[which], TEST, color, which, style)
            if "softmax_collapse" in rows:
                figures.measure_over_steps(collapse, arm[which], "softmax_collapse", color, which, style)
    panels = {
        stable: ("cross-entropy", "StableMax"),
        mlp: [name for name in arm if name.startswith("MLP")],
        transformer: [name for name in arm if name.startswith("transformer")],
    }
    for axis, names in panels.items():
        for color, name in zip(figures.COLORS, names, strict=False):
            figures.accuracy_over_steps(axis, arm[name], TRAIN, color, f"{name}, train", "--")
            figures.accuracy_over_steps(axis, arm[name], TEST, color, f"{name}, test")
    if "naive_alignment" in rows:
        for color, name in zip(figures.COLORS, (*TYPES, PLAIN, ORTHOGONAL), strict=False):
            figures.measure_over_steps(cosine, arm[name], "naive_alignment", color, name)
    titles = (
        "test by float type",
        "collapse by float type",
        "StableMax",
        "MLP",
        "transformer",
        "-gradient and weights",
    )
    for axis, title in zip((by_type, collapse, stable, mlp, transformer, cosine), titles, strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xscale("linear" if axis in (by_type, collapse) else "log")
        axis.legend(fontsize=5.5)
    figures.caption(drawn, rows, "dashed: training accuracy, or a fraction of .4 for training")
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
