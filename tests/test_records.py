import contextlib
import errno
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
from _tiny import LENGTH, TABLE, replace

from e2h import config as configs
from e2h import records
from e2h.models.rnn import RNN
from e2h.optimizers.adamw import AdamW
from e2h.optimizers.sgd import SGD
from e2h.records import Records
from e2h.registry import Refused
from e2h.run import run
from e2h.tasks.modular import Modular

ROOT = pathlib.Path(__file__).parent.parent


def row(seed, step, **more):
    return {"seed": seed, "step": step, "split": "test", "difficulty": 1, "problems": 4.0, "exact": 2.0} | more


def kept(directory, step, *rows):
    """The directory after a session that took up a run at `step` and added rows."""
    book = Records(directory, TABLE)
    book.resume(step)
    book.append(list(rows))
    book.close()
    return directory


def files(directory):
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir())}


@pytest.mark.parametrize(
    "changes, drift",
    [
        (dict(batch_size=4), "batch_size=5, not 4"),
        (dict(first_seed=3), "first_seed=0, not 3"),
        (dict(optimizer=AdamW(learning_rate=0.02)), "optimizer.learning_rate=0.01, not 0.02"),
        (dict(optimizer=SGD()), "optimizer=adamw, not sgd"),
        (dict(task=Modular(p=7)), "task.p=5, not 7"),
        (dict(task=LENGTH.task, split=LENGTH.split, layout=LENGTH.layout, model=RNN()), "task=modular, not parity"),
    ],
)
def test_a_directory_of_another_config_is_refused_and_left_alone(tmp_path, changes, drift):
    before = files(kept(tmp_path, -1))
    with pytest.raises(Refused) as refusal:
        Records(tmp_path, replace(TABLE, **changes))
    assert f"{tmp_path} holds a run with {drift};" in str(refusal.value)
    assert files(tmp_path) == before


def test_how_a_run_is_carried_out_may_change(tmp_path):
    kept(tmp_path, -1)
    changed = replace(TABLE, steps=99, record_every=1, mapping="pmap", devices=2, measures=("weight_norm",))
    Records(tmp_path, changed).close()
    stored = json.loads((tmp_path / "config.json").read_text())
    assert configs.from_dict(stored["config"]) == changed
    assert stored["identity"] == json.loads(json.dumps(configs.identity(TABLE)))


def test_the_budget_is_part_of_a_run_whose_schedule_uses_it(tmp_path):
    config = replace(TABLE, optimizer=AdamW(schedule="cosine"))
    Records(tmp_path, config).close()
    with pytest.raises(Refused, match="steps=20, not 30"):
        Records(tmp_path, replace(config, steps=30))


def test_every_session_is_stamped(tmp_path):
    for seconds in (1.5, 2.25):
        Records(tmp_path, TABLE).close()
        records.add_wall_seconds(tmp_path, seconds)
    first, second = json.loads((tmp_path / "env.json").read_text())
    assert records.wall_seconds(tmp_path) == 3.75 and (first["wall_s"], second["wall_s"]) == (1.5, 2.25)
    assert first["versions"] == records.versions() and {"jax", "flax", "orbax-checkpoint"} <= set(first["versions"])
    for name in ("time", "python", "device", "precision", "threefry_partitionable", "commit"):
        assert first[name] not in ("", None), name


@pytest.mark.parametrize("step, left", [(-1, []), (0, [0]), (4, [0]), (5, [0, 5]), (99, [0, 5, 10])])
def test_taking_up_a_run_drops_the_rows_after_its_checkpoint(tmp_path, step, left):
    kept(tmp_path, -1, *(row(0, s) for s in (0, 5, 10)))
    found = records.read(kept(tmp_path, step))
    assert (list(found["step"]) if len(found) else []) == left


def test_a_last_row_that_was_cut_off_is_dropped(tmp_path):
    kept(tmp_path, -1, row(0, 0), row(0, 5))
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text()[:-3])
    assert list(records.read(tmp_path)["step"]) == [0]
    assert list(records.read(kept(tmp_path, 5, row(0, 10)))["step"]) == [0, 10]


def test_rows_are_json_without_nan_or_infinity(tmp_path):
    kept(
        tmp_path, -1, row(0, 0, loss=math.inf), row(1, 0, loss=-math.inf), row(2, 0, loss=math.nan), row(3, 0, loss=1.5)
    )
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in lines] == [None, None, None, 1.5]
    assert list(records.read(tmp_path)["loss"].isna()) == [True, True, True, False]


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"Cannot write to .*file/run: Not a directory"):
        Records(tmp_path / "file" / "run", TABLE)


def test_a_directory_is_open_to_one_session_at_a_time(tmp_path):
    with contextlib.closing(Records(tmp_path, TABLE)) as book:
        book.resume(-1)
        book.append([row(0, 0)])
        before = files(tmp_path)
        with pytest.raises(Refused, match="Another session is at work in") as refusal:
            Records(tmp_path, TABLE)
        assert str(tmp_path) in str(refusal.value) and files(tmp_path) == before
        book.append([row(0, 5)])
    assert list(records.read(tmp_path)["step"]) == [0, 5]
    with pytest.raises(Refused, match="holds a run with"):
        Records(tmp_path, LENGTH)
    Records(tmp_path, TABLE).close()  # neither the session nor the refusal left it locked


def test_a_killed_process_lets_go_of_its_directory(tmp_path):
    hold = "import sys, _tiny; from e2h import records; from pathlib import Path; "
    hold += "book = records.Records(Path(sys.argv[1]), _tiny.TABLE); print('open', flush=True); sys.stdin.read()"
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", hold, tmp_path], env=os.environ | path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(Refused, match="Another session is at work in"):
            Records(tmp_path, TABLE)
        process.kill()
    Records(tmp_path, TABLE).close()


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("lock", [None, "flock"], ids=["system", "file system"])
def test_where_nothing_can_be_locked_runs_go_on(tmp_path, monkeypatch, lock):
    monkeypatch.setattr(*(records.fcntl, lock, no_locks) if lock else (records, "fcntl", None))
    for _ in range(2):
        kept(tmp_path, -1, row(0, 0))
    assert list(records.read(tmp_path)["step"]) == [0]


def test_a_text_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    records.write_atomically(tmp_path / "a", "old")
    monkeypatch.setattr(records.os, "fsync", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        records.write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize(
    "name, content, told",
    [
        ("rows.jsonl", "", "ends before the checkpoint of step 20"),
        ("rows.jsonl", '{"step": 0}\n{"garb\n{"step": 20}\n', "line 2, is damaged"),
        ("config.json", "{", "config.json is damaged"),
        ("config.json", "{}", "config.json is damaged"),
    ],
)
def test_a_damaged_file_is_named_not_built_upon(tmp_path, name, content, told):
    run(TABLE, tmp_path, progress=False)
    (tmp_path / name).write_text(content)
    with pytest.raises(Refused, match=told):
        run(TABLE, tmp_path, progress=False)


def test_a_damaged_stamp_is_begun_anew(tmp_path):
    run(TABLE, tmp_path, progress=False)
    (tmp_path / "env.json").write_text("[")
    run(TABLE, tmp_path, progress=False)
    assert len(json.loads((tmp_path / "env.json").read_text())) == 1
