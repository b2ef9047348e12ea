"""Components and how a name finds one: `--position=rope` is the class defined in `e2h/positions/rope.py`.

A component is a frozen dataclass. Its fields are its settings (typed, range-checked, one default each) and its methods
are pure functions, so a component is hashable, comparable, and can be a static argument of a jitted function.
"""

import abc
import dataclasses
import difflib
import functools
import importlib
import math
import pkgutil
import typing
from typing import Any, ClassVar

KINDS = {  # kind (the flag) -> package (the room)
    "task": "tasks",
    "split": "splits",
    "layout": "layouts",
    "position": "positions",
    "model": "models",
    "loss": "losses",
    "gradient": "gradients",
    "optimizer": "optimizers",
    "start": "starts",
    "curriculum": "curricula",
    "measure": "measures",
}


class Refused(ValueError):
    """A request that cannot be met. Its text is one sentence for the user; command lines exit 2 on it."""


def setting(default, help: str, *, low=None, above=None, high=None, choices=(), varies=False, added=False) -> Any:
    """A component's field: `default`, one line of help, bounds for numbers, choices for strings.

    `low` and `high` may be taken; `above` is a lower bound that may not.
    `varies`: the code only computes with it, so that it may be a traced number and differ within a population.
    `added`: it came later, and its default is what was done before: at the default it leaves a digest as it was.
    """
    meta = dict(help=help, low=low, above=above, high=high, choices=tuple(choices), varies=varies, added=added)
    return dataclasses.field(default=default, metadata=meta)


@dataclasses.dataclass(frozen=True)
class Component(abc.ABC):  # noqa: B024 - the kinds say which methods are abstract
    """Base of everything that a flag can name. Subclasses add fields by `setting` and say their `kind`."""

    kind: ClassVar[str] = ""

    def __post_init__(self):
        for field, kind in fields(type(self)):
            object.__setattr__(self, field.name, checked(self, field, kind, getattr(self, field.name)))

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def check(self, config) -> None:
        """Raises `Refused` if this component cannot work with the others of `config`. Runs before any tracing."""
        del config


def fields(component_type: type) -> list[tuple[dataclasses.Field, type]]:
    """The settings of a component type, each with its resolved type."""
    hints = typing.get_type_hints(component_type)
    return [(field, hints[field.name]) for field in dataclasses.fields(component_type) if field.init]


def checked(owner, field: dataclasses.Field, kind: type, value):
    """`value` as the field's type, or `Refused` with the field's name and what it takes."""
    where = f"{owner.kind}.{field.name}" if owner.kind else field.name
    if kind is float and type(value) is int:
        value = float(value)
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        value = tuple(value) if isinstance(value, list) else value
        fits = isinstance(value, tuple) and all(isinstance(v, element) and not isinstance(v, bool) for v in value)
    else:
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits:
        raise Refused(f"{where} takes {getattr(kind, '__name__', kind)}, not {value!r}.")
    low, above, high, choices = (field.metadata.get(k) for k in ("low", "above", "high", "choices"))
    if kind in (int, float):
        too_low = (low is not None and value < low) or (above is not None and value <= above)
        if math.isnan(value) or too_low or (high is not None and value > high):
            raise Refused(f"{where}={value} is out of range: it takes {describe_range(low, high, above)}.")
    if choices and value not in choices:
        raise Refused(f"{where}={value!r} is not one of {', '.join(map(str, choices))}{nearest(str(value), choices)}.")
    return value


def describe_range(low, high, above=None) -> str:
    if above is not None:
        return f"more than {above}" + ("" if high is None else f", up to {high}")
    if high is None:
        return f"{low} or more"
    return f"{high} or less" if low is None else f"{low} to {high}"


def nearest(word: str, known) -> str:
    """`; did you mean 'parity'?` without the question mark, or nothing when no known word is near."""
    near = difflib.get_close_matches(word, [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}" if near else ""


def names(kind: str) -> list[str]:
    """The names of a kind: the modules of its package that do not start with an underscore."""
    package = importlib.import_module(f"e2h.{KINDS[kind]}")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


@functools.cache
def load(kind: str, name: str) -> type[Component]:
    """The component class that the module `e2h.<kind's package>.<name>` defines."""
    known = names(kind)
    if name not in known:
        raise Refused(f"There is no {kind} {name!r}{nearest(name, known)}. Known: {', '.join(known)}.")
    module = importlib.import_module(f"e2h.{KINDS[kind]}.{name}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Component) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define exactly one component, it defines {len(found)}.")
    return found[0]
