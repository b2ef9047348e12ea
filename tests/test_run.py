import contextlib
import math
import os
import signal

import _tiny
import chex
import numpy as np
import pandas as pd
import pytest
from _tiny import LENGTH, TABLE, replace, trained

from e2h import records, run
from e2h.checkpoint import Checkpoints
from e2h.optimizers.sgd import SGD
from e2h.registry import Refused
from e2h.run import Broken, Stopped, _Loop
from e2h.tasks.modular import Modular

KEY = ["seed", "step", "split", "difficulty"]
LOSING = replace(TABLE, optimizer=SGD(learning_rate=1e8), record_every=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    _tiny.start_without_compiling(monkeypatch)


def finished(directory, config=TABLE):
    """The rows and the last state of a run after a session of it."""
    rows = run.run(config, directory, progress=False)
    return rows, last(directory, config)


def last(directory, config=TABLE):
    with Checkpoints(directory / "checkpoints") as checkpoints:
        return checkpoints.restore(_tiny.init(config))[0]


def stored(directory):
    return sorted(int(p.name) for p in (directory / "checkpoints").iterdir())


def at_step(monkeypatch, step, act):
    """Does something right after the rows of a step have been recorded, once."""
    record, acted = _Loop.record, []

    def recording(self, now, totals):
        record(self, now, totals)
        if now == step and not acted:
            acted.append(now)
            act()

    monkeypatch.setattr(_Loop, "record", recording)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        _tiny.start_without_compiling(patch)
        return finished(tmp_path_factory.mktemp("straight"))


def assert_same_run(found, straight):
    pd.testing.assert_frame_equal(found[0], straight[0])
    chex.assert_trees_all_equal(found[1], straight[1], strict=True)


def test_rows_hold_every_seed_step_and_part_once(straight):
    rows, state = straight
    evaluated = {(s, t, p, 1) for s in (0, 1) for t in (0, 10, 20) for p in ("train", "test")}
    online = {(s, t, "online", 0) for s in (0, 1) for t in (5, 10, 15, 20)}
    assert sorted(map(tuple, rows[KEY].to_numpy(object))) == sorted(evaluated | online)
    assert state.step == 20
    chex.assert_trees_all_equal(state, trained(TABLE, 20)[0])


def test_rows_hold_sums_counts_and_what_they_are_measured_against(straight):
    tested = straight[0][straight[0]["split"] == "test"]
    assert (tested["chance"] == TABLE.task.chance(1)).all() and (tested["distinct"] == TABLE.task.size).all()
    assert (tested["exact"] <= tested["problems"]).all() and (tested["commonest"] <= tested["reads"]).all()
    assert {"right", "loss", "length", "computation", "representation"} <= set(tested.columns)
    online = straight[0][straight[0]["split"] == "online"]
    assert (online["problems"] == 5 * TABLE.batch_size).all() and online["chance"].isna().all()


def test_measures_are_columns_of_their_own_rows(tmp_path):
    rows, _ = finished(tmp_path, replace(TABLE, measures=("weight_norm", "zero_loss"), steps=10))
    measured = rows[rows["split"] == "measured"]
    assert sorted(zip(measured["step"], measured["seed"], strict=True)) == [(0, 0), (0, 1), (10, 0), (10, 1)]
    assert (measured["weight_norm"] > 0).all() and (measured["weight_norm_count"] == 1).all()
    assert (measured["zero_loss_count"] == TABLE.batch_size).all() and (measured["problems"] == 0).all()


def test_a_budget_off_the_grid_ends_with_a_checkpoint_and_rows_at_its_last_step(tmp_path):
    rows, state = finished(tmp_path, replace(TABLE, steps=107, record_every=10))
    assert stored(tmp_path) == [100, 107] and state.step == 107
    assert set(rows[rows["split"] == "online"]["step"]) == {*range(10, 101, 10), 107}
    assert set(rows[rows["split"] == "test"]["step"]) == {*range(0, 101, 10), 107}
    rows, _ = finished(tmp_path, replace(TABLE, steps=120, record_every=10))  # and goes on along the grid
    assert set(rows[rows["split"] == "online"]["step"]) == {*range(10, 101, 10), 107, 110, 120}


def test_a_longer_budget_continues_the_run(tmp_path, straight, monkeypatch):
    finished(tmp_path, replace(TABLE, steps=10))
    evaluated, evaluate = [], _Loop.evaluate
    monkeypatch.setattr(_Loop, "evaluate", lambda self, *args: (evaluated.append(args[0]), evaluate(self, *args)))
    assert_same_run(finished(tmp_path), straight)
    assert evaluated == [20]


def test_a_finished_run_is_not_trained_again(tmp_path, straight, monkeypatch):
    finished(tmp_path)
    monkeypatch.setattr(_Loop, "record", None)
    assert_same_run(finished(tmp_path), straight)


def test_sigterm_saves_and_the_same_call_continues(tmp_path, straight, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    at_step(monkeypatch, 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="saved at step 5; the same command continues"):
        run.run(TABLE, tmp_path, progress=False)
    assert stored(tmp_path) == [0, 5] and signal.getsignal(signal.SIGTERM) is before
    assert_same_run(finished(tmp_path), straight)


def test_sigterm_in_the_last_chunk_lets_the_run_end(tmp_path, straight, monkeypatch):
    at_step(monkeypatch, 20, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert_same_run(finished(tmp_path), straight)


@pytest.mark.parametrize("quiet_calls", range(4))
def test_a_stop_is_saved_whenever_the_signal_comes(tmp_path, monkeypatch, quiet_calls):
    @contextlib.contextmanager
    def late():
        calls = iter([False] * quiet_calls)
        yield lambda: next(calls, True)

    monkeypatch.setattr(run, "_sigterm", late)
    config = replace(TABLE, checkpoint_every=20)
    with pytest.raises(Stopped) as stop:
        run.run(replace(config, steps=40), tmp_path, progress=False)
    assert f"saved at step {stored(tmp_path)[-1]};" in str(stop.value)


@pytest.mark.parametrize("step", [5, 15])
def test_a_crash_leaves_neither_gap_nor_duplicate(tmp_path, straight, monkeypatch, step):
    at_step(monkeypatch, step, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.run(TABLE, tmp_path, progress=False)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"seed": 0, "step": 2')
    assert_same_run(finished(tmp_path), straight)


def test_a_checkpoint_that_is_not_whole_is_named_and_the_run_still_ends_alike(tmp_path, straight, capsys):
    finished(tmp_path)
    newest = tmp_path / "checkpoints" / "20"
    for path in [p for p in newest.rglob("*") if p.is_file()]:
        path.unlink()
    rows = run.run(TABLE, tmp_path)
    assert "Skipped checkpoint 20: it is not whole" in capsys.readouterr().out
    assert_same_run((rows, last(tmp_path)), straight)


def test_rows_are_on_disk_before_their_checkpoint(tmp_path, monkeypatch):
    save, seen = Checkpoints.save, []

    def saving(self, step, state):
        seen.append((step, sorted(set(records.read(tmp_path)["step"]))))
        save(self, step, state)

    monkeypatch.setattr(Checkpoints, "save", saving)
    run.run(TABLE, tmp_path, progress=False)
    assert seen == [(0, [0]), (10, [0, 5, 10]), (20, [0, 5, 10, 15, 20])]


@pytest.mark.parametrize("every", [1, 5])
def test_what_is_not_finite_stops_the_run_and_is_named(tmp_path, every):
    config, broken_at = replace(LOSING, record_every=every), trained(LOSING, 20)[1][0].broken_at
    with pytest.raises(Broken) as stop:
        run.run(config, tmp_path, progress=False)
    step = int(broken_at.min()) + 1
    assert 1 < step < 5 and f"seed {int(broken_at.argmin())} at step {step}. " in str(stop.value)
    assert f"Last good checkpoint: step 0 in {tmp_path}/checkpoints" in str(stop.value)
    assert set(records.read(tmp_path)["step"]) == set(range(0, step, every))
    assert last(tmp_path, LOSING).step == 0


def test_a_checkpoint_is_never_of_a_state_that_is_not_finite(tmp_path, monkeypatch):
    with pytest.raises(Broken):
        run.run(replace(LOSING, evaluate_every=1, checkpoint_every=1), tmp_path, progress=False)
    assert all(np.isfinite(w).all() for w in last(tmp_path, LOSING).params.values() if hasattr(w, "dtype"))


def test_another_config_in_the_directory_is_refused_and_nothing_changes(tmp_path):
    finished(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    with pytest.raises(Refused, match=r"holds a run with task\.p=5, not 7"):
        run.run(replace(TABLE, task=Modular(p=7)), tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_config_that_does_not_fit_together_leaves_nothing(tmp_path):
    with pytest.raises(Refused, match="evaluate_every=7 is not a multiple"):
        run.run(replace(TABLE, evaluate_every=7), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_sessions_and_their_seconds_are_noted_even_when_stopped(tmp_path, monkeypatch):
    at_step(monkeypatch, 5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        run.run(TABLE, tmp_path, progress=False)
    first = records.wall_seconds(tmp_path)
    finished(tmp_path)
    assert 0 < first < records.wall_seconds(tmp_path)


def test_live_rows_are_said_and_silence_is_kept(tmp_path, capsys):
    run.run(TABLE, tmp_path / "a", label="the arm")
    said = capsys.readouterr().out
    assert "the arm step     20  train " in said and "test " in said
    run.run(TABLE, tmp_path / "b", progress=False)
    assert capsys.readouterr() == ("", "")


def test_lengths_whose_problems_no_float_can_count_are_recorded(tmp_path):
    loop = _Loop.__new__(_Loop)
    loop.config = LENGTH
    row = loop.row((0, {}), 0, "test_length", 5000, None, {})
    assert row["distinct"] == np.inf and loop.row((0, {}), 0, "test_length", 10, None, {})["distinct"] == 1024


def test_a_run_ends_once_every_member_has_held_the_score(tmp_path):
    easy = replace(TABLE, until=0.0, steps=20)  # reached at once: at steps 0, 10 and the last
    rows = run.run(replace(easy, evaluate_every=5), tmp_path / "early", progress=False)
    assert set(rows["step"]) == {0, 5, 10}
    again = run.run(replace(easy, evaluate_every=5), tmp_path / "early", progress=False)
    pd.testing.assert_frame_equal(rows, again)
    on = run.run(replace(easy, evaluate_every=5, until=math.inf), tmp_path / "early", progress=False)
    assert set(on["step"]) == {0, 5, 10, 15, 20}


def test_one_member_below_the_score_keeps_all_going():
    loop = _Loop.__new__(_Loop)
    loop.config = replace(TABLE, until=0.9)
    rows = [{"seed": s, "split": "test", "problems": 10.0, "exact": e} for s, e in ((0, 10.0), (1, 9.0))]
    loop.count_arrival(rows)
    assert loop.arrived == 1
    loop.count_arrival([rows[0], rows[1] | {"exact": 8.0}])
    assert loop.arrived == 0
    loop.count_arrival([row | {"split": "train"} for row in rows])
    assert loop.arrived == 0


def test_early_on_every_record_has_an_evaluation(tmp_path):
    rows = run.run(replace(TABLE, record_every=2, evaluate_early=6), tmp_path / "run", progress=False)
    assert sorted(set(rows[rows["split"] == "test"]["step"])) == [0, 2, 4, 6, 10, 20]
    assert sorted(set(rows[rows["split"] == "online"]["step"])) == list(range(2, 21, 2))
