"""Saving and restoring a State. The only file that imports Orbax."""

import logging
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from e2h import hosts
from e2h.registry import Refused

logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax narrates every save


class Checkpoints:
    """The checkpoints of one run. A context manager: leaving it waits for what is still being written."""

    def __init__(self, directory: pathlib.Path, keep: int = 2):
        self.directory = directory.absolute()
        # Of several processes the first alone opens checkpoints; Orbax would wait for the others.
        only = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}) if hosts.several() else None
        alone = {"multiprocessing_options": only} if only else {}
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=False, step_prefix=None, **alone)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # The handler is named: else the first directory that is read, whole or not, settles how all are read.
            self.manager = ocp.CheckpointManager(
                self.directory, None, options, item_handlers=ocp.StandardCheckpointHandler(**alone)
            )
        except OSError as error:
            raise Refused(f"Cannot keep checkpoints in {self.directory}: {error.strerror or error}.") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.manager.close()

    def save(self, step: int, state: Any) -> None:
        """Writes a state in the background. A copy is taken first: the next chunk may reuse its buffers."""
        if step in self.manager.all_steps():
            return
        if not self.manager.save(step, args=ocp.args.StandardSave(_flat(state)), force=True):
            raise OSError(f"The checkpoint of step {step} was not written to {self.directory}.")

    def restore(self, template: Any) -> tuple[Any, list[str]]:
        """The newest whole state, or None, and one sentence for each newer checkpoint that had to be skipped.

        The tree, shapes and types must equal the template's (which may be of shapes only): nothing is cast.
        """
        skipped, wanted = [], _by_path(template)
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                found = self.manager.restore(step, args=ocp.args.StandardRestore())  # given a template, Orbax casts
            except Exception as error:  # whatever a half-written directory makes Orbax raise
                aside = self.directory / f"{step}.not-whole"
                skipped.append(
                    f"Skipped checkpoint {step}: it is not whole ({type(error).__name__}), now {aside.name}."
                )
                shutil.rmtree(aside, ignore_errors=True)
                (self.directory / str(step)).rename(aside)
                self.manager.reload()
                continue
            _check_same(wanted, found, step)
            leaves = [jax.numpy.asarray(found[name]) for name in wanted]
            return jax.tree.unflatten(jax.tree.structure(template), leaves), skipped
        return None, skipped


def _flat(tree) -> dict[str, np.ndarray]:
    """Copies of the leaves by their paths. So saved, a tree is read back with the types that it was saved with."""
    return {path: np.array(a) for path, a in _by_path(tree).items()}


def _by_path(tree) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): a for path, a in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _check_same(wanted: dict, found: dict, step: int) -> None:
    for name in sorted({*wanted, *found}):
        want, have = (f"{t[name].dtype}{list(t[name].shape)}" if name in t else "nothing" for t in (wanted, found))
        if want != have:
            raise Refused(f"Checkpoint {step} does not hold this run's state: {name} is {have}, not {want}.")
