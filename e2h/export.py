"""Any task and its splits as a dataset on disk: for people who train elsewhere, and for `--split=exported`.

    python -m e2h.export --task=addition --split=length --out=DIR [--format=both] [--examples=50000]

`tfds` writes array_record files that `tfds.builder_from_directory(DIR).as_data_source("train")` reads without
TensorFlow; `jsonl` writes one text file per part. A table is written whole. Of a task without end, `train` holds what
the first training steps meet, and a test part what evaluation scores: `--test_size` problems of each difficulty.
"""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import sys
import uuid
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from e2h import batches, config, dataset, records
from e2h.config import Config
from e2h.dataset import JSONL, TFDS
from e2h.registry import Component, Refused, setting
from e2h.splits import TRAIN
from e2h.tasks import answer_words, prompt_words

FORMATS = {TFDS: (TFDS,), JSONL: (JSONL,), "both": (TFDS, JSONL)}


@dataclasses.dataclass(frozen=True)
class Options(Component):
    """What is written, and where."""

    out: str = setting("", "the directory to write; it must not hold anything else")
    format: str = setting(TFDS, "array_record files for TFDS, JSON lines, or both", choices=FORMATS)
    examples: int = setting(
        10_000, "training problems, in whole steps (a table gives all it has)", low=1, high=10_000_000
    )

    kind: ClassVar[str] = ""


def examples(cfg: Config, part: str, count: int):
    """Records of a part, as the config's first seed meets them: dictionaries of NumPy arrays, strings, dictionaries.

    `index` is a record's place: in training by steps, step x batch size + row; else, its number among the problems of
    its part and difficulty. Places without a problem are left out. `problem` is what the layout started from, unpadded.
    """
    whole_table = TRAIN in cfg.split.parts
    blocks = _train_blocks(cfg, count) if part == TRAIN and not whole_table else _test_blocks(cfg, part)
    for first, block in blocks:
        problems, batch, difficulty_B, complexity = jax.device_get(block)
        for i in np.flatnonzero((batch.weight_BxR > 0).any(1)):
            problem, row, hard = (jax.tree.map(lambda a, i=i: a[i], x) for x in (problems, batch, complexity))
            yield _example(cfg, first + i, problem, row, difficulty_B[i], hard)


def _example(cfg: Config, index: int, x, row, difficulty, complexity) -> dict:
    one_channel = cfg.task.channels == 1
    return {
        "index": np.int32(index),
        "tokens": row.tokens_BxLxC[:, 0] if one_channel else row.tokens_BxLxC,
        "length": row.length_B,
        "place": row.place_BxL,
        "read": row.read_BxR,
        "target": row.target_BxR,
        "mask": row.weight_BxR,
        "difficulty": np.int32(difficulty),
        "complexity": {name: np.int32(value) for name, value in complexity._asdict().items()},
        "text": {"prompt": " ".join(prompt_words(cfg.task, x)), "answer": " ".join(answer_words(cfg.task, x))},
        "problem": {
            "prompt": x.prompt_PxC[: x.prompt_length],
            "place": x.place_P[: x.prompt_length],
            "answer": x.answer_A[: x.answer_length],
            "at": x.at_A[: x.answer_length],
        },
    }


def _train_blocks(cfg: Config, count: int):
    """(index of the first, block) of training steps 0, 1, 2, ..., of at least `count` places."""
    seed, rows, capacity = jnp.int32(cfg.first_seed), jnp.arange(batches.size(cfg)), _capacity(cfg)
    data = jax.jit(lambda: cfg.split.prepare(cfg.task, seed))()

    @jax.jit
    def block(step):
        difficulty = batches.difficulty(cfg, step, rows)
        problems, batch = batches.train_batch(cfg, data, seed, step, rows, difficulty, capacity)
        return problems, batch, jnp.broadcast_to(difficulty, rows.shape), jax.vmap(cfg.task.complexity)(problems)

    return ((step * len(rows), block(jnp.int32(step))) for step in range(-(-count // len(rows))))


def _test_blocks(cfg: Config, part: str):
    """(index of the first, block) of what evaluation scores."""
    seed, capacity = jnp.int32(cfg.first_seed), _capacity(cfg)
    data = jax.jit(lambda: cfg.split.prepare(cfg.task, seed))()

    @jax.jit
    def block(difficulty, i):
        problems, batch = batches.test_batch(cfg, data, seed, part, i, difficulty, capacity)
        difficulty_B = jnp.broadcast_to(difficulty, (cfg.test_size,))
        return problems, batch, difficulty_B, jax.vmap(cfg.task.complexity)(problems)

    for difficulty in cfg.split.difficulties(cfg.task, part):
        for i in range(cfg.split.blocks(cfg.task, part, cfg.test_size)):
            yield i * cfg.test_size, block(jnp.int32(difficulty), jnp.int32(i))


def _capacity(cfg: Config) -> int:
    """One shape for all parts."""
    return max(batches.capacities(cfg, part)[-1] for part in (TRAIN, *cfg.split.parts))


def export(cfg: Config, options: Options) -> bool:
    """Writes every part of the split, with the config that decides them and its digest as metadata: all or nothing.

    Returns:
      Whether anything was written; not if the directory holds this very dataset already.

    Raises:
      Refused: if the directory holds anything else or cannot be written, or the writer is not installed.
    """
    cfg.check()
    if cfg.grid:
        raise Refused("--grid has several splits or settings, and a dataset is of one: leave it out.")
    if cfg.split.name == "exported":
        raise Refused("--split=exported reads a dataset that is there already; name the split that made it.")
    if not options.out:
        raise Refused("--out names the directory to write.")
    directory = pathlib.Path(options.out).resolve()
    about = dataset.describe(cfg, options.examples, FORMATS[options.format])
    parts = {part: examples(cfg, part, options.examples) for part in (TRAIN, *cfg.split.parts)}
    try:
        if _is_there(directory, about):
            return False
        if TFDS in about["formats"]:
            dataset.require_tfds()
        with _all_or_nothing(directory) as half:
            dataset.write(half, parts, about)
    except OSError as error:
        raise Refused(f"Cannot write to {directory}: {error.strerror or error}.") from None
    return True


def _is_there(directory: pathlib.Path, about: dict) -> bool:
    """Whether a directory holds the dataset. Refuses if it holds another, or what is none."""
    if not directory.exists() or not any(directory.iterdir()):
        return False
    if not (directory / "metadata.json").exists():
        raise Refused(f"{directory} is not empty; a dataset is never mixed with anything else.")
    before = dataset.metadata(directory)
    drift = next(records.differences(before["config"], about["config"]), None)
    if not drift and not set(about["formats"]) <= set(before["formats"]):
        drift = f"format={','.join(before['formats'])}, not {','.join(about['formats'])}"
    if drift:
        raise Refused(f"{directory} holds a dataset with {drift}; choose another directory.")
    return True


@contextlib.contextmanager
def _all_or_nothing(directory: pathlib.Path):
    """A new directory beside the wanted one, which takes its name once all is written.

    Only a process that is killed leaves it behind, and then it reads as no dataset.
    """
    half = directory.with_name(f"{directory.name}.half-{uuid.uuid4().hex[:8]}")
    half.mkdir(parents=True)
    try:
        yield half
        half.rename(directory)  # onto nothing or an empty directory; anything else is an OSError
    finally:
        shutil.rmtree(half, ignore_errors=True)


def main() -> None:
    argv = [re.sub(r"^(--?)splits(?=[=.]|$)", r"\1split", word) for word in sys.argv]  # --splits is --split
    try:
        cfg, options = config.parse_all(argv, config.fitting(argv), Options())
        print(f"{'Written' if export(cfg, options) else 'Already there'}: {options.out}")
    except Refused as error:
        print(f"Refused: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
