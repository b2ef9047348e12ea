"""Training on an exported dataset is training on the split it was exported from, bit for bit."""

import json

import _tiny
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from _instances import quick_jit
from _tiny import LENGTH, TABLE, replace

from e2h import batches, config, dataset, export, registry, run
from e2h.config import Config
from e2h.curricula.growing import Growing
from e2h.export import Options
from e2h.layouts.causal import Causal
from e2h.layouts.tagging import Tagging
from e2h.models.transformer import Transformer
from e2h.registry import Refused
from e2h.splits import TRAIN
from e2h.splits.complexity import Complexity
from e2h.splits.exported import Exported
from e2h.splits.fraction import Fraction
from e2h.splits.length import Length
from e2h.tasks.addition import Addition
from e2h.tasks.modular import Modular
from e2h.tasks.pointer_chasing import PointerChasing

STEPS = 20
SHARED = Fraction(shared=True, corrupted=0.5)
SMALL = dict(batch_size=8, test_size=16, buckets=2)
CONFIGS = {
    "table": TABLE,
    "corrupted": replace(TABLE, split=replace(SHARED, batch_fraction=0.4), test_size=5),
    "length": LENGTH,
    "growing": replace(LENGTH, curriculum=Growing(every=3), split=replace(LENGTH.split, held_out=0.4)),
    "causal": Config(
        task=Addition(reverse=True),
        split=Length(train_max=2, test_max=3),
        layout=Causal(),
        model=Transformer(causal=True),
        **SMALL,
    ),
    "two channels": Config(
        task=PointerChasing(names=7, flags=3),
        split=Complexity(train_max=2, test_max=3),
        layout=Tagging(),
        model=Transformer(causal=False),
        **SMALL,
    ),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    _tiny.start_without_compiling(monkeypatch)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function from a config (by name) and a form to that config on the dataset of STEPS of its steps."""
    made = {}

    def on(name, form="jsonl") -> Config:
        cfg, directory = CONFIGS[name], tmp_path_factory.getbasetemp() / f"{name}-{form}"
        if (name, form) not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jax, "jit", quick_jit)
                export.export(cfg, Options(out=str(directory), format=form, examples=STEPS * cfg.batch_size))
            made[name, form] = replace(cfg, split=Exported(path=str(directory)))
        return made[name, form]

    return on


def rows_of(cfg, directory):
    return run.run(cfg, directory, progress=False)


@pytest.mark.parametrize("name, form", [("table", "jsonl"), ("length", "tfds")])
def test_a_run_on_the_dataset_has_the_rows_of_a_run_on_its_split(exported, tmp_path, name, form):
    alone = dict(seeds=1, steps=STEPS)
    straight = rows_of(replace(CONFIGS[name], **alone), tmp_path / "split")
    found = rows_of(replace(exported(name, form), **alone), tmp_path / "dataset")
    pd.testing.assert_frame_equal(found, straight, check_exact=True)
    assert (tmp_path / "split" / "rows.jsonl").read_text() == (tmp_path / "dataset" / "rows.jsonl").read_text()
    assert len(set(straight[straight["split"] == "online"]["loss"])) > 3


def test_all_seeds_get_the_problems_of_the_exported_one(exported, tmp_path):
    straight = rows_of(CONFIGS["corrupted"], tmp_path / "split")  # `shared`: so do those of its split
    assert set(straight["split"]) >= {"train_clean", "train_corrupted"}
    ours = replace(CONFIGS["corrupted"], split=exported("corrupted").split)
    found = rows_of(ours, tmp_path / "dataset")
    one = found["seed"] == 0
    pd.testing.assert_frame_equal(found[one], straight[straight["seed"] == 0], check_exact=True)
    tested = found["split"] == "test"
    assert (found[tested & one]["commonest"].to_numpy() == found[tested & ~one]["commonest"].to_numpy()).all()


def meets(cfg):
    """Functions from a training step, and from a part and a difficulty, to the Batch of seed 0."""
    data = jax.jit(lambda: cfg.split.prepare(cfg.task, 0))()
    sizes = {part: batches.capacities(cfg, part)[-1] for part in (TRAIN, *cfg.split.parts)}
    row_B = jnp.arange(batches.size(cfg) + 2)

    @quick_jit
    def train(step):
        difficulty = batches.difficulty(cfg, step, row_B)
        return batches.train_batch(cfg, data, 0, step, row_B, difficulty, sizes[TRAIN])[1]

    def test(part):
        return quick_jit(lambda d, block: batches.test_batch(cfg, data, 0, part, block, d, sizes[part])[1])

    return train, test


def assert_same(found, wanted):
    """All that counts is the same: what stands in no sequence, or is read with weight 0, may be anything."""
    found, wanted = jax.device_get((found, wanted))
    np.testing.assert_array_equal(found.weight_BxR, wanted.weight_BxR)
    for i in np.flatnonzero(wanted.weight_BxR.any(1)):
        n, asked = wanted.length_B[i], wanted.weight_BxR[i] > 0
        assert found.length_B[i] == n
        np.testing.assert_array_equal(found.tokens_BxLxC[i], wanted.tokens_BxLxC[i])
        np.testing.assert_array_equal(found.place_BxL[i, :n], wanted.place_BxL[i, :n])
        for ours, theirs in ((found.read_BxR, wanted.read_BxR), (found.target_BxR, wanted.target_BxR)):
            np.testing.assert_array_equal(ours[i, asked], theirs[i, asked])


@pytest.mark.parametrize("name", ["corrupted", "growing", "causal", "two channels"])
def test_every_step_and_every_block_is_the_same(exported, name):
    cfg, ours = CONFIGS[name], exported(name)
    (train, test), (our_train, our_test) = meets(cfg), meets(ours)
    assert ours.split.parts == cfg.split.parts and ours.split.unseen == cfg.split.unseen
    for step in range(STEPS):
        assert_same(our_train(step), train(step))
    for part in cfg.split.parts:
        assert ours.split.difficulties(cfg.task, part) == cfg.split.difficulties(cfg.task, part)
        for difficulty in cfg.split.difficulties(cfg.task, part):
            for block in range(ours.split.blocks(cfg.task, part, cfg.test_size)):
                assert_same(our_test(part)(difficulty, block), test(part)(difficulty, block))


@pytest.mark.parametrize("name", ["length", "growing"])
def test_after_the_last_exported_step_the_first_comes_again(exported, name):
    train, _ = meets(exported(name))
    hard = [int(batches.difficulty(exported(name), step, jnp.arange(1))) for step in range(2 * STEPS)]
    assert hard[:STEPS] == hard[STEPS:] and len(set(hard)) > 1  # or they would be cut to another bucket
    for step in (0, 7):
        assert_same(train(step + STEPS), train(step))
        assert_same(train(step + 3 * STEPS), train(step))
    assert not np.array_equal(train(0).tokens_BxLxC, train(1).tokens_BxLxC)


def test_blocks_of_another_size_hold_the_same_problems(exported):
    ours = exported("length")
    for part in ours.split.parts:
        hardest = ours.split.difficulties(ours.task, part)[-1]
        rows = {}
        for size in (CONFIGS["length"].test_size, 5):
            _, test = meets(replace(ours, test_size=size))
            blocks = [test(part)(hardest, b) for b in range(ours.split.blocks(ours.task, part, size))]
            kept = [(np.asarray(b.weight_BxR) > 0).any(1) for b in blocks]
            rows[size] = np.concatenate([np.asarray(b.tokens_BxLxC)[k] for b, k in zip(blocks, kept, strict=True)])
        assert len(rows[5]) > 5
        np.testing.assert_array_equal(*rows.values())


def test_a_place_without_a_problem_leaves_every_number_finite(exported, tmp_path):
    ours = replace(exported("length"), seeds=1, steps=10)
    parts = ours.split.prepare(ours.task, 0).values()
    assert not all(np.asarray(part.counts_DxN).all() for part in parts)
    for part in parts:  # attention over no token at all would not be a number
        assert (part.problems.prompt_length > 0).all() and (part.problems.answer_length > 0).all()
    rows = rows_of(ours, tmp_path)
    assert np.isfinite(rows[rows["problems"] > 0]["loss"]).all()


@pytest.mark.parametrize(
    "name, changed, sentence",
    [
        ("table", {"task": Modular(p=7)}, r"exported with task\.p=5, not 7"),
        ("table", {"task": Modular(p=5, op="subtract")}, r"exported with task\.op=add, not subtract"),
        ("length", {"task": registry.load("task", "even_pairs")()}, r"exported with task=parity, not even_pairs"),
        ("length", {"batch_size": 5}, "exported with batch_size=4, not 5"),
        ("length", {"curriculum": Growing()}, "exported with curriculum=uniform, not growing"),
    ],
)
def test_a_config_of_other_problems_is_refused_by_name_and_leaves_nothing(exported, tmp_path, name, changed, sentence):
    with pytest.raises(Refused, match=sentence):
        rows_of(replace(exported(name), **changed), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_what_decides_no_problem_may_change(exported):
    table, length = exported("table"), exported("length")
    for changed in ({"batch_size": 3}, {"test_size": 7}, {"curriculum": Growing()}, {"seeds": 4}, {"first_seed": 9}):
        replace(table, **changed).check()
    replace(length, test_size=7, optimizer=TABLE.optimizer, steps=10_000).check()


def test_a_dataset_that_was_replaced_is_refused_and_its_runs_are_other_runs(exported, tmp_path):
    old = replace(TABLE, split=Exported(path=exported("table").split.path))
    export.export(replace(TABLE, first_seed=1), Options(out=str(tmp_path / "new"), format="jsonl"))
    new = replace(TABLE, split=Exported(path=str(tmp_path / "new")))
    assert config.digest(new) != config.digest(old) and new.split.digest != old.split.digest
    stale = replace(TABLE, split=Exported(path=str(tmp_path / "new"), digest=old.split.digest))
    with pytest.raises(Refused, match=f"holds the dataset {new.split.digest}, not split.digest={old.split.digest}"):
        stale.check()


def test_the_digest_of_a_run_knows_the_dataset_and_not_where_it_lies(exported):
    split = exported("table").split
    here, there = (replace(TABLE, split=Exported(path=path, digest=split.digest)) for path in (split.path, "elsewhere"))
    assert config.digest(here) == config.digest(there) != config.digest(TABLE)
    assert config.parse(["", *config.to_flags(here)], Config()) == here
    said = config.identity(here)["split"]
    assert said == {"name": "exported", "digest": split.digest}


@pytest.mark.parametrize(
    "flags, sentence",
    [
        ([], "needs --split.path"),
        (["--split.path=nowhere"], "nowhere holds no dataset"),
        (["--split.path=nowhere", "--split.digest=0123456789ab"], "nowhere holds no dataset"),
    ],
)
def test_no_dataset_is_refused(flags, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=sentence):
        config.parse(["", "--split=exported", *flags], TABLE).check()


def test_a_dataset_in_another_form_of_records_is_refused(exported, tmp_path):
    about = dataset.metadata(exported("table").split.path)
    about["config"]["version"] = "0.9.0"
    about["digest"] = config.hashed(about["config"])
    (tmp_path / "metadata.json").write_text(json.dumps(about))
    with pytest.raises(Refused, match=r"is of version 0\.9\.0, not 1\.0\.0"):
        replace(TABLE, split=Exported(path=str(tmp_path))).check()
