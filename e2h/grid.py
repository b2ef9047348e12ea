"""A grid of settings as one population: every combination of values, for every seed, in one compiled program.

`--grid=optimizer.weight_decay=0:1,split.train_fraction=.3:.5` trains four cells. A cell's settings are traced numbers,
so that the cells share their shapes; what decides a shape (a width, a number of layers) cannot be in a grid.
"""

import copy
import dataclasses
import itertools

import numpy as np

from e2h import registry
from e2h.registry import Component, Refused

Cell = dict[str, float]  # setting -> value


def axes(config) -> dict[str, tuple[float, ...]]:
    """Setting -> its values, in the order given.

    Raises:
      Refused: for an entry that is no `setting=value:value`, or a setting that cannot differ within a program.
    """
    found: dict[str, tuple[float, ...]] = {}
    for entry in config.grid:
        name, equals, values = entry.partition("=")
        _check(config, name)
        if name in found:
            raise Refused(f"--grid names {name} twice.")
        try:
            found[name] = tuple(float(v) for v in values.split(":"))
        except ValueError:
            raise Refused(f"--grid takes setting=value:value:..., and {entry!r} is none.") from None
        if not equals or len(set(found[name])) < len(found[name]):
            raise Refused(f"--grid={entry} names a value twice.")
    return found


def cells(config) -> tuple[Cell, ...]:
    """Every combination of values; one empty cell without a grid."""
    found = axes(config)
    return tuple(dict(zip(found, values, strict=True)) for values in itertools.product(*found.values()))


def members(config) -> list[tuple[int, Cell]]:
    """(seed, cell) of each member of the population, cell by cell."""
    return [(seed, cell) for cell in cells(config) for seed in config.seed_range]


def columns(config) -> dict[str, np.ndarray]:
    """Setting -> its value for each member, float32 [M]."""
    return {name: np.array([cell[name] for _, cell in members(config)], np.float32) for name in axes(config)}


def at(config, cell: Cell):
    """The plain config of one cell."""
    for name, value in cell.items():
        config = _replaced(config, name.split("."), value)
    return dataclasses.replace(config, grid=())


def splits(config) -> list[Component]:
    """The split of every cell, with plain numbers also where the rest of the config is bound to traced ones."""
    found = []
    for cell in cells(config):
        split = config.split
        for name, value in cell.items():
            if name.startswith("split."):
                split = _replaced(split, name.split(".")[1:], value)
        found.append(split)
    return found


def bind(config, values):
    """A config in which the named settings are traced numbers. It cannot be hashed or compared, only computed with."""
    for name, value in values.items():
        config = _bound(config, name.split("."), value)
    return config


def _replaced(component, path, value):
    first, *rest = path
    value = _replaced(getattr(component, first), rest, value) if rest else value
    return dataclasses.replace(component, **{first: value})


def _bound(component, path, value):
    first, *rest = path
    bound = copy.copy(component)  # past the type check of a new component
    object.__setattr__(bound, first, _bound(getattr(component, first), rest, value) if rest else value)
    return bound


def _check(config, name: str) -> None:
    component, path = config, name.split(".")
    for part in path[:-1]:
        component = getattr(component, part, None)
    if not isinstance(component, Component):
        raise Refused(f"--grid: there is no setting {name!r}.")
    known = {field.name: field for field, _ in registry.fields(type(component))}
    if path[-1] not in known:
        raise Refused(f"--grid: there is no setting {name!r}{registry.nearest(path[-1], known)}.")
    if not known[path[-1]].metadata.get("varies"):
        raise Refused(f"--grid: {name} is built into the program and cannot differ within it.")
