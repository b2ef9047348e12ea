"""Several processes, one run: who they are, and how they agree. The only file that asks which process this is.

All processes compute the same; process 0 leads: it alone touches the run's directory, and what it read or could not
write is told to the others. So the processes need no common file system, and none waits for one that has given up.
Alone, a process leads, and everything here is a plain call.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from e2h.registry import Refused

SECONDS = 50  # that processes wait for each other, at the start and at the end
LOSSES = ("Gloo", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED")  # in what a collective then raises
SILENCE = 30  # seconds without a sign of life after which a process counts as lost


class Lost(OSError):
    """Another process has gone."""


def connect(coordinator: str, processes: int, number: int) -> None:
    """Joins the processes of one run, before anything is computed. Does nothing for a process alone.

    Args:
      coordinator: address:port of process 0; `auto` for what a TPU VM, SLURM or Open MPI says; or `` for `auto` where
        SLURM has started several tasks, and else one process alone.
      processes: how many there are; 0 for what the cluster says.
      number: which of them this is; -1 for what the cluster says.

    Raises:
      Refused: for a request that says too little, an address that cannot be bound, or processes that do not come.
    """
    if not coordinator:
        if processes or number >= 0:
            raise Refused("--num_processes and --process_id need --coordinator=ADDRESS:PORT of process 0.")
        if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
            return
    given = {}
    if coordinator not in ("", "auto"):
        if ":" not in coordinator or processes < 1 or not 0 <= number < processes:
            raise Refused(
                f"--coordinator={coordinator} takes ADDRESS:PORT, with --num_processes=N and --process_id in 0..N-1."
            )
        _meet(coordinator, processes, number)
        given = dict(coordinator_address=coordinator, num_processes=processes, process_id=number)
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            **given,
            initialization_timeout=SECONDS,
            heartbeat_timeout_seconds=SILENCE,
            shutdown_timeout_seconds=SECONDS,
        )
    except (RuntimeError, ValueError) as error:  # of a port in use, of others that do not come, of no cluster
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Refused(f"The processes could not meet at {coordinator or 'auto'}: {reason}") from None


def _meet(coordinator: str, processes: int, number: int) -> None:
    """Returns when all processes have come. JAX dies of a port in use, and of others that do not come.

    Raises:
      Refused: for an address that cannot be bound, or when somebody does not come in time.
    """
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + SECONDS
    try:
        if number == 0:
            with (
                contextlib.closing(socket.create_server(("", int(port)))) as listener,
                contextlib.ExitStack() as guests,
            ):
                missing = set(range(1, processes))
                while missing:
                    listener.settimeout(max(0.01, end - time.monotonic()))
                    guest = guests.enter_context(listener.accept()[0])
                    guest.settimeout(5)
                    missing.discard(int.from_bytes(guest.recv(4)))
        else:
            with _knock(host, int(port), end) as door:
                door.sendall(number.to_bytes(4))
                door.settimeout(max(0.01, end - time.monotonic()))
                door.recv(1)  # which ends when process 0 goes on
    except TimeoutError:
        who = "process 0" if number else f"process {', '.join(map(str, sorted(missing)))}"
        raise Refused(f"--coordinator={coordinator}: {who} did not come within {SECONDS} s.") from None
    except (OSError, ValueError, OverflowError) as error:
        raise Refused(f"--coordinator={coordinator}: {error}.") from None


def _knock(host: str, port: int, end: float) -> socket.socket:
    """A connection to process 0, which may not be there yet."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=5)
        except (ConnectionError, TimeoutError):
            if time.monotonic() > end:
                raise TimeoutError from None
            time.sleep(0.2)


def require(platform: str) -> None:
    """Raises `Refused` unless the devices are `cpu`, `gpu` or `tpu`, as asked; `any` asks for nothing."""
    if platform == "any":
        return
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        found = f"none: {str(error).splitlines()[0]}"
    if found != platform:
        raise Refused(f"--platform={platform}, but the devices of this process are {found}.")


def several() -> bool:
    return jax.process_count() > 1


def tells_of_a_loss(error: Exception) -> bool:
    """Whether it was raised since another process has gone. JAX has no type of its own for that."""
    return several() and any(word in str(error) for word in LOSSES)


def leads() -> bool:
    """Whether this process is the one that reads and writes."""
    return jax.process_index() == 0


def lead(work: Callable[[], Any]) -> Any:
    """What `work()` gives to process 0, which alone runs it, on every process. It must be plain JSON data.

    Raises:
      Refused, OSError: on every process, if it was raised there.
    """
    if not several():
        return work()
    said = {}
    if leads():
        try:
            said = {"value": work()}
        except Refused as error:
            said = {"refused": str(error)}
        except OSError as error:
            said = {"failed": str(error)}
    said = json.loads(_tell(json.dumps(said).encode()))
    if "refused" in said:
        raise Refused(said["refused"])
    if "failed" in said:
        raise OSError(said["failed"])
    return said["value"]


def arrays(tree):
    """Process 0's arrays (NumPy), on every process. The others give arrays of the same shapes and types."""
    return multihost_utils.broadcast_one_to_all(tree) if several() else tree


def gathered(tree):
    """The whole arrays (NumPy), of which each process holds a part: along the first axis, or as a sharding says."""
    return multihost_utils.process_allgather(tree, tiled=True)


def devices(count: int) -> list[jax.Device]:
    """`count` devices of the run, as many from each process, process by process."""
    each, found = count // jax.process_count(), []
    for number in range(jax.process_count()):
        found += [device for device in jax.devices() if device.process_index == number][:each]
    return found


def part(tree):
    """This process's share of arrays whose first axis is divided among the processes, in their order."""
    number, of = jax.process_index(), jax.process_count()
    return jax.tree.map(lambda a: a[len(a) // of * number : len(a) // of * (number + 1)], tree)


def any_of(flag: bool) -> bool:
    """Whether it is true on any process."""
    return bool(multihost_utils.process_allgather(np.array(flag)).any()) if several() else flag


def _tell(text: bytes) -> bytes:
    """Process 0's text. Lengths are rounded up, since each compiles a program of its own."""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    room = np.zeros(max(1024, 1 << (size - 1).bit_length()), np.uint8)
    if leads():
        room[:size] = np.frombuffer(text, np.uint8)
    return bytes(multihost_utils.broadcast_one_to_all(room))[:size]
