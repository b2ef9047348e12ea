"""Any task and its splits as a dataset on disk, for people who train elsewhere.

    python -m e2h.export --task=addition --split=length --layout=causal --out=DIR [--format=jsonl]

`tfds` writes array_record files that `tfds.builder_from_directory(DIR).as_data_source("train")` reads without
TensorFlow; `jsonl` writes one text file per part.
"""

import dataclasses
import importlib.util
import json
import pathlib
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from e2h import batches, config, records
from e2h.config import Config
from e2h.registry import Component, Refused, setting
from e2h.splits import TRAIN
from e2h.tasks import answer_words, prompt_words


@dataclasses.dataclass(frozen=True)
class Options(Component):
    """What is written, and where."""

    out: str = setting("", "the directory to write; it must not hold another dataset")
    format: str = setting("tfds", "array_record files for TFDS, or JSON lines", choices=("tfds", "jsonl"))
    train_size: int = setting(10_000, "training problems (a table gives all it has)", low=1)

    kind: ClassVar[str] = ""


def examples(cfg: Config, part: str, train_size: int):
    """Dictionaries of NumPy arrays and strings, one per problem of a part, as the config's first seed meets them."""
    whole_table = TRAIN in cfg.split.parts
    blocks = _train_blocks(cfg, train_size) if part == TRAIN and not whole_table else _test_blocks(cfg, part)
    for problems, batch, difficulty_B, complexity in map(jax.device_get, blocks):
        for i in np.flatnonzero((batch.weight_BxR > 0).any(1)):
            problem, row, hard = (jax.tree.map(lambda a, i=i: a[i], x) for x in (problems, batch, complexity))
            yield _example(cfg, problem, row, difficulty_B[i], hard)


def _example(cfg, problem, row, difficulty, complexity) -> dict:
    return {
        "tokens": row.tokens_BxLxC,
        "length": row.length_B,
        "place": row.place_BxL,
        "read": row.read_BxR,
        "target": row.target_BxR,
        "mask": row.weight_BxR,
        "difficulty": np.int32(difficulty),
        "complexity": np.array(complexity, np.int32),
        "prompt": " ".join(prompt_words(cfg.task, problem)),
        "answer": " ".join(answer_words(cfg.task, problem)),
    }


def _train_blocks(cfg: Config, train_size: int):
    """What training steps 0, 1, 2, ... see, at least `train_size` problems."""
    seed, rows, capacity = jnp.int32(cfg.first_seed), jnp.arange(batches.size(cfg)), _capacity(cfg)
    data = jax.jit(lambda: cfg.split.prepare(cfg.task, seed))()

    @jax.jit
    def block(step):
        difficulty = batches.difficulty(cfg, step, rows)
        problems, batch = batches.train_batch(cfg, data, seed, step, rows, difficulty, capacity)
        return problems, batch, jnp.broadcast_to(difficulty, rows.shape), jax.vmap(cfg.task.complexity)(problems)

    return map(block, jnp.arange(-(-train_size // len(rows))))


def _test_blocks(cfg: Config, part: str):
    """What evaluation scores."""
    seed, capacity = jnp.int32(cfg.first_seed), _capacity(cfg)
    data = jax.jit(lambda: cfg.split.prepare(cfg.task, seed))()

    @jax.jit
    def block(difficulty, i):
        problems, batch = batches.test_batch(cfg, data, seed, part, i, difficulty, capacity)
        difficulty_B = jnp.broadcast_to(difficulty, (cfg.test_size,))
        return problems, batch, difficulty_B, jax.vmap(cfg.task.complexity)(problems)

    for difficulty in cfg.split.difficulties(cfg.task, part):
        for i in range(cfg.split.blocks(cfg.task, part, cfg.test_size)):
            yield block(jnp.int32(difficulty), jnp.int32(i))


def _capacity(cfg: Config) -> int:
    """One shape for all parts."""
    return max(batches.capacities(cfg, part)[-1] for part in (TRAIN, *cfg.split.parts))


def export(cfg: Config, options: Options) -> pathlib.Path:
    """Writes every part of the split, and the config with its digest as metadata.

    Raises:
      Refused: if the directory is not empty or cannot be written, or the writer is not installed.
    """
    cfg.check()
    if cfg.grid:
        raise Refused("--grid has several splits or settings, and a dataset is of one: leave it out.")
    directory = pathlib.Path(options.out)
    if not options.out:
        raise Refused("--out names the directory to write.")
    if options.format == "tfds" and not importlib.util.find_spec("tensorflow_datasets"):
        raise Refused("The tfds format needs an extra: run ./launch/setup.sh tfds, or use --format=jsonl.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise Refused(f"{directory} is not empty; a dataset is never mixed with another.")
    except OSError as error:
        raise Refused(f"Cannot write to {directory}: {error.strerror or error}.") from None
    parts = dict.fromkeys((TRAIN, *cfg.split.parts))
    metadata = {
        "config": config.to_dict(cfg),
        "digest": config.digest(cfg),
        "vocabulary": cfg.layout.vocabulary(cfg.task),
        "classes": cfg.layout.classes(cfg.task),
    }
    writer = {"tfds": _write_tfds, "jsonl": _write_jsonl}[options.format]
    writer(directory, {part: examples(cfg, part, options.train_size) for part in parts}, metadata)
    return directory


def _write_jsonl(directory: pathlib.Path, parts: dict, metadata: dict) -> None:
    for part, rows in parts.items():
        with (directory / f"{part}.jsonl").open("w") as file:
            file.writelines(json.dumps({k: _plain(v) for k, v in row.items()}) + "\n" for row in rows)
    records.write_atomically(directory / "metadata.json", json.dumps(metadata, indent=1))


def _plain(value):
    return value if isinstance(value, str) else np.asarray(value).tolist()


def _write_tfds(directory: pathlib.Path, parts: dict, metadata: dict) -> None:
    import tensorflow_datasets as tfds

    rows = {part: list(found) for part, found in parts.items()}
    rows = {part: found for part, found in rows.items() if found}
    first = next(iter(rows.values()))[0]
    features = {
        k: tfds.features.Text() if isinstance(v, str) else tfds.features.Tensor(shape=v.shape, dtype=v.dtype)
        for k, v in first.items()
    }
    info = tfds.core.DatasetInfo(
        builder=tfds.core.DatasetIdentity(
            name="e2h", version=tfds.core.Version("1.0.0"), data_dir=str(directory), module_name="e2h.export"
        ),
        features=tfds.features.FeaturesDict(features),
        metadata=tfds.core.MetadataDict(metadata),
    )
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=100_000, file_format="array_record")
    writer.initialize_splits(list(rows))
    for part, found in rows.items():
        writer.add_examples({part: found})
    writer.close_all()


def main() -> None:
    try:
        base = config.fitting(sys.argv)
        print(f"Written: {export(*config.parse_all(sys.argv, base, Options()))}")
    except Refused as error:
        print(f"Refused: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
