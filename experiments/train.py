"""Any task with any model, from flags, with a figure of accuracy against difficulty.

    ./launch/reproduce.sh train --task=addition --task.reverse --model=lstm --split.train_max=5 --split.test_max=10

What is not said is chosen to fit the task: its first layout, a table's fraction or the split along its difficulty, an
MLP for a table and a transformer otherwise. `--help` lists every setting of the components so chosen.
"""

import sys

from e2h import figures
from e2h.config import Config, fitting
from experiments import _main


def base(scale: str, argv: list[str]) -> Config:
    del scale
    return fitting(argv)


def arms(config: Config) -> dict[str, Config]:
    return {f"{config.model.name} on {config.task.name}": config}


def claims(rows):
    """No paper stands behind an arbitrary run."""
    del rows
    return ()


def figure(rows):
    """Against the difficulty where there are several, and always against the step."""
    difficulties = rows[rows["difficulty"] > 0]["difficulty"].nunique()
    drawn, (axes,) = figures.canvas(2 if difficulties > 1 else 1)
    splits = [s for s in rows["split"].unique() if s != "measured"]
    for color, split in zip(figures.COLORS, splits, strict=False):
        figures.accuracy_over_steps(axes[0], rows, split, color, split)
    axes[0].legend(fontsize=7)
    if difficulties > 1:
        figures.accuracy_over_difficulty(axes[1], rows, figures.COLORS[0], "")
        figures.training_range(axes[1], rows[rows["split"] == "test"]["difficulty"].max())
        axes[1].set(xlabel="difficulty (shaded: seen in training)")
    figures.caption(drawn, rows, rows["arm"].iloc[0])
    return drawn


if __name__ == "__main__":
    _main.main(sys.modules[__name__])
