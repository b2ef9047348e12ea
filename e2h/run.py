"""The host loop: resume, chunk, record, evaluate, checkpoint. The only place with signals, progress and files."""

import collections
import contextlib
import math
import pathlib
import signal
import sys
import time

import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from e2h import evaluate, grid, hosts, parallel, records
from e2h.checkpoint import Checkpoints
from e2h.config import Config
from e2h.records import Records
from e2h.registry import Refused
from e2h.splits import TEST
from e2h.train import NEVER, State

AGAIN = 75  # exit code after SIGTERM: saved, run the same command again (EX_TEMPFAIL)
HELD = 3  # evaluations in a row that `until` must be reached at
MANY = 8  # members; of more, a line on the terminal shows the least, the median and the most
MIXTURE = 0  # the difficulty of a row over all difficulties that training drew


class Stopped(Exception):
    """SIGTERM came; the state is saved."""


class Broken(ArithmeticError):
    """A loss or a parameter is no longer finite."""


def run(config: Config, directory: pathlib.Path, label: str = "", progress: bool = True) -> pd.DataFrame:
    """Trains a population to `config.steps`, from the newest checkpoint in `directory` if there is one.

    Returns:
      The rows of the whole run, of earlier sessions too.

    Raises:
      Refused: for a config that does not fit together, this machine, or the directory. Nothing is half-written.
      Stopped: after SIGTERM; the same call continues.
      Broken: when something is not finite, with step, seed and last good checkpoint.
    """
    config.check()
    parallel.check_devices(config)
    directory, began, opened = pathlib.Path(directory), time.time(), []
    with contextlib.ExitStack() as open_, _sigterm() as asked_to_stop:
        hosts.lead(lambda: opened.extend(_open(directory, config, open_)))
        book, checkpoints = opened or (None, None)  # only of the process that leads
        loop = _Loop(config, directory, book, checkpoints, asked_to_stop, label, progress and hosts.leads())
        try:
            loop.run()
        finally:
            loop.bar.close()
            if book:
                records.add_wall_seconds(directory, time.time() - began)
        hosts.lead(open_.close)  # waits for the last checkpoint
    return records.parse(hosts.lead(lambda: records.text(directory)))


def _open(directory: pathlib.Path, config: Config, open_: contextlib.ExitStack) -> tuple[Records, Checkpoints]:
    book = Records(directory, config)
    open_.callback(book.close)
    return book, open_.enter_context(Checkpoints(directory / "checkpoints"))


def trained(config: Config, directory: pathlib.Path) -> State:
    """The last saved state of a run, to look into what it learned: of the population, with a leading member axis.

    Each process has all of it.

    Raises:
      Refused: if there is none, or it is of another config.
    """
    found = []

    def restore():
        with Checkpoints(pathlib.Path(directory) / "checkpoints") as checkpoints:
            state, _ = checkpoints.restore(parallel.shapes(config))
        if state is None:
            raise Refused(f"{directory} holds no checkpoint.")
        found.append(state)

    hosts.lead(restore)
    return parallel.adopt(parallel.alone(config), *(found or (None,)))


@contextlib.contextmanager
def _sigterm():
    """A callable that says whether SIGTERM came while the context was open."""
    came = []
    old = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.suppress(ValueError):  # not the main thread: whoever runs us handles signals
            signal.signal(signal.SIGTERM, lambda *_: came.append(True))
        yield lambda: bool(came)
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, old)


class _Loop:
    """One session of a run."""

    postfix = ""
    arrived = 0  # evaluations in a row at which `until` was reached

    def __init__(self, config, directory, book, checkpoints, asked_to_stop, label: str, progress: bool):
        self.config, self.directory, self.asked_to_stop = config, directory, asked_to_stop
        self.book, self.checkpoints = book, checkpoints
        self.members, self.data = parallel.members(config), parallel.prepare(config)
        self.who = grid.members(config)
        self.chunk, self.last_good = parallel.chunk(config), "none"
        self.label, self.say = label, tqdm.write if progress else lambda _: None
        self.bar = tqdm(total=config.steps, desc=label, disable=not (progress and sys.stderr.isatty()))

    def run(self) -> None:
        state = self.begin()
        step = int(state.step)
        self.bar.update(step)
        while not self.ended(step):
            every = self.config.record_every
            stop = min(step - step % every + every, self.config.steps)
            state, totals = self.chunk(self.data, self.members, state, stop)
            self.record(stop, parallel.fetch(self.config, totals))
            self.bar.update(stop - step)
            step = stop
            if self.is_evaluated(step):
                self.evaluate(step, state.params)
            asked = hosts.any_of(self.asked_to_stop())  # once: it may come at any moment, and to any process
            stopping = asked and not self.ended(step)
            if step % self.config.checkpoint_every == 0 or self.ended(step) or stopping:
                self.save(step, state)
            if stopping:
                raise Stopped(f"SIGTERM: saved at step {step}; the same command continues.")

    def is_evaluated(self, step: int) -> bool:
        early = step <= self.config.evaluate_early
        return early or step % self.config.evaluate_every == 0 or step == self.config.steps

    def ended(self, step: int) -> bool:
        return step >= self.config.steps or self.arrived >= HELD

    def begin(self):
        """The state to go on from; a fresh one is evaluated and saved at step 0."""
        found = []
        told = hosts.lead(lambda: self.take_up(found))
        if told is not None:
            self.last_good, self.arrived = told
            state = parallel.adopt(self.config, *(found or (None,)))
            params = parallel.fetch(self.config, state.params)
            self.halt_if_broken(~_finite(params), self.last_good)  # it may have been saved with --nohalt
            return state
        fresh = parallel.init(self.config)
        self.evaluate(0, fresh.params)
        self.save(0, fresh)
        return fresh

    def take_up(self, found: list) -> tuple[int, int] | None:
        """Finds the newest whole checkpoint, and what its rows say: (step, arrivals in a row), or None without one."""
        state, skipped = self.checkpoints.restore(parallel.shapes(self.config))
        for sentence in skipped:
            self.say(sentence)
        if state is None:
            self.book.resume(-1)
            return None
        found.append(state)
        step = int(state.step)
        self.book.require_rows(step)
        self.book.resume(step)
        for _, rows in records.read(self.book.directory).groupby("step"):
            self.count_arrival(rows.to_dict("records"))
        return step, self.arrived

    def save(self, step: int, state) -> None:
        params, opt_state = parallel.fetch(self.config, (state.params, state.opt_state))
        hosts.lead(lambda: self.write(step, State(params, opt_state, np.int32(step))))
        self.last_good = step

    def write(self, step: int, state) -> None:
        self.book.secure()  # rows first: a checkpoint never stands without the rows up to it
        self.checkpoints.save(step, state)

    def record(self, step: int, totals) -> None:
        self.halt_if_broken(totals.broken_at < NEVER, np.minimum(totals.broken_at, step - 1) + 1)
        rows = []
        for i, member in enumerate(self.who):
            score = jax.tree.map(lambda a, i=i: float(a[i]), totals.score)
            rows.append(self.row(member, step, "online", MIXTURE, score, {}))
        hosts.lead(lambda: self.book.append(rows))
        exact = totals.score.exact.sum() / max(totals.score.problems.sum(), 1)
        self.bar.set_postfix_str(f"train {exact:.3f}{self.postfix}")

    def halt_if_broken(self, broken_S, step) -> None:
        if broken_S.any() and self.config.halt:
            seed, cell = self.who[int(np.argmax(broken_S))]
            at = int(np.broadcast_to(step, broken_S.shape)[np.argmax(broken_S)])
            where = "".join(f", {name}={value:g}" for name, value in cell.items())
            raise Broken(
                f"Not finite: seed {seed}{where} at step {at}. Last good checkpoint: step {self.last_good} in "
                f"{self.directory.absolute() / 'checkpoints'}."
            )

    def evaluate(self, step: int, params) -> None:
        measured = {}
        if self.config.measures:
            measured = parallel.measure(self.config)(self.data, self.members, params, step)
            measured = parallel.fetch(self.config, measured)
        rows = [
            self.row(member, step, "measured", MIXTURE, None, _columns(measured, i))
            for i, member in enumerate(self.who)
            if measured
        ]
        for part, capacity, difficulties in evaluate.sweeps(self.config):
            cells = parallel.sweep(self.config, part, capacity)(self.data, self.members, params, difficulties)
            cells = parallel.fetch(self.config, cells)
            if part not in self.config.split.unseen:  # far out, an overflow is an answer: a wrong one
                self.halt_if_broken(~np.isfinite(cells.score.loss).all(1), step)
            rows += self.evaluated(step, part, difficulties, cells)
        hosts.lead(lambda: self.book.append(rows))
        self.count_arrival(rows)
        seen = [r for r in rows if r["split"] == TEST]
        total = sum(r["problems"] for r in seen)
        self.postfix = f", test {sum(r['exact'] for r in seen) / total:.3f}" if total else ""
        self.say(f"{self.label} step {step:>6}  {summary(rows)}")

    def count_arrival(self, rows: list[dict]) -> None:
        """Counts the evaluations in a row at which every member has scored `until` on the in-distribution test."""
        right, of = collections.Counter(), collections.Counter()
        for row in rows:
            if row["split"] == TEST and row["problems"]:
                who = tuple(row[name] for name in ("seed", *grid.axes(self.config)))
                right[who] += row["exact"]
                of[who] += row["problems"]
        if of:
            here = all(right[who] >= self.config.until * of[who] for who in of)
            self.arrived = self.arrived + 1 if here else 0

    def evaluated(self, step: int, part: str, difficulties, cells) -> list[dict]:
        rows = []
        for i, member in enumerate(self.who):
            for j, difficulty in enumerate(difficulties):
                cell = jax.tree.map(lambda a, i=i, j=j: float(a[i, j]), cells)
                more = {"commonest": cell.commonest, **cell.complexity._asdict()}
                rows.append(self.row(member, step, part, difficulty, cell.score, more))
        return rows

    def row(self, member: tuple[int, dict], step: int, split: str, difficulty: int, score, more: dict) -> dict:
        seed, cell = member
        row = {"seed": seed, **cell, "step": step, "split": split, "difficulty": difficulty, "problems": 0.0}
        if score is not None:
            right = "right_teacher_forced" if self.config.layout.generates else "right"
            row |= {"problems": score.problems, "exact": score.exact, "reads": score.reads, right: score.right}
            row["loss"] = score.loss
        if difficulty:
            distinct = self.config.task.distinct(difficulty)
            row |= {"chance": self.config.task.chance(difficulty)}
            row |= {"distinct": float(distinct) if distinct.bit_length() < 1024 else math.inf}
        return row | more


def _finite(params) -> np.ndarray:
    """bool [S]: whether all parameters of a member are finite."""
    return np.all([np.isfinite(a).reshape(len(a), -1).all(1) for a in map(np.asarray, jax.tree.leaves(params))], axis=0)


def summary(rows: list[dict]) -> str:
    """The exact match of every member on every part, as one line; of many members least, median and most."""
    frame = pd.DataFrame([row for row in rows if row["problems"]])
    who = ["split", "seed", *(c for c in frame.columns if "." in c)]
    sums = frame.groupby(who, sort=False)[["exact", "problems"]].sum()
    parts = (sums["exact"] / sums["problems"]).groupby("split", sort=False)
    return "  ".join(f"{part} {_written(list(scores))}" for part, scores in parts)


def _written(scores: list[float]) -> str:
    if len(scores) > MANY:
        return f"{min(scores):.3f} {np.median(scores):.3f} {max(scores):.3f}"
    return " ".join(f"{v:.3f}" for v in scores)


def _columns(measured: dict, i: int) -> dict[str, float]:
    """Of each measure two columns: its sum under its name, and its count."""
    return {k: float(s[i]) for k, (s, _) in measured.items()} | {
        f"{k}_count": float(c[i]) for k, (_, c) in measured.items()
    }
