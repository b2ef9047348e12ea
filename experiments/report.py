"""Rebuilds experiments/results/README.md, the table of all claims: `python -m experiments.report`."""

import json
import pathlib

from e2h import records
from experiments._main import RESULTS, names

HEAD = """# Results

Every claim of every committed outcome, rebuilt by `python -m experiments.report`. Measured: median (range; seeds).
"""


def rows(results: pathlib.Path = RESULTS) -> list[str]:
    """One line of a Markdown table for each claim."""
    lines = []
    for path in sorted(results.glob("*/*/claims.json")):
        outcome = json.loads(path.read_text())
        for claim in outcome["claims"]:
            lines.append(_line(outcome, claim))
    return lines


def not_run(results: pathlib.Path = RESULTS) -> str:
    """A sentence on the experiments that have no committed outcome, or nothing."""
    missing = [name for name in names() if not list(results.glob(f"{name}/*/claims.json"))]
    return f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""


def _line(outcome: dict, claim: dict) -> str:
    measured, published = claim["measured"], claim["published"]
    low, high = measured["range"] or ("-", "-")
    cells = (
        f"[{outcome['experiment']}]({outcome['experiment']}/{outcome['scale']}/figure.png)",
        claim["card"],
        claim["statement"],
        f"{published['value']} ({published['source']})",
        claim["threshold"],
        f"{measured['median']} ({low} to {high}; {len(measured['per_seed'])})",
        f"**{claim['verdict']}**",
        f"`{outcome['command']}`",
        f"{outcome['wall_s']:.0f} s, {outcome['device']}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    columns = ("experiment", "paper", "claim", "published", "threshold", "measured", "verdict", "command", "wall time")
    head = "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|\n"
    records.write_atomically(RESULTS / "README.md", HEAD + "\n" + head + "\n".join(rows()) + "\n" + not_run())
    print(f"Written: {RESULTS / 'README.md'}")


if __name__ == "__main__":
    main()
