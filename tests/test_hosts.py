"""Several processes that share a run: as one process, resumed by another number of them, and never a hang."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from e2h import hosts, records
from e2h.registry import Refused

TINY = ["--task=modular", "--task.p=7", "--model.hidden=8", "--seeds=4", "--batch_size=10", "--measures=weight_norm"]
TINY += ["--record_every=5", "--evaluate_every=10", "--checkpoint_every=20"]
BOTH = ["--mapping=shard_map", "--shard=both", "--devices=4"]
ENDS = {}


def start(where, flags, virtual, *more):
    """A process of `experiments.train` on so many virtual devices."""
    env = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS=f"--xla_force_host_platform_device_count={virtual}")
    command = [
        sys.executable,
        "-m",
        "experiments.train",
        *TINY,
        *flags,
        f"--runs={where}/runs",
        f"--results={where}/out",
    ]
    return subprocess.Popen([*command, *more], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(processes):
    """Exit codes and output of each. None may run on for longer than the limit."""
    found = []
    with contextlib.ExitStack() as end:
        for process in processes:
            end.callback(process.kill)
        for process in processes:
            output, _ = process.communicate(timeout=120)
            found.append((process.returncode, output))
    return found


def together(where, flags, virtual=2):
    """Two processes, of which only the first may touch the directory: the second is given another."""
    joined = [f"--coordinator=127.0.0.1:{free_port()}", "--num_processes=2"]
    return finish([start(f"{where}{i}", flags, virtual, *joined, f"--process_id={i}") for i in range(2)])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def rows_of(where):
    (directory,) = (where / "runs" / "train").iterdir()
    return records.read(directory)


def close(found: pd.DataFrame, wanted: pd.DataFrame):
    keys = ["seed", "step", "split", "difficulty"]
    assert not found.duplicated(keys).any()
    found, wanted = (rows.set_index(keys).sort_index() for rows in (found, wanted))
    assert list(found.index) == list(wanted.index)
    for name in ("loss", "exact", "weight_norm"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_two_processes_train_as_one_and_one_continues_what_two_began(tmp_path):
    """Fifty steps on a mesh of two by two: in one process; in two; twenty in two, the rest in one."""
    (alone,) = finish([start(tmp_path / "alone", [*BOTH, "--steps=50"], 4)])
    assert alone[0] == 0, alone[1]
    ends = together(tmp_path / "both", [*BOTH, "--steps=50"])
    assert [code for code, _ in ends] == [0, 0], ends
    assert not (tmp_path / "both1").exists() and "step" in ends[0][1] and "step" not in ends[1][1]
    close(rows_of(tmp_path / "both0"), rows_of(tmp_path / "alone"))
    assert (tmp_path / "both0" / "out" / "train" / "cpu" / "figure.png").exists()
    assert [code for code, _ in together(tmp_path / "begun", [*BOTH, "--steps=20"])] == [0, 0]
    (rest,) = finish([start(tmp_path / "begun0", ["--steps=50"], 1)])
    assert rest[0] == 0, rest[1]
    close(rows_of(tmp_path / "begun0"), rows_of(tmp_path / "alone"))


def test_two_processes_with_pmap_continue_what_one_began(tmp_path):
    (begun,) = finish([start(tmp_path / "run0", ["--steps=20"], 1)])
    assert begun[0] == 0, begun[1]
    ends = together(tmp_path / "run", ["--steps=30", "--mapping=pmap", "--devices=2"], virtual=1)
    assert [code for code, _ in ends] == [0, 0], ends
    finish([start(tmp_path / "alone", ["--steps=30"], 1)])
    close(rows_of(tmp_path / "run0"), rows_of(tmp_path / "alone"))


def test_what_one_process_cannot_do_ends_both(tmp_path):
    """A directory that process 0 cannot make; a mapping that does not fit."""
    (tmp_path / "run0").write_text("in the way")
    ends = together(tmp_path / "run", ["--steps=5", "--mapping=shard_map", "--devices=2"], virtual=1)
    assert [code for code, _ in ends] == [2, 2] and all("run0" in said for _, said in ends), ends
    ends = together(tmp_path / "jit", ["--steps=5"], virtual=1)
    assert [code for code, _ in ends] == [2, 2] and all("multiple of 2" in said for _, said in ends), ends


@pytest.mark.parametrize(
    "request_, sentence",
    [
        (("", 2, 0), "need --coordinator"),
        (("somewhere", 2, 0), "takes ADDRESS:PORT"),
        (("here:1", 2, 2), "takes ADDRESS:PORT"),
        (("here:port", 2, 0), "here:port"),
    ],
)
def test_a_request_that_says_too_little_is_refused(request_, sentence):
    with pytest.raises(Refused, match=sentence):
        hosts.connect(*request_)


def test_a_port_in_use_is_refused():
    with socket.create_server(("", 0)) as taken, pytest.raises(Refused, match="in use"):
        hosts.connect(f"127.0.0.1:{taken.getsockname()[1]}", 2, 0)


@pytest.mark.parametrize("number", [0, 1])
def test_who_waits_for_nobody_gives_up(number, monkeypatch):
    monkeypatch.setattr(hosts, "SECONDS", 1)
    with pytest.raises(Refused, match=f"process {1 - number} did not come within 1 s"):
        hosts.connect(f"127.0.0.1:{free_port()}", 2, number)


def test_a_process_that_loses_the_other_ends_soon_and_asks_to_be_run_again(tmp_path):
    joined = [f"--coordinator=127.0.0.1:{free_port()}", "--num_processes=2", "--mapping=shard_map", "--devices=2"]
    joined += ["--steps=1000000", "--checkpoint_every=5"]
    both = [start(tmp_path / f"run{i}", joined, 1, f"--process_id={i}") for i in range(2)]
    with contextlib.ExitStack() as end:
        for process in both:
            end.callback(process.kill)
        began = time.monotonic()
        while not list(tmp_path.glob("run0/runs/train/*/checkpoints/5")):
            assert time.monotonic() - began < 100 and both[0].poll() is None, both[0].communicate()
            time.sleep(0.2)
        both[1].kill()
        both[1].communicate()
        output, _ = both[0].communicate(timeout=60)
    assert both[0].returncode == 75 and "another process has gone" in output, output


def test_another_platform_is_refused():
    hosts.require("any")
    hosts.require("cpu")
    with pytest.raises(Refused, match="--platform=tpu, but the devices of this process are cpu"):
        hosts.require("tpu")


def test_a_process_alone_leads_and_asks_nobody():
    assert hosts.leads() and not hosts.several() and hosts.lead(lambda: {"a": 1}) == {"a": 1}
    assert hosts.any_of(True) and not hosts.any_of(False)
    with pytest.raises(OSError, match="full"):
        hosts.lead(lambda: (_ for _ in ()).throw(OSError("disk full")))
