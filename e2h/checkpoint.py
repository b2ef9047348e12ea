"""Saving and restoring a State. The only file that imports Orbax."""

import logging
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from e2h.registry import Refused

logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax narrates every save


class Checkpoints:
    """The checkpoints of one run. A context manager: leaving it waits for what is still being written."""

    def __init__(self, directory: pathlib.Path, keep: int = 2):
        self.directory = directory.absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, step_prefix=None)
        try:
            self.manager = ocp.CheckpointManager(self.directory, options=options)
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
        copy = jax.tree.map(lambda a: np.array(a), state)
        if not self.manager.save(step, args=ocp.args.StandardSave(copy), force=True):
            raise OSError(f"The checkpoint of step {step} was not written to {self.directory}.")

    def restore(self, template: Any) -> tuple[Any, list[str]]:
        """The newest whole state, or None, and one sentence for each newer checkpoint that had to be skipped.

        The tree, shapes and types must equal the template's: nothing is cast.
        """
        skipped = []
        abstract = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), template)
        for step in sorted(self.manager.all_steps(), reverse=True):
            try:
                state = self.manager.restore(step, args=ocp.args.StandardRestore(abstract))
            except Exception as error:  # whatever a half-written directory makes Orbax raise
                skipped.append(f"Skipped checkpoint {step}: it is not whole ({type(error).__name__}).")
                shutil.rmtree(self.directory / str(step), ignore_errors=True)
                self.manager.reload()
                continue
            _same(template, state, step)
            return jax.tree.map(jax.numpy.asarray, state), skipped
        return None, skipped


def _same(template, state, step: int) -> None:
    wanted, found = _described(template), _described(state)
    if wanted != found:
        odd = next((f"{w} became {f}" for w, f in zip(wanted, found, strict=False) if w != f), "another tree")
        raise Refused(f"Checkpoint {step} does not hold this run's state: {odd}.")


def _described(tree) -> list[str]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [f"{jax.tree_util.keystr(path)} {a.dtype}{list(a.shape)}" for path, a in leaves]
