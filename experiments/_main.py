"""What the experiments share: flags -> arms -> runs -> claims, figure and rows on disk.

An experiment is a module with
  base(scale, argv) -> Config          the protocol at a scale; argv only to see which components were asked for
  arms(config) -> {name: Config}       the grid of runs
  claims(rows) -> iterable of Claim    judged on the rows of all arms (column `arm`)
  figure(rows) -> Figure               drawn from the rows alone
  inspect(arm, config, state) -> DataFrame or None     optional: rows read off what an arm has learned, when it ends
  then(config, rows) -> {name: Config}                 optional: further runs, chosen by the rows of the first
  kept(rows) -> DataFrame                              optional: what of the rows is judged, drawn and stored
  simulate(config) -> DataFrame                        optional: rows of what the library's loop does not train
or, where the library's loop trains nothing (a closed form, a simulation of its own),
  base(scale, argv) -> Component       its settings
  simulate(settings) -> DataFrame      instead of `arms`; the same settings give the same rows
  QUICK                                flags for a simulation of seconds, for the tests
"""

import dataclasses
import io
import os
import pathlib
import pkgutil
import shlex
import sys
import time
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd

import experiments
from e2h import claims, config, figures, hosts, parallel, records
from e2h.config import Config
from e2h.registry import Component, Refused, setting
from e2h.run import AGAIN, Broken, Stopped, run, trained

SCALES = ("cpu", "paper")
RESULTS = pathlib.Path(__file__).parent / "results"
TOOLS = ("report", "benchmark")  # modules of this package that are no experiments
KEPT = ("arm", "seed", "step", "split", "difficulty", "problems", "exact", "reads", "right", "loss", "chance")


@dataclasses.dataclass(frozen=True)
class Options(Component):
    """How an experiment is launched."""

    scale: str = setting("cpu", "cpu: minutes on two cores; paper: the published protocol", choices=SCALES)
    runs: str = setting("runs", "where run directories are kept")
    results: str = setting(
        "auto", "where the outcome goes; auto: experiments/results, or runs if flags change anything"
    )
    platform: str = setting("any", "refuse to run on anything else", choices=("any", "cpu", "gpu", "tpu"))
    coordinator: str = setting(
        "", "ADDRESS:PORT of process 0 of several; auto: what a TPU VM, SLURM or Open MPI says; SLURM needs no flag"
    )
    num_processes: int = setting(0, "how many processes share the run; 0: what the cluster says", low=0)
    process_id: int = setting(-1, "which of them this is, from 0; -1: what the cluster says", low=-1)

    kind: ClassVar[str] = ""

    def __post_init__(self):
        super().__post_init__()
        for name in ("runs", "results"):
            if not getattr(self, name):
                raise Refused(f"--{name}= names no directory.")


def names() -> list[str]:
    """The experiments there are."""
    found = (m.name for m in pkgutil.iter_modules(experiments.__path__))
    return sorted(n for n in found if not n.startswith("_") and n not in TOOLS)


def main(module) -> None:
    """The command line of an experiment. Exits 2 for a refused request, 75 for `run me again`, 1 if training broke."""
    try:
        launch(module, sys.argv)
    except Refused as error:
        sys.exit(_say(error, 2))
    except Stopped as error:
        sys.exit(_say(error, AGAIN))
    except (Broken, OSError) as error:
        sys.exit(_say(error, 1))
    except (RuntimeError, ValueError) as error:
        if not hosts.tells_of_a_loss(error):
            raise
        _say(hosts.Lost(f"another process has gone; run all of them again. {str(error).splitlines()[0]}"), AGAIN)
        sys.stderr.flush()
        os._exit(AGAIN)  # the usual way out would wait for the lost one, and then die of it


def _say(error: Exception, code: int) -> int:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return code


def launch(module, argv: list[str]) -> pathlib.Path:
    """Runs an experiment and returns the directory of its outcome."""
    name = module.__spec__.name.rpartition(".")[2]
    scale = config.chosen(argv, "scale", "cpu")
    if scale not in SCALES:
        raise Refused(f"--scale={scale!r} is not one of {', '.join(SCALES)}.")
    base = module.base(scale, argv)
    chosen, options = config.parse_all(argv, base, Options())
    hosts.connect(options.coordinator, options.num_processes, options.process_id)
    hosts.require(options.platform)
    outcome = _outcome(name, chosen == module.base(scale, argv[:1]), chosen, options)
    gathered = _gather(module, name, chosen, base, pathlib.Path(options.runs), outcome)
    kept = module.kept(gathered.rows) if hasattr(module, "kept") else gathered.rows
    rows = pd.read_csv(io.StringIO(_written(kept)))  # claims and figure are of what is stored, to its last digit
    command = shlex.join(["python", "-m", f"experiments.{name}", *argv[1:]])
    judged = claims.document(name, scale, command, gathered.digests, gathered.wall_s, list(module.claims(rows)))
    if not hosts.leads():
        return outcome
    write(module, outcome, rows, judged)
    print(f"\n{name} at scale {scale}, {judged['wall_s']} s on {judged['device']}")
    print(claims.table(judged))
    written = (*sorted(outcome.iterdir()), *gathered.directories)
    print("\nWritten:", *(f"  {path}" for path in written), sep="\n")
    return outcome


class Gathered(NamedTuple):
    """What an experiment measured."""

    rows: pd.DataFrame
    digests: dict[str, str]
    wall_s: float
    directories: tuple[pathlib.Path, ...]


def _gather(module, name: str, chosen, base, runs: pathlib.Path, outcome: pathlib.Path) -> Gathered:
    """The rows of all arms, or of the simulation. Whatever can be refused is refused before anything is written."""
    if not isinstance(chosen, Config):
        hosts.lead(lambda: _check_writable(outcome))
        began = time.time()
        rows = module.simulate(chosen)
        return Gathered(rows, {name: config.digest(chosen)}, time.time() - began, ())
    hosts.lead(lambda: _check_writable(outcome))
    found = _run(module, _arms(module, chosen, base), runs / name)
    if hasattr(module, "then"):
        more = _run(module, module.then(chosen, found.rows), runs / name)
        found = Gathered(
            pd.concat([found.rows, more.rows]),
            found.digests | more.digests,
            found.wall_s + more.wall_s,
            found.directories + more.directories,
        )
    if hasattr(module, "simulate"):
        began = time.time()
        rows = pd.concat([found.rows, module.simulate(chosen)])
        found = found._replace(rows=rows, wall_s=found.wall_s + time.time() - began)
    return found


def _run(module, arms: dict[str, Config], runs: pathlib.Path) -> Gathered:
    """The rows of arms and of what is read off them."""
    for arm in arms.values():
        arm.check()
        parallel.check_devices(arm)
    digests = {arm: config.digest(c) for arm, c in arms.items()}
    directories = {arm: runs / digest for arm, digest in digests.items()}
    hosts.lead(lambda: [_check_writable(directory) for directory in directories.values()])
    rows = [store(run(c, directories[arm], f"{runs.name} {arm}").assign(arm=arm)) for arm, c in arms.items()]
    wall_s = hosts.lead(lambda: sum(records.wall_seconds(d) for d in directories.values()))
    began = time.time()
    if hasattr(module, "inspect"):
        rows += [module.inspect(arm, parallel.alone(c), trained(c, directories[arm])) for arm, c in arms.items()]
    return Gathered(pd.concat(rows), digests, wall_s + time.time() - began, tuple(directories.values()))


def _arms(module, chosen: Config, base: Config) -> dict[str, Config]:
    """The grid of runs, or `Refused` if it leaves a setting of the command line unused."""
    swapped = [n for n, part in chosen.components.items() if type(part) is not type(base.components[n])]
    try:
        arms = module.arms(chosen)
    except (AttributeError, TypeError):  # an arm changes a setting that the component in its place does not have
        if not swapped:
            raise
        raise Refused(f"This experiment cannot do with --{swapped[0]}={chosen.components[swapped[0]].name}.") from None
    for name, part in chosen.components.items():
        if part != base.components[name] and all(arm.components[name] != part for arm in arms.values()):
            raise Refused(f"No run of this experiment would use the --{name} settings that were given.")
    return arms


def _check_writable(directory: pathlib.Path) -> None:
    """Refuses what could not be made, without making it."""
    there = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise Refused(f"Cannot write to {directory}: {there} is no directory that may be written to.")


def _outcome(name: str, as_it_stands: bool, chosen, options: Options) -> pathlib.Path:
    if options.results != "auto":
        return pathlib.Path(options.results) / name / options.scale
    if as_it_stands:
        return RESULTS / name / options.scale
    return pathlib.Path(options.runs) / name / f"outcome-{config.digest(chosen)}"


def write(module, directory: pathlib.Path, rows: pd.DataFrame, judged: dict) -> None:
    """figure.png, claims.json and rows.csv."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rows.csv").write_text(_written(rows))
    figures.save(module.figure(rows), directory / "figure.png")
    claims.write(directory / "claims.json", judged)


def _written(rows: pd.DataFrame) -> str:
    """The rows as CSV, numbers to six digits."""
    return rows.to_csv(index=False, float_format="%.6g")


def store(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows and columns that an outcome keeps: evaluations and measures, without the online training scores."""
    varied = [c for c in rows.columns if "." in c]
    measured = [c for c in rows.columns if f"{c}_count" in rows.columns or c.endswith("_count")]
    kept = [c for c in (*KEPT, *varied, "right_teacher_forced", *measured) if c in rows.columns]
    rows = rows[rows["split"] != "online"][kept].reset_index(drop=True)
    one_read = "right" in rows and (rows["reads"] == rows["problems"])[rows["problems"] > 0].all()
    return rows.drop(columns=["reads", "right"]) if one_read else rows  # of one read a problem they say nothing more


def thin(rows: pd.DataFrame, *scores: float, points: int = 70) -> pd.DataFrame:
    """Of long curves the steps evenly spaced in their logarithm, and those that claims turn on.

    These are each seed's first step at a score, its highest score and its last step, of every part; a step is kept for
    all seeds (and cells of a grid) of an arm, so that medians can be drawn. Claims judged on these rows do not change.
    """
    who, curve = ["arm", "split", "seed", *(c for c in rows.columns if "." in c)], ["arm", "split", "step"]
    sums = rows.groupby([*who, "step"], sort=False, dropna=False)[["exact", "problems"]].sum().reset_index()
    share = sums["exact"] / sums["problems"].where(sums["problems"] > 0)
    by_curve = [sums[name] for name in who]
    highest = share.groupby(by_curve, dropna=False).transform("max")
    reached = (share == highest, *map(share.ge, scores))
    first = [here.groupby(by_curve, dropna=False).cumsum().eq(1) & here for here in reached]
    turns = [sums["step"] == sums.groupby(who, dropna=False)["step"].transform("max"), *first]
    even = np.geomspace(1, max(2, rows["step"].max()), points)
    steps = np.unique(rows["step"])
    turns.append(sums["step"].isin(steps[np.abs(np.log1p(steps)[:, None] - np.log1p(even)[None]).argmin(0)]))
    chosen = sums[np.logical_or.reduce(turns)][curve].drop_duplicates()
    return rows.merge(chosen, on=curve)
