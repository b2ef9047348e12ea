"""The problems of a dataset that `python -m e2h.export` wrote, on the steps and in the parts that it has them from."""

import dataclasses
import functools
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from e2h import config as configs
from e2h import dataset, records
from e2h.config import how
from e2h.registry import Refused, setting
from e2h.splits import TRAIN, Split
from e2h.splits.fraction import Fraction, in_epochs
from e2h.tasks import Problem


class Part(NamedTuple):
    """The problems of one part, by difficulty and place."""

    problems: Problem  # leading axes [D, N]; in the narrowest integers that hold them
    counts_DxN: jax.Array  # bool, whether there is a problem


@dataclasses.dataclass(frozen=True)
class Exported(Split):
    """Training on a dataset is training on its split, bit for bit, for the seed it was exported with.

    A split, because a split is what decides which problems are met where: task, layout, model and all else stay as they
    are, and the records' `problem` goes through them anew. All seeds get the same problems, each its copy in memory. A
    table is passed in epochs, in an order of the seed; of a task without end the exported steps are met in turn, and
    then again. The digest of the dataset stands for its content in the digest of a run; the path does not count.
    """

    path: str = how("", "the directory of the dataset")
    digest: str = setting("", "of the dataset; if it is not said, that which the directory has")

    def __post_init__(self):
        super().__post_init__()
        if self.path and not self.digest:
            object.__setattr__(self, "digest", dataset.metadata(self.path)["digest"])

    def check(self, config) -> None:
        """Refuses a dataset of other problems than the config asks for, by the name of the setting that differs."""
        if not self.path:
            raise Refused("--split=exported needs --split.path, the directory that `python -m e2h.export` wrote.")
        about = dataset.metadata(self.path)
        if about["digest"] != self.digest:
            raise Refused(f"{self.path} holds the dataset {about['digest']}, not split.digest={self.digest}.")
        made = about["config"]
        if made["version"] != dataset.VERSION:
            raise Refused(f"{self.path} is of version {made['version']}, not {dataset.VERSION}; export it anew.")
        decides = [name for name in ("task", "curriculum", "batch_size") if name in made]
        now = json.loads(json.dumps(configs.identity(config)))
        drift = next(records.differences(*({name: x[name] for name in decides} for x in (made, now))), None)
        if drift:
            raise Refused(f"{self.path} was exported with {drift}; export it anew or change the flag.")
        self.source.check(dataclasses.replace(config, split=self.source))

    @property
    def source(self) -> Split:
        """The split that was exported."""
        return _source(self.path, self.digest) if self.path else Fraction()  # which `check` refuses

    @property
    def parts(self) -> tuple[str, ...]:
        return self.source.parts

    @property
    def unseen(self) -> tuple[str, ...]:
        return self.source.unseen

    @property
    def is_table(self) -> bool:
        return TRAIN in self.parts

    def difficulties(self, task, part) -> tuple[int, ...]:
        return self.source.difficulties(task, part)

    def batch_size(self, task, requested: int) -> int:
        return self.source.batch_size(task, requested)

    def blocks(self, task, part: str, size: int) -> int:
        return -(-_arrays(self, task)[part].counts_DxN.shape[1] // size)

    def prepare(self, task, seed) -> dict[str, Part]:
        del seed
        return jax.tree.map(jnp.asarray, _arrays(self, task))

    def drawn_at(self, step):
        return step if self.is_table else step % _steps(self.path, self.digest)

    def train(self, task, data, seed, step, row_B, batch_size, difficulty, capacity):
        del difficulty
        size = self.batch_size(task, batch_size)
        at_B, n = jnp.minimum(row_B, size - 1), data[TRAIN].counts_DxN.shape[1]
        if not self.is_table:
            at_B = self.drawn_at(step) * size + at_B
        elif size < n:
            at_B = in_epochs(seed, step, at_B, n, size, task.size)
        problems, counts_B = _at(task, data[TRAIN], 0, at_B, capacity)
        return problems, (counts_B & (row_B < size)).astype(jnp.float32)

    def test(self, task, data, seed, part, block, size, difficulty, capacity):
        del seed
        known = jnp.array(self.difficulties(task, part), jnp.int32)
        at_B, n = block * size + jnp.arange(size), data[part].counts_DxN.shape[1]
        problems, counts_B = _at(
            task, data[part], jnp.searchsorted(known, difficulty), jnp.minimum(at_B, n - 1), capacity
        )
        return problems, (counts_B & (at_B < n)).astype(jnp.float32)


def _at(task, part: Part, d, at_B, capacity: int) -> tuple[Problem, jax.Array]:
    """Problems of a part in the arrays of a capacity, and whether there is one."""
    p, a = task.shape(capacity)
    x = jax.tree.map(lambda stored: stored[d, at_B].astype(jnp.int32), part.problems)
    x = x._replace(prompt_PxC=x.prompt_PxC[:, :p], place_P=x.place_P[:, :p])
    return x._replace(answer_A=x.answer_A[:, :a], at_A=x.at_A[:, :a]), part.counts_DxN[d, at_B]


@functools.cache
def _source(path: str, digest: str) -> Split:
    del digest  # a key of the cache
    return configs.from_dict(dataset.metadata(path)["config"]["split"], "split")


@functools.cache
def _steps(path: str, digest: str) -> int:
    """How many training steps were exported."""
    del digest
    made = dataset.metadata(path)["config"]
    return -(-made["examples"] // made["batch_size"])


@functools.lru_cache(maxsize=2)
def _arrays(split: Exported, task) -> dict[str, Part]:
    """The dataset in memory (NumPy)."""
    hardest = max(d for part in (TRAIN, *split.parts) for d in split.difficulties(task, part))
    return {part: _part(split, task, part, hardest) for part in dict.fromkeys((TRAIN, *split.parts))}


def _part(split: Exported, task, part: str, hardest: int) -> Part:
    """A place without a problem holds one of a single token: what weighs nothing must still be computed with."""
    found = dataset.read(split.path, part)
    in_steps = part == TRAIN and not split.is_table
    row = {d: 0 if in_steps else i for i, d in enumerate(split.difficulties(task, part))}
    depth = max(row.values()) + 1
    width = max((int(record["index"]) + 1 for record in found), default=1)
    if in_steps:
        batch_size = dataset.metadata(split.path)["config"]["batch_size"]
        width = _steps(split.path, split.digest) * batch_size
    (p, a), channels = task.shape(hardest), task.channels
    x = Problem(
        prompt_PxC=np.zeros((depth, width, p, channels), np.int32),
        prompt_length=np.ones((depth, width), np.int32),
        answer_A=np.zeros((depth, width, a), np.int32),
        answer_length=np.ones((depth, width), np.int32),
        place_P=np.tile(np.arange(p, dtype=np.int32), (depth, width, 1)),
        at_A=np.zeros((depth, width, a), np.int32),
    )
    counts = np.zeros((depth, width), bool)
    for record in found:
        at, problem = (row[int(record["difficulty"])], int(record["index"])), record["problem"]
        n, m = len(problem["prompt"]), len(problem["answer"])
        x.prompt_PxC[at][:n], x.place_P[at][:n] = problem["prompt"], problem["place"]
        x.answer_A[at][:m], x.at_A[at][:m] = problem["answer"], problem["at"]
        x.prompt_length[at], x.answer_length[at], counts[at] = n, m, True
    return Part(Problem(*map(_narrow, x)), counts)


def _narrow(a: np.ndarray) -> np.ndarray:
    return a.astype(np.result_type(np.min_scalar_type(min(int(a.min()), -1)), np.min_scalar_type(int(a.max()))))
