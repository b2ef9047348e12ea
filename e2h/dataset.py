"""A dataset on disk: what decides its records, and the two forms in which they are written and read.

A directory holds `metadata.json` and, for every part that has problems, array_record files (which TFDS reads without
TensorFlow) or a file of JSON lines, or both.
"""

import collections
import importlib.metadata
import importlib.util
import itertools
import json
import pathlib

import numpy as np

from e2h import config as configs
from e2h import records
from e2h.config import Config
from e2h.registry import Refused
from e2h.splits import TEST, TRAIN

VERSION = "1.0.0"  # of the form of the records; it is part of the digest
TFDS, JSONL = "tfds", "jsonl"
PUBLISHED = {TEST: "test_in_distribution"}  # parts that are called otherwise on disk
SHARD = 100_000  # records of an array_record file
WRITTEN_EARLY = ("dataset_info.json", "features.json", "metadata.json")  # by TFDS, before there is a record


def identity(config: Config, examples: int) -> dict:
    """What decides the records, as plain JSON data: the parts of a config that they depend on, the seed, their number.

    A table is written whole, whatever a training step takes of it.
    """
    of_steps = () if TRAIN in config.split.parts else ("curriculum", "batch_size")
    kept = ("task", "split", "layout", "position", "test_size", *of_steps)
    data = {name: value for name, value in configs.identity(config).items() if name in kept}
    data |= {"seed": config.first_seed, "version": VERSION} | ({"examples": examples} if of_steps else {})
    return json.loads(json.dumps(data))


def describe(config: Config, examples: int, formats: tuple[str, ...]) -> dict:
    """The metadata of a dataset: `config` is its identity and `digest` that of the identity."""
    decides = identity(config, examples)
    return {
        "config": decides,
        "digest": configs.hashed(decides),
        "seed": config.first_seed,
        "flags": [*configs.to_flags(config), f"--examples={examples}"],
        "vocabulary": config.layout.vocabulary(config.task),
        "classes": config.layout.classes(config.task),
        "formats": formats,
        "versions": {"e2h": version(), **records.versions()},
        "commit": records.commit(),
    }


def version() -> str:
    """The installed version of this package; `unknown` in a checkout that is not installed."""
    try:
        return importlib.metadata.version("e2h")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def metadata(directory) -> dict:
    """What `describe` said of the dataset in a directory.

    Raises:
      Refused: if there is none, or its digest is not that of its config.
    """
    try:
        found = json.loads((pathlib.Path(directory) / "metadata.json").read_text())
        whole = configs.hashed(found["config"]) == found["digest"] and found["formats"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(f"{directory} holds no dataset of e2h.export.") from None
    if not whole:
        raise Refused(f"{directory}/metadata.json is damaged: its digest is not that of its config.")
    return found


def require_tfds() -> None:
    if not all(map(importlib.util.find_spec, ("tensorflow_datasets", "array_record"))):
        raise Refused("The tfds format needs the extra tfds: run ./launch/setup.sh tfds, or use --format=jsonl.")


def write(directory: pathlib.Path, parts: dict, about: dict) -> None:
    """Writes the records (nested dictionaries of NumPy arrays and strings) of each part; the metadata come last."""
    parts = {PUBLISHED.get(part, part): iter(rows) for part, rows in parts.items()}
    first = {part: row for part, rows in parts.items() if (row := next(rows, None)) is not None}
    parts = {part: itertools.chain([row], parts[part]) for part, row in first.items()}
    if JSONL in about["formats"]:
        parts = {part: _also_as_lines(rows, directory / f"{part}.jsonl") for part, rows in parts.items()}
    if TFDS in about["formats"]:
        _write_tfds(directory, parts, next(iter(first.values())), about)
    for rows in parts.values():
        collections.deque(rows, maxlen=0)
    records.write_atomically(directory / "metadata.json", json.dumps(about, indent=1))


def read(directory, part: str) -> list[dict]:
    """The records of a part (by its name in the split), from whichever form there is; none if it has no problems."""
    directory, name = pathlib.Path(directory), PUBLISHED.get(part, part)
    if JSONL in metadata(directory)["formats"]:
        path = directory / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [_arrays(json.loads(line)) for line in lines]
    require_tfds()
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(directory))
    return list(map(_arrays, builder.as_data_source(name))) if name in builder.info.splits else []


def _also_as_lines(rows, path: pathlib.Path):
    """Passes records on, and writes each as a line."""
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps(_plain(row)) + "\n")
            yield row


def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value if isinstance(value, str) else np.asarray(value).tolist()


def _arrays(value):
    """Of a record that was read: lists and numbers as arrays, bytes as strings."""
    if isinstance(value, dict):
        return {name: _arrays(inner) for name, inner in value.items()}
    return value.decode() if isinstance(value, bytes) else value if isinstance(value, str) else np.asarray(value)


def _write_tfds(directory: pathlib.Path, parts: dict, first: dict, about: dict) -> None:
    import tensorflow_datasets as tfds

    def features(value, unpadded=False):
        if isinstance(value, dict):
            return {name: features(inner, unpadded or name == "problem") for name, inner in value.items()}
        if isinstance(value, str):
            return tfds.features.Text()
        return tfds.features.Tensor(shape=(None, *value.shape[1:]) if unpadded else value.shape, dtype=value.dtype)

    info = tfds.core.DatasetInfo(
        builder=tfds.core.DatasetIdentity(
            name="e2h", version=tfds.core.Version(VERSION), data_dir=str(directory), module_name="e2h.export"
        ),
        features=tfds.features.FeaturesDict(features(first)),
        metadata=tfds.core.MetadataDict(about),
    )
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=SHARD, file_format="array_record")
    writer.initialize_splits(list(parts))
    for name in WRITTEN_EARLY:  # and again after the records: until then this reads as no dataset
        (directory / name).unlink(missing_ok=True)
    writer.add_examples(parts)
    writer.close_all()
