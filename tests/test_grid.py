"""A grid trains every cell as it would train alone."""

import chex
import jax
import numpy as np
import pytest
from _tiny import TABLE, replace

from e2h import config, grid, parallel
from e2h.config import Config
from e2h.registry import Refused
from e2h.run import Broken, run

AXES = {
    "optimizer.learning_rate": "0.01:0.03",
    "optimizer.weight_decay": "0:2",
    "init_scale": "1:0.5",
    "split.train_fraction": "0.4:0.6",
    "split.corrupted": "0.25:0.5",
}


def with_grid(*names, base=TABLE, **changes):
    return replace(base, grid=tuple(f"{name}={AXES[name]}" for name in names), **changes)


def states(chosen: Config, steps: int = 12):
    start = parallel.init(chosen)
    state, totals = parallel.chunk(chosen)(parallel.prepare(chosen), parallel.members(chosen), start, steps)
    return jax.device_get((state, totals))


def test_cells_are_all_combinations_in_order():
    chosen = replace(TABLE, grid=("optimizer.weight_decay=0:1:5", "init_scale=1:2"), seeds=2)
    values = [(c["optimizer.weight_decay"], c["init_scale"]) for c in grid.cells(chosen)]
    assert values == [(0, 1), (0, 2), (1, 1), (1, 2), (5, 1), (5, 2)]
    assert [seed for seed, _ in grid.members(chosen)] == [0, 1] * 6
    assert grid.columns(chosen)["init_scale"].tolist() == [1, 1, 2, 2] * 3
    assert grid.at(chosen, grid.cells(chosen)[3]) == replace(
        TABLE, init_scale=2.0, optimizer=replace(TABLE.optimizer, weight_decay=1.0), seeds=2
    )


def test_without_a_grid_there_is_one_plain_cell_and_the_digest_is_what_it_was():
    assert grid.cells(TABLE) == ({},)
    identity = config.identity(TABLE)
    assert not {"grid", "init_scale"} & identity.keys() and "corrupted" not in identity["split"]
    assert config.digest(with_grid("init_scale")) != config.digest(TABLE)
    assert config.identity(replace(TABLE, init_scale=2.0))["init_scale"] == 2.0


@pytest.mark.parametrize("batch_size", [3, 10**6])
def test_a_cell_trains_as_it_would_alone(batch_size):
    base = replace(TABLE, batch_size=batch_size, split=replace(TABLE.split, corrupted=0.5), seeds=1)
    chosen = with_grid(*AXES, base=base, seeds_per_program=32)
    together, counts = states(chosen)
    assert len(grid.cells(chosen)) == 32
    for i in (6, 25):  # every axis at either end
        alone, alone_counts = states(grid.at(chosen, grid.cells(chosen)[i]))
        mine = jax.tree.map(lambda a, i=i: a[i : i + 1], (together.params, together.opt_state, counts))
        chex.assert_trees_all_close(mine, (alone.params, alone.opt_state, alone_counts), rtol=2e-5, atol=1e-6)


def test_cells_with_other_fractions_are_scored_on_their_own_problems():
    chosen = with_grid("split.train_fraction", test_size=4)
    state, _ = states(chosen, 1)
    for part in chosen.split.parts:
        cells = parallel.sweep(chosen, part, 1)(parallel.prepare(chosen), parallel.members(chosen), state.params, (1,))
        counts = [round(f * 25) if part == "train" else 25 - round(f * 25) for f in (0.4, 0.6)]
        by_orbit = np.repeat(counts, chosen.seeds)
        assert np.abs(np.asarray(cells.score.problems)[:, 0] - by_orbit).max() <= 2


def test_rows_say_which_cell_they_are_of(tmp_path):
    rows = run(with_grid("optimizer.weight_decay", "init_scale", steps=5), tmp_path, progress=False)
    assert rows.groupby(["optimizer.weight_decay", "init_scale", "seed", "step", "split"]).size().max() == 1
    assert set(rows["optimizer.weight_decay"]) == {0, 2} and set(rows["init_scale"]) == {1, 0.5}
    again = run(with_grid("optimizer.weight_decay", "init_scale", steps=10), tmp_path, progress=False)
    assert len(again) > len(rows) and set(again["step"]) == {0, 5, 10}


def test_a_broken_member_stops_the_run_or_only_answers_wrong(tmp_path):
    wild = replace(TABLE, grid=("optimizer.learning_rate=0.01:1e38",), steps=10)
    with pytest.raises(Broken, match=r"optimizer.learning_rate=1e\+38 at step"):
        run(wild, tmp_path / "halt", progress=False)
    rows = run(replace(wild, halt=False), tmp_path / "on", progress=False)
    last = rows[(rows["step"] == 10) & (rows["split"] == "train")].set_index("optimizer.learning_rate")
    assert (last.loc[1e38, "exact"] == 0).all() and last.loc[1e38, "loss"].isna().all()
    assert last.loc[0.01, "loss"].notna().all()
    with pytest.raises(Broken, match="at step 10"):  # the same directory, finished, is not taken for a sound run
        run(wild, tmp_path / "on", progress=False)


@pytest.mark.parametrize(
    "flag, words",
    [
        ("nonsense=1:2", "there is no setting 'nonsense'"),
        ("optimizer.nonsense=1:2", "there is no setting 'optimizer.nonsense'"),
        ("optimiser.learning_rate=1:2", "there is no setting 'optimiser.learning_rate'"),
        ("optimizer.learning_rat=1:2", "did you mean 'learning_rate'"),
        ("seeds=1:2", "seeds is built into the program"),
        ("optimizer.b1=0.8:0.9", "optimizer.b1 is built into the program"),
        ("optimizer.learning_rate=", "takes setting=value:value"),
        ("optimizer.learning_rate", "takes setting=value:value"),
        ("optimizer.learning_rate=a:b", "takes setting=value:value"),
        ("optimizer.learning_rate=1:1", "names a value twice"),
        ("init_scale=1:2,init_scale=3:4", "names init_scale twice"),
        ("optimizer.learning_rate=-1:1", "out of range"),
        ("split.train_fraction=0.5:1", "leaves no test problem"),
        ("split.corrupted=0:0.5", "different parts"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_in_one_sentence(flag, words):
    with pytest.raises(Refused) as refusal:
        config.parse(["", f"--grid={flag}"], TABLE).check()
    assert words in str(refusal.value) and str(refusal.value).endswith((".", "?"))
