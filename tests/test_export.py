"""Exported datasets hold what training and evaluation meet, and are read without TensorFlow."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from e2h import config, registry
from e2h.export import Options, export
from e2h.registry import Refused

SMALL = {  # splits shrunk so that an export takes a moment
    "fraction": [],
    "length": ["--split.train_max=4", "--split.test_max=6"],
    "complexity": ["--split.train_max=2", "--split.test_max=3"],
}


def small(task: str) -> config.Config:
    argv = ["export", f"--task={task}", "--test_size=16", "--batch_size=16"]
    argv += {"modular": ["--task.p=5"], "permutation": ["--task.n=3"]}.get(task, [])
    base = config.fitting(argv)
    return config.parse(argv + SMALL[base.split.name], base)


@pytest.mark.parametrize("task", registry.names("task"))
def test_every_task_is_exported_with_right_answers(task, tmp_path):
    cfg = small(task)
    export(cfg, Options(out=str(tmp_path / "data"), format="jsonl", train_size=32))
    for part in {"train", *cfg.split.parts}:
        rows = [json.loads(line) for line in (tmp_path / "data" / f"{part}.jsonl").read_text().splitlines()]
        assert rows
        for row in rows:
            assert cfg.task.oracle(row["prompt"].split()) == row["answer"].split()
            assert row["difficulty"] in cfg.split.difficulties(cfg.task, part)


def test_train_and_test_parts_share_no_problem(tmp_path):
    cfg = small("parity")
    export(cfg, Options(out=str(tmp_path), format="jsonl", train_size=200))
    lines = {part: (tmp_path / f"{part}.jsonl").read_text().splitlines() for part in ("train", "test")}
    train, test = ({json.loads(line)["prompt"] for line in lines[part]} for part in ("train", "test"))
    assert train and test and not train & test


def test_tfds_reads_the_same_rows_as_json_lines(tmp_path):
    cfg = small("parity")
    export(cfg, Options(out=str(tmp_path / "tfds"), train_size=32))
    export(cfg, Options(out=str(tmp_path / "text"), format="jsonl", train_size=32))
    builder = tfds.builder_from_directory(str(tmp_path / "tfds"))
    assert builder.info.metadata["digest"] == config.digest(cfg)
    found = sorted((row["prompt"].decode(), row["tokens"].tolist()) for row in builder.as_data_source("test_length"))
    lines = (tmp_path / "text" / "test_length.jsonl").read_text().splitlines()
    assert found == sorted((row["prompt"], row["tokens"]) for row in map(json.loads, lines))
    assert found and np.isfinite([row["mask"] for row in builder.as_data_source("train")]).all()
    assert "tensorflow" not in sys.modules


def test_a_directory_that_holds_something_is_refused(tmp_path):
    (tmp_path / "old").write_text("")
    with pytest.raises(Refused, match="not empty"):
        export(small("parity"), Options(out=str(tmp_path), format="jsonl"))


def test_the_command_line_refuses_with_exit_code_2():
    done = subprocess.run(
        [sys.executable, "-m", "e2h.export", "--task=parity"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--out" in done.stderr


def test_a_grid_is_refused_and_nothing_is_written(tmp_path):
    cfg = config.parse(["export", "--grid=split.train_fraction=0.3:0.5"], small("modular"))
    with pytest.raises(Refused, match="a dataset is of one"):
        export(cfg, Options(out=str(tmp_path / "data"), format="jsonl"))
    assert not (tmp_path / "data").exists()
