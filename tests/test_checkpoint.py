import shutil
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _tiny import TABLE, init, replace

from e2h.checkpoint import Checkpoints
from e2h.optimizers.grokfast_ma import GrokfastMA
from e2h.registry import Refused
from e2h.train import State

# When one array of a spoilt checkpoint cannot be read, Orbax leaves the reads of the others to a closed event loop.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STATE = State(
    params={"w": jnp.arange(6.0).reshape(2, 3) / 7, "block": {"b": jnp.ones(3, jnp.bfloat16)}},
    opt_state=(({"count": jnp.int32(3)}, ()), [jnp.array([True, False]), jnp.array(jnp.nan)]),
    step=jnp.int32(7),
)


def at(step):
    return STATE._replace(params=jax.tree.map(lambda a: a + a.dtype.type(step), STATE.params), step=jnp.int32(step))


def saved(directory, *steps):
    with Checkpoints(directory) as checkpoints:
        for step in steps:
            checkpoints.save(step, at(step))
    return directory


def restored(directory, template=STATE):
    with Checkpoints(directory) as checkpoints:
        return checkpoints.restore(template)


def test_what_comes_back_is_what_was_saved(tmp_path):
    state, skipped = restored(saved(tmp_path, 7, 13), jax.tree.map(jnp.zeros_like, STATE))
    chex.assert_trees_all_equal(state, at(13), strict=True)
    assert jax.tree.structure(state) == jax.tree.structure(STATE) and skipped == []
    assert not any(a.weak_type for a in jax.tree.leaves(state))
    assert jax.tree.map(np.asarray, state.params["w"]).tobytes() == np.asarray(at(13).params["w"]).tobytes()


def test_a_template_may_be_of_shapes_alone(tmp_path):
    state, _ = restored(saved(tmp_path, 7), jax.eval_shape(lambda: STATE))
    chex.assert_trees_all_equal(state, at(7), strict=True)
    with pytest.raises(Refused, match=r"step is int32\[\], not float32\[\]"):
        restored(tmp_path, jax.eval_shape(lambda: STATE._replace(step=jnp.float32(0))))


def test_the_state_of_a_real_optimizer_comes_back(tmp_path):
    state = init(replace(TABLE, optimizer=GrokfastMA(window=3)))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, state)
    again, _ = restored(tmp_path, state)
    chex.assert_trees_all_equal(again, state, strict=True)
    assert not any(jnp.issubdtype(a.dtype, jax.dtypes.prng_key) for a in jax.tree.leaves(again))


def test_any_step_can_be_saved_and_the_last_two_are_kept(tmp_path):
    saved(tmp_path, 0, 10, 37, 41)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["37", "41"]


def test_saving_a_step_again_keeps_what_is_there(tmp_path):
    saved(tmp_path, 5)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, at(6))
    assert restored(tmp_path)[0].step == 5


def test_a_state_is_copied_before_it_is_written(tmp_path, monkeypatch):
    host, given = {"a": np.zeros(3)}, []
    with Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(checkpoints.manager, "save", lambda step, args, force: given.append(args.item) or True)
        checkpoints.save(1, host)
    (written,) = given[0].values()
    np.testing.assert_array_equal(written, host["a"])
    assert not np.shares_memory(written, host["a"])


@pytest.mark.parametrize(
    "template, odd",
    [
        (STATE._replace(step=jnp.float32(0)), ".step is int32[], not float32[]"),
        (STATE._replace(params={**STATE.params, "w": jnp.zeros((3, 2))}), r"w'\] is float32[2, 3], not float32[3, 2]"),
        (STATE._replace(params={**STATE.params, "w": jnp.zeros((2, 3), jnp.float16)}), "not float16[2, 3]"),
        (STATE._replace(params={**STATE.params, "v": jnp.zeros(1)}), r"v'\] is nothing, not float32[1]"),
        (STATE._replace(params={"w": STATE.params["w"]}), "is bfloat16[3], not nothing"),
    ],
    ids=["step type", "shape", "type", "too little", "too much"],
)
def test_a_state_of_another_kind_is_refused_and_stays(tmp_path, template, odd):
    saved(tmp_path, 7, 13)
    with pytest.raises(Refused, match=odd.replace("[", r"\[").replace(r"\]", "]").replace("]", r"\]")):
        restored(tmp_path, template)
    assert restored(tmp_path)[0].step == 13


def cut(directory):
    for path in directory.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(directory):
    shutil.rmtree(directory)
    directory.mkdir()


def flip(directory):
    for path in (directory / "default/d").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)


def behead(directory):
    (directory / "default" / "_METADATA").unlink()


@pytest.mark.parametrize("spoil", [cut, empty, flip, behead])
def test_a_checkpoint_that_is_not_whole_is_skipped(tmp_path, spoil):
    saved(tmp_path, 7, 13)
    spoil(tmp_path / "13")
    state, skipped = restored(tmp_path)
    chex.assert_trees_all_equal(state, at(7), strict=True)
    assert len(skipped) == 1 and skipped[0].startswith("Skipped checkpoint 13: it is not whole")
    saved(tmp_path, 13)  # the run comes by again
    assert restored(tmp_path)[0].step == 13 and restored(tmp_path)[1] == []


def test_without_a_whole_checkpoint_there_is_none(tmp_path):
    assert restored(tmp_path) == (None, [])
    empty_one = saved(tmp_path, 4) / "4"
    empty(empty_one)
    state, skipped = restored(tmp_path)
    assert state is None and len(skipped) == 1


def test_what_a_killed_save_leaves_is_no_checkpoint(tmp_path):
    saved(tmp_path, 3)
    shutil.copytree(tmp_path / "3", tmp_path / "9.orbax-checkpoint-tmp")
    assert restored(tmp_path)[0].step == 3


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"Cannot keep checkpoints in .*file/checkpoints"):
        Checkpoints(tmp_path / "file" / "checkpoints")


def test_another_process_reads_it(tmp_path):
    read = """if True:
        import pathlib, sys
        import jax.numpy as jnp
        from e2h.checkpoint import Checkpoints
        with Checkpoints(pathlib.Path(sys.argv[1])) as checkpoints:
            print(checkpoints.restore({"a": jnp.zeros(2)}))
    """
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, {"a": jnp.array([1.5, 2.5])})
    found = subprocess.run([sys.executable, "-c", read, tmp_path], capture_output=True, text=True, check=True)
    assert found.stdout == "({'a': Array([1.5, 2.5], dtype=float32)}, [])\n"
