"""A run that is killed, once or again and again, ends as one that never was."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import _tiny
import chex
import pytest

from e2h import batches, config, records
from e2h.checkpoint import Checkpoints
from e2h.records import Records
from e2h.run import AGAIN, run

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = (
    "--task=modular --task.p=5 --model.hidden=8 --batch_size=5 --seeds=2 --test_size=32 --optimizer.learning_rate=0.01 "
    "--steps=510 --record_every=1 --evaluate_every=30 --checkpoint_every=15"
).split()


class Session:
    """A process that trains in `directory`; killed when the block is left."""

    def __init__(self, directory):
        self.directory = directory
        command = [sys.executable, "-m", "experiments.train", *FLAGS, f"--runs={directory}", f"--results={directory}"]
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "JAX_COMPILATION_CACHE_DIR": str(directory.parent / "compiled"),  # once for all sessions
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self.process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def wait_for(self, condition) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def end(self) -> int:
        self.stderr = self.process.communicate(timeout=120)[1]
        return self.process.returncode


def run_directory(directory) -> pathlib.Path:
    return next(directory.glob("train/*/config.json")).parent


def last_step(directory) -> int:
    files = list(directory.glob("train/*/rows.jsonl"))
    lines = files[0].read_text().splitlines(keepends=True) if files else []
    whole = [line for line in lines if line.endswith("\n")]
    return json.loads(whole[-1])["step"] if whole else -1


def outcome(where):
    """Of a run directory the text of the rows, the kept steps, and the last state."""
    template = _tiny.init(config.from_dict(json.loads((where / "config.json").read_text())["config"]))
    with Checkpoints(where / "checkpoints") as checkpoints:
        return (
            (where / "rows.jsonl").read_text(),
            sorted(checkpoints.manager.all_steps()),
            checkpoints.restore(template),
        )


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_bit_equal_to_one_that_never_was(tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    for directory in (straight, killed):
        directory.mkdir()
    with Session(straight) as session:
        assert session.end() == 0, session.stderr
    with Session(killed) as session:  # before there is a checkpoint
        session.wait_for(lambda: list(killed.glob("train/*/env.json")))
        time.sleep(random.uniform(0, 2))
    for kill in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        step = max(last_step(killed), 0) + random.randint(5, 40)
        with Session(killed) as session:
            session.wait_for(lambda step=step: last_step(killed) >= step)
            session.process.send_signal(kill)
            code = session.end()
            assert code == (AGAIN if kill == signal.SIGTERM else -signal.SIGKILL), session.stderr
    saved = int(re.search(r"^Stopped: SIGTERM: saved at step (\d+);", session.stderr, re.MULTILINE)[1])
    assert outcome(run_directory(killed))[1][-1] == saved == last_step(killed) < 510
    with Session(killed) as session:
        assert session.end() == 0, session.stderr
    rows, steps, (state, _) = outcome(run_directory(killed))
    wanted_rows, wanted_steps, (wanted, _) = outcome(run_directory(straight))
    assert rows == wanted_rows and steps[-1] == wanted_steps[-1] == 510  # the one before may be of the SIGTERM
    chex.assert_trees_all_equal(state, wanted, strict=True)
    assert len(json.loads((run_directory(killed) / "env.json").read_text())) == 5
    frame = records.read(run_directory(killed))
    assert not frame.duplicated(["seed", "step", "split", "difficulty"]).any()
    assert set(frame[frame["split"] == "online"]["step"]) == set(range(1, 511))


def test_100_steps_equal_37_steps_a_kill_and_63_more(tmp_path, monkeypatch):
    """A copy of the disk is all that SIGKILL would leave, and needs no second process that compiles."""
    lengths = _tiny.replace(_tiny.LENGTH, buckets=3, steps=100, record_every=1, evaluate_every=50, checkpoint_every=37)
    straight, killed, append = tmp_path / "straight", tmp_path / "killed", Records.append
    moment = random.Random(37).randint(38, 73)

    def append_and_copy(book, rows):
        append(book, rows)
        if rows[0]["step"] == moment and not killed.exists():
            while not (straight / "checkpoints" / "37").exists():  # it is written in the background
                time.sleep(0.01)
            shutil.copytree(straight, killed)

    monkeypatch.setattr(Records, "append", append_and_copy)
    _tiny.start_without_compiling(monkeypatch)
    run(lengths, straight, progress=False)
    assert len(batches.capacities(lengths, "train")) == 3 and outcome(killed)[2][0].step == 37
    assert set(records.read(killed)["step"]) == set(range(moment + 1))
    run(lengths, killed, progress=False)
    (rows, _, (state, _)), (wanted_rows, _, (wanted, _)) = outcome(killed), outcome(straight)
    assert rows == wanted_rows and wanted.step == 100
    chex.assert_trees_all_equal(state, wanted, strict=True)
