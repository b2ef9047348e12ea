"""Claims: a sentence from a paper, the published number, our threshold, what was measured over all seeds, a verdict."""

import dataclasses
import json
import math
import pathlib
import statistics
from typing import Any

from e2h import records

HOLDS, FAILS, UNTESTABLE = "holds", "does not hold", "not testable at this scale"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of an experiment, judged."""

    id: str
    card: str  # the paper
    statement: str
    published: str  # the published value
    source: str  # where that value was read
    threshold: str  # what must hold at this scale, set before the run
    per_seed: tuple[float, ...]  # measured; inf for what did not happen within the budget
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        known = [v for v in self.per_seed if not math.isnan(v)]
        return {
            "id": self.id,
            "card": self.card,
            "statement": self.statement,
            "published": {"value": self.published, "source": self.source},
            "threshold": self.threshold,
            "measured": {
                "per_seed": [_finite(v) for v in self.per_seed],
                "median": _finite(statistics.median(known)) if known else None,
                "range": [_finite(min(known)), _finite(max(known))] if known else None,
            },
            "verdict": self.verdict,
        }


def verdict(holds: bool) -> str:
    return HOLDS if holds else FAILS


def first_step(rows, split: str, threshold: float, column: str = "exact", total: str = "problems"):
    """The first evaluated step at which each seed's score on a split, over all difficulties, reaches `threshold`.

    Args:
      rows: a run's rows.

    Returns:
      Series over seeds of steps; inf for a seed that never does (right-censored by the budget).
    """
    sums = rows[rows["split"] == split].groupby(["seed", "step"])[[column, total]].sum()
    reached = sums[sums[column] >= threshold * sums[total]].reset_index().groupby("seed")["step"].min()
    return reached.reindex(sorted(rows["seed"].unique())).astype(float).fillna(math.inf)


def score(rows, split: str, step: int | None = None, difficulties=None):
    """Each seed's score on a split, a Series over seeds: sum over count of all problems of the given difficulties.

    `step` None is the last evaluated step.
    """
    rows = rows[rows["split"] == split]
    rows = rows[rows["step"] == (rows["step"].max() if step is None else step)]
    if difficulties is not None:
        rows = rows[rows["difficulty"].isin(list(difficulties))]
    sums = rows.groupby("seed")[["exact", "problems"]].sum()
    return sums["exact"] / sums["problems"]


def highest(rows, split: str):
    """Each seed's highest score on a split over all evaluated steps, a Series over seeds."""
    sums = rows[rows["split"] == split].groupby(["seed", "step"])[["exact", "problems"]].sum()
    return (sums["exact"] / sums["problems"]).groupby("seed").max()


def document(
    experiment: str, scale: str, command: str, digests: dict[str, str], wall_s: float, claims: list[Claim]
) -> dict:
    """What claims.json holds."""
    return {
        "experiment": experiment,
        "scale": scale,
        "command": command,
        "digest": digests,
        "versions": records.versions(),
        "device": records.device(),
        "wall_s": round(wall_s, 1),
        "claims": [claim.as_dict() for claim in claims],
    }


def write(path: pathlib.Path, what: dict) -> None:
    records.write_atomically(path, json.dumps(what, indent=1) + "\n")


def table(what: dict) -> str:
    """The claims of a document as lines for a terminal."""
    lines = []
    for claim in what["claims"]:
        measured = claim["measured"]
        low, high = measured["range"] or (None, None)
        lines.append(f"[{claim['verdict']}] {claim['id']}: {claim['statement']}")
        lines.append(f"    published {claim['published']['value']}; threshold {claim['threshold']}")
        lines.append(
            f"    measured median {measured['median']}, range {low} to {high}, {len(measured['per_seed'])} seeds"
        )
    return "\n".join(lines)


def _finite(value: float) -> float | str | None:
    """JSON has no infinity and no NaN."""
    if math.isnan(value):
        return None
    return ">budget" if math.isinf(value) else round(float(value), 5)
