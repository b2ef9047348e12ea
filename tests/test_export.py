"""Exported datasets hold what training and evaluation meet, and are read without TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import tensorflow_datasets as tfds
from _instances import quick_jit

from e2h import config, dataset, export, records, registry
from e2h.export import Options
from e2h.registry import Refused

SMALL = {  # splits shrunk so that an export takes a moment
    "fraction": [],
    "length": ["--split.train_max=4", "--split.test_max=6"],
    "complexity": ["--split.train_max=2", "--split.test_max=3"],
}
PART = {"test": "test_in_distribution"}


def small(task: str, *flags: str) -> config.Config:
    argv = ["export", f"--task={task}", "--test_size=16", "--batch_size=16", *flags]
    argv += {"modular": ["--task.p=5"], "permutation": ["--task.n=3"], "group_words": ["--task.n=3"]}.get(task, [])
    base = config.fitting(argv)
    return config.parse(argv + SMALL[base.split.name], base)


@pytest.fixture(autouse=True, scope="module")
def compile_once():
    """Exports of equal configs draw their records once."""
    draw, drawn = export.examples, {}

    def remembered(cfg, part, count):
        key = (json.dumps(dataset.identity(cfg, count)), part)
        if key not in drawn:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jax, "jit", quick_jit)
                drawn[key] = list(draw(cfg, part, count))
        yield from drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "examples", remembered)
        yield


def written(cfg, directory, form="both", examples=32):
    assert export.export(cfg, Options(out=str(directory), format=form, examples=examples))
    return directory


def lines(directory, part):
    return [json.loads(line) for line in (directory / f"{PART.get(part, part)}.jsonl").read_text().splitlines()]


def contents(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def plain(value):
    """A record of TFDS as JSON would have it."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.decode() if isinstance(value, bytes) else np.asarray(value).tolist()


@pytest.fixture(scope="module", params=registry.names("task"))
def exported(request, tmp_path_factory):
    """(config, directory) of every task in both forms."""
    cfg = small(request.param)
    return cfg, written(cfg, tmp_path_factory.mktemp("export") / "data")


def test_every_answer_is_the_oracles_and_every_difficulty_is_of_its_part(exported):
    cfg, directory = exported
    for part in {"train", *cfg.split.parts}:
        rows = lines(directory, part)
        assert rows
        for row in rows:
            assert cfg.task.oracle(row["text"]["prompt"].split()) == row["text"]["answer"].split()
            assert row["difficulty"] in cfg.split.difficulties(cfg.task, part)


def test_tokens_targets_and_mask_say_what_the_text_says(exported):
    cfg, directory = exported
    about = json.loads((directory / "metadata.json").read_text())
    for row in lines(directory, "train"):
        prompt, answer = row["text"]["prompt"].split(), row["text"]["answer"].split()
        tokens = [t if isinstance(t, list) else [t] for t in row["tokens"][: row["length"]]]
        said = ["".join(about["vocabulary"][t] for t in token if t >= 0) for token in tokens]
        assert said[: len(prompt)] == prompt
        asked = [about["classes"][t] for t, m in zip(row["target"], row["mask"], strict=True) if m]
        assert asked == answer + ["<end>"] * (cfg.layout.name == "causal")
        assert all(0 <= at < row["length"] for at, m in zip(row["read"], row["mask"], strict=True) if m)
        assert row["complexity"]["length"] == len(prompt) and row["complexity"].keys() > {"computation"}


def test_no_prompt_of_training_is_in_a_test_part_and_no_place_is_taken_twice(exported):
    cfg, directory = exported
    train = {row["text"]["prompt"] for row in lines(directory, "train")}
    for part in set(cfg.split.parts) - {"train"}:
        rows = lines(directory, part)
        assert not train & {row["text"]["prompt"] for row in rows}
        assert len({(row["difficulty"], row["index"]) for row in rows}) == len(rows)


def test_tfds_reads_the_records_of_the_json_lines(exported):
    cfg, directory = exported
    builder = tfds.builder_from_directory(str(directory))
    names = {PART.get(part, part) for part in ("train", *cfg.split.parts)}
    assert set(builder.info.splits) == names and "test_in_distribution" in names
    for name in names:
        assert list(map(plain, builder.as_data_source(name))) == lines(directory, name)
    about = json.loads((directory / "metadata.json").read_text())
    assert builder.info.metadata == about and about["config"]["task"]["name"] == cfg.task.name
    assert about["digest"] == config.hashed(about["config"]) and about["seed"] == 0 and "e2h" in about["versions"]


def test_the_flags_in_the_metadata_write_the_same_dataset(exported):
    _, directory = exported
    flags = ["export", *json.loads((directory / "metadata.json").read_text())["flags"]]
    cfg, options = config.parse_all(flags, config.fitting(flags), Options())
    assert not export.export(cfg, Options(out=str(directory), examples=options.examples))


def test_sums_in_another_order_are_not_trained_on_either(tmp_path):
    cfg = small("addition", "--split.train_max=1", "--split.test_max=2")
    written(cfg, tmp_path / "data", "jsonl", examples=500)
    pairs = {
        part: {frozenset(row["text"]["prompt"].replace(" ", "").split("+")) for row in lines(tmp_path / "data", part)}
        for part in ("train", "test")
    }
    assert len(pairs["train"]) > 30 and pairs["test"] and not pairs["train"] & pairs["test"]


def test_a_table_is_whole_and_a_task_without_end_gives_what_is_asked_for(tmp_path):
    written(small("modular"), tmp_path / "table", "jsonl", examples=1)
    rows = [row["text"]["prompt"] for part in ("train", "test") for row in lines(tmp_path / "table", part)]
    assert sorted(rows) == sorted(f"{x} {y}" for x in range(5) for y in range(5))
    for count in (32, 33):
        written(small("parity"), tmp_path / str(count), "jsonl", examples=count)
        places = {row["index"] for row in lines(tmp_path / str(count), "train")}
        most = -(-count // 16) * 16
        assert max(places) < most and len(places) > 0.8 * most  # some draws find no training problem


@pytest.mark.parametrize("form", ["tfds", "jsonl", "both"])
def test_the_same_dataset_is_not_written_again_and_another_is_refused_by_name(tmp_path, form):
    directory = written(small("parity"), tmp_path / "data", form)
    before = contents(directory)
    again = Options(out=str(directory), format=form, examples=32)
    assert not export.export(small("parity"), again)
    assert not export.export(small("parity", "--optimizer.learning_rate=0.5"), again)  # no record depends on it
    for flag, drift in {
        "--first_seed=1": "seed=0, not 1",
        "--split.held_out=0.25": r"split\.held_out=0\.125, not 0\.25",
        "--batch_size=8": "batch_size=16, not 8",
        "--layout=query": "layout=causal, not query",
    }.items():
        with pytest.raises(Refused, match=f"holds a dataset with {drift}"):
            export.export(small("parity", flag), again)
    with pytest.raises(Refused, match="examples=32, not 33"):
        export.export(small("parity"), Options(out=str(directory), format=form, examples=33))
    if form != "both":
        with pytest.raises(Refused, match=f"format={form}, not "):
            export.export(small("parity"), Options(out=str(directory), format="both", examples=32))
    assert contents(directory) == before and list(tmp_path.iterdir()) == [directory]


def test_a_directory_that_holds_something_else_is_refused_and_an_empty_one_is_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    written(small("parity"), tmp_path / "empty", "jsonl")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "old").write_text("")
    (tmp_path / "file").write_text("")
    for name, sentence in {"other": "not empty", "file": "Cannot write", "file/below": "Cannot write"}.items():
        with pytest.raises(Refused, match=sentence):
            export.export(small("parity"), Options(out=str(tmp_path / name), format="jsonl"))
    assert {p.name for p in tmp_path.iterdir()} == {"empty", "other", "file"}


def test_metadata_that_were_changed_by_hand_are_refused(tmp_path):
    directory = written(small("parity"), tmp_path / "data", "jsonl")
    path = directory / "metadata.json"
    path.write_text(path.read_text().replace('"test_size": 16', '"test_size": 17'))
    with pytest.raises(Refused, match="damaged"):
        dataset.metadata(directory)
    with pytest.raises(Refused, match="damaged"):
        export.export(small("parity"), Options(out=str(directory), format="jsonl"))


@pytest.mark.parametrize("record", [0, 5, 40])
def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch, record):
    draw, seen = export.examples, []

    def interrupted(*args):
        for row in draw(*args):
            if len(seen) == record:
                raise KeyboardInterrupt
            seen.append(row)
            yield row

    monkeypatch.setattr(export, "examples", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export.export(small("parity"), Options(out=str(tmp_path / "data"), format="both", examples=32))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["tfds", "jsonl"])
def test_a_killed_export_leaves_nothing_that_reads_as_a_dataset(tmp_path, form):
    killed = """if True:
        import os, signal
        from e2h import dataset, export
        def killing(cfg, part, count):
            row = {"index": 0, "text": {"prompt": "1", "answer": "1"}, "tokens": export.np.ones(3, "int32")}
            yield from [row | {"index": export.np.int32(i)} for i in range(20)]
            if part != "train":
                os.kill(os.getpid(), signal.SIGKILL)
        export.examples = killing
        export.main()
    """
    flags = [*config.to_flags(small("parity")), f"--out={tmp_path}/data", f"--format={form}"]
    command = [sys.executable, "-c", killed, *flags]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    (half,) = tmp_path.iterdir()
    assert half.name.startswith("data.half-") and list(half.iterdir())
    with pytest.raises(Refused, match="holds no dataset"):
        dataset.metadata(half)
    with pytest.raises(tfds.core.dataset_info.DatasetInfoFileError):
        tfds.builder_from_directory(str(half))
    assert export.export(small("parity"), Options(out=str(tmp_path / "data"), format=form, examples=32))


def test_written_and_read_with_no_tensorflow(tmp_path):
    program = """if True:
        import runpy, sys
        runpy.run_module("e2h.export", run_name="__main__")
        import tensorflow_datasets as tfds
        builder = tfds.builder_from_directory(sys.argv[-1].removeprefix("--out="))
        for name in ("train", "test_in_distribution", "test_length"):
            source = builder.as_data_source(name)
            assert len(source) and {"tokens", "mask", "complexity", "text"} <= source[0].keys()
        assert "tensorflow" not in sys.modules
    """
    flags = "--task=addition --splits=length --splits.train_max=2 --splits.test_max=3 --test_size=8 --examples=200"
    command = [sys.executable, "-c", program, *flags.split(), f"--out={tmp_path}/data"]
    quick = os.environ | {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"}
    done = subprocess.run(command, env=quick, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == f"Written: {tmp_path}/data\n", done.stderr


def test_the_tfds_format_without_its_packages_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"the extra tfds: run \./launch/setup\.sh tfds"):
        export.export(small("parity"), Options(out=str(tmp_path / "data")))
    assert not list(tmp_path.iterdir())
    extras = (pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert "\ntfds = [" in extras


@pytest.mark.parametrize(
    "flags, sentence",
    [
        ([], "--out names"),
        (["--examples=0"], "examples=0 is out of range: it takes 1 to 10000000"),
        (["--examples=10000001"], "out of range"),
        (["--format=csv"], "not one of tfds, jsonl, both"),
        (["--splits=lenght"], "did you mean 'length'"),
        (["--grid=split.held_out=0.3:0.5", "--out=x"], "Refused: "),
        (["--split=exported", "--out=x"], "Refused: "),
    ],
)
def test_the_command_line_refuses_before_anything_is_written(flags, sentence, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["export", "--task=parity", *flags])
    with pytest.raises(SystemExit) as stop:
        export.main()
    assert stop.value.code == 2 and sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_grid_is_refused_and_nothing_is_written(tmp_path):
    cfg = config.parse(["export", "--grid=split.train_fraction=0.3:0.5"], small("modular"))
    with pytest.raises(Refused, match="a dataset is of one"):
        export.export(cfg, Options(out=str(tmp_path / "data"), format="jsonl"))
    assert not (tmp_path / "data").exists()


def test_the_digest_is_that_of_the_settings_that_records_depend_on():
    def digest(*flags, task="parity", examples=32):
        return dataset.describe(small(task, *flags), examples, ("jsonl",))["digest"]

    for flag in ("--model.width=64", "--loss=mse", "--seeds=2", "--steps=7", "--precision=default", "--buckets=1"):
        assert digest(flag) == digest()
    for flag in ("--first_seed=1", "--batch_size=8", "--test_size=8", "--curriculum=fixed", "--layout=query"):
        assert digest(flag) != digest()
    assert digest("--batch_size=8", task="modular") == digest(task="modular") == digest(task="modular", examples=7)
    assert records.differences({"a": {"b": 1}}, {"a": {"b": 2}})
