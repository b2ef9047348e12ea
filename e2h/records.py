"""A run's directory: config.json, env.json, rows.jsonl, lock, checkpoints/, TensorBoard events."""

import contextlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import subprocess
import time

import jax
import pandas as pd
from tensorboardX import SummaryWriter

from e2h import config as configs
from e2h.config import Config
from e2h.registry import Refused

try:
    import fcntl
except ImportError:  # on Windows, where two sessions in one directory go unnoticed
    fcntl = None

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Records:
    """The open directory of one run, which no other session may open before it is closed."""

    def __init__(self, directory: pathlib.Path, config: Config):
        """Creates the directory, or takes up an old one of the same config.

        Raises:
          Refused: if the directory holds a run of another config, naming the field, is in use, or cannot be written.
        """
        self.directory, self.config, self.rows_file = directory, config, None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as lock:  # let go of if what follows refuses
                lock.enter_context(_locked(directory))
                self._check_config()
                self._stamp()
                self.lock = lock.pop_all()
        except OSError as error:
            raise Refused(f"Cannot write to {directory}: {error.strerror or error}.") from None

    def _check_config(self) -> None:
        path = self.directory / "config.json"
        now = json.loads(json.dumps(configs.identity(self.config)))
        if path.exists():
            try:
                before = json.loads(path.read_text())["identity"]
            except (ValueError, KeyError):
                raise Refused(f"{path} is damaged; remove {self.directory} or choose another.") from None
            drift = next(differences(before, now), None)
            if drift:
                raise Refused(f"{self.directory} holds a run with {drift}; choose another directory.")
        write_atomically(path, json.dumps({"identity": now, "config": configs.to_dict(self.config)}, indent=1))

    def _stamp(self) -> None:
        path = self.directory / "env.json"
        try:
            sessions = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):  # it only informs: a damaged one is begun anew
            sessions = []
        write_atomically(path, json.dumps([*sessions, environment(self.config)], indent=1))

    def require_rows(self, step: int) -> None:
        """Raises `Refused` if the rows end before a checkpoint's step: a run is not built upon half of its rows."""
        path = self.directory / "rows.jsonl"
        if max((_step(path, i, line) for i, line in enumerate(_lines(path), 1)), default=-1) < step:
            raise Refused(f"{path} ends before the checkpoint of step {step}: it was cut; remove {self.directory}.")

    def resume(self, step: int) -> None:
        """Opens rows.jsonl for appending, without the rows after `step` (-1: without any)."""
        path = self.directory / "rows.jsonl"
        steps = [_step(path, i, line) for i, line in enumerate(_lines(path), 1)]
        kept = [line for line, at in zip(_lines(path), steps, strict=True) if at <= step]
        write_atomically(path, "".join(kept))
        self.rows_file = path.open("a")
        purge = {"purge_step": step + 1} if step >= 0 else {}
        self.events = SummaryWriter(str(self.directory), **purge)

    def append(self, rows: list[dict]) -> None:
        """Adds rows and, seed by seed, their scores as TensorBoard scalars."""
        finite = ({k: None if v != v or v in (math.inf, -math.inf) else v for k, v in row.items()} for row in rows)
        self.rows_file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in finite))
        self.rows_file.flush()
        for row in rows:
            where = f"{row['split']}/{row['difficulty']}" if row["difficulty"] else row["split"]
            cell = "".join(f"/{name}={value:g}" for name, value in row.items() if "." in name)
            if row["problems"]:
                tag = f"exact/{where}{cell}/seed{row['seed']}"
                self.events.add_scalar(tag, row["exact"] / row["problems"], row["step"])

    def secure(self) -> None:
        """What has been appended survives a crash of the machine from here on."""
        os.fsync(self.rows_file.fileno())

    def close(self) -> None:
        if self.rows_file:
            self.rows_file.close()
            self.events.close()
        self.lock.close()


def read(directory: pathlib.Path) -> pd.DataFrame:
    """The rows of a run: one per (seed, step, split, difficulty), sums and counts as columns."""
    return parse(text(directory))


def text(directory: pathlib.Path) -> str:
    """The whole lines of a run's rows.jsonl."""
    return "".join(_lines(pathlib.Path(directory) / "rows.jsonl"))


def parse(text: str) -> pd.DataFrame:
    return pd.DataFrame([json.loads(line) for line in text.splitlines()])


def wall_seconds(directory: pathlib.Path) -> float:
    """Seconds that all sessions of a run took together."""
    return sum(s.get("wall_s", 0.0) for s in json.loads((pathlib.Path(directory) / "env.json").read_text()))


def add_wall_seconds(directory: pathlib.Path, seconds: float) -> None:
    """Notes how long the newest session has taken."""
    path = directory / "env.json"
    sessions = json.loads(path.read_text())
    sessions[-1]["wall_s"] = round(seconds, 3)
    write_atomically(path, json.dumps(sessions, indent=1))


def environment(config: Config) -> dict:
    """Versions, device and numerics of this process."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "versions": versions(),
        "device": device(),
        "devices": config.devices,
        "mapping": config.mapping,
        "precision": config.precision,
        "compute_dtype": config.compute_dtype,
        "threefry_partitionable": bool(jax.config.jax_threefry_partitionable),
        "commit": commit(),
    }


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def device() -> str:
    """Kind of the device, and for a CPU how many cores this process may use."""
    kind = jax.local_devices()[0].device_kind
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # not on macOS
    return f"{kind}, {cores} cores" if jax.default_backend() == "cpu" else kind


def commit() -> str:
    """The commit of the source tree, marked if it has changes, or `unknown` outside a repository."""
    try:
        head, changes = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "--", "*.py")
    except OSError:
        return "unknown"
    return (head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")) if not head.returncode else "unknown"


def _git(*args: str) -> subprocess.CompletedProcess:
    where = str(pathlib.Path(__file__).parent)
    return subprocess.run(["git", "-C", where, *args], capture_output=True, text=True, check=False)


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Replaces a file as a whole: a reader, or a crash, finds the old text or the new."""
    half = path.with_name(path.name + ".half")
    with half.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def _locked(directory: pathlib.Path):
    """An open file that no other session has locked. The system lets go of it however the process ends."""
    file = (directory / "lock").open("ab")
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise Refused(f"Another session is at work in {directory}; wait for it or choose another directory.") from None
    except OSError:  # a file system that cannot lock
        pass
    return file


def _lines(path: pathlib.Path) -> list[str]:
    """The whole lines of a file; a last line that was cut off is left out."""
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _step(path: pathlib.Path, number: int, line: str) -> int:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        raise Refused(f"{path}, line {number}, is damaged; remove {path.parent} to begin anew.") from None


def differences(before: dict, now: dict, prefix: str = ""):
    """`name=old, not new` for each setting in which two identities differ."""
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name, "nothing"), now.get(name, "nothing")
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}={old}, not {new}".replace(".name=", "=")
