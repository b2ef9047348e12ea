"""One file adds one part: the task and the position that CONTRIBUTING.md shows, in a copy of the checkout."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout with these files more, and nothing else changed."""
    root = tmp_path_factory.mktemp("checkout")
    leave_out = shutil.ignore_patterns("__pycache__", "results")
    for name in ("e2h", "experiments", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=leave_out)
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in ("tasks/majority.py", "positions/scaled.py"):
        shown = re.search(
            rf"`e2h/{re.escape(name)}`.*?```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
        )
        (root / "e2h" / name).write_text(shown[1])
    return root


def python(copy, *arguments):
    quick = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
    environment = os.environ | {"PYTHONPATH": str(copy), "XLA_FLAGS": quick}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_new_task_trains_and_is_evaluated(copy):
    flags = "--model=rnn --model.width=4 --split.train_max=3 --split.test_max=4 --buckets=1 --seeds=2 --batch_size=4"
    flags += " --test_size=8 --steps=2 --record_every=1 --evaluate_every=1 --checkpoint_every=1 --layout=query"
    python(copy, "experiments.train", "--task=majority", *flags.split(), "--runs=runs")
    (rows_file,) = copy.glob("runs/train/*/rows.jsonl")
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    found = {(row["split"], row["difficulty"], row["step"]) for row in rows if row["problems"]}
    assert {("test", 3, 0), ("test", 3, 2), ("test_length", 4, 0), ("test_length", 4, 2), ("online", 0, 1)} <= found
    assert len(list(copy.glob("runs/train/*/figure.png"))) == 1


def test_a_new_task_is_offered_by_help(copy):
    listed = python(copy, "experiments.train", "--task=majority", "--help")
    assert re.search(r"--task=majority\n.*one of .*\bmajority\b.*\bparity\b", listed)


def test_a_new_task_is_held_to_the_conformance_suite(copy):
    suites = ("tests/test_tasks.py", "tests/test_splits.py", "tests/test_layouts.py", "tests/test_export.py")
    told = python(copy, "pytest", "-q", "-p", "no:cacheprovider", *suites, "-k", "majority")
    passed = re.search(r"(\d+) passed", told)
    assert passed and int(passed[1]) >= 10 and "failed" not in told and "skipped" not in told, told[-500:]


def test_a_new_position_is_held_to_the_conformance_suite(copy):
    told = python(copy, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_positions.py", "-k", "scaled")
    passed = re.search(r"(\d+) passed", told)
    assert passed and int(passed[1]) >= 2 and "failed" not in told, told[-500:]


def test_what_contributing_shows_passes_the_linter(copy):
    python(copy, "ruff", "check", "e2h/tasks/majority.py", "e2h/positions/scaled.py")
    python(copy, "ruff", "format", "--check", "e2h/tasks/majority.py", "e2h/positions/scaled.py")
