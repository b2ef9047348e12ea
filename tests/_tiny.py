"""Tiny runs that tests share: a finite table and a range of lengths, on networks of a few units."""

import dataclasses
import functools

from e2h import parallel
from e2h.config import Config
from e2h.layouts.query import Query
from e2h.models.mlp import MLP
from e2h.models.rnn import RNN
from e2h.optimizers.adamw import AdamW
from e2h.splits.length import Length
from e2h.tasks.modular import Modular
from e2h.tasks.parity import Parity

COMMON = dict(optimizer=AdamW(learning_rate=0.01), seeds=2, test_size=32, steps=20, record_every=5, evaluate_every=10)
TABLE = Config(task=Modular(p=5), model=MLP(hidden=(8,)), batch_size=5, checkpoint_every=10, **COMMON)
LENGTH = Config(
    task=Parity(),
    split=Length(train_max=6, test_max=9, test_every=2),
    layout=Query(),
    model=RNN(width=4),
    batch_size=4,
    buckets=2,
    checkpoint_every=10,
    **COMMON,
)

replace = dataclasses.replace
init = functools.cache(parallel.init)  # no program donates its inputs, so one state serves many tests
prepare = functools.cache(parallel.prepare)


def train(config: Config, *stops: int):
    """(state, [totals of each chunk]) after chunks that end at `stops`."""
    state, totals = init(config), []
    for stop in stops:
        state, total = parallel.chunk(config)(prepare(config), parallel.seeds(config), state, stop)
        totals.append(total)
    return state, totals
