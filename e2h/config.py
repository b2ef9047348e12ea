"""One Config says everything about a run. Flags -> Config -> flags is an identity; the digest names its directory."""

import dataclasses
import hashlib
import json
import math
import sys
import typing
from typing import Any, ClassVar

from absl import flags

from e2h import grid, registry
from e2h.curricula import Curriculum
from e2h.curricula.uniform import Uniform
from e2h.gradients import GradientRule
from e2h.gradients.plain import Plain
from e2h.layouts import Layout
from e2h.layouts.table import Table
from e2h.losses import Loss
from e2h.losses.cross_entropy import CrossEntropy
from e2h.models import Model
from e2h.models.mlp import MLP
from e2h.optimizers import Optimizer
from e2h.optimizers.adamw import AdamW
from e2h.positions import Position
from e2h.positions.none import NoPosition
from e2h.registry import Component, Refused, setting
from e2h.splits import Split
from e2h.splits.fraction import Fraction
from e2h.starts import Start
from e2h.starts.fresh import Fresh
from e2h.tasks import Task
from e2h.tasks.modular import Modular

HOW = dict(in_digest=False)  # marks what does not change the numbers of a step


def how(default, help, **bounds):
    """A setting that does not change the numbers of a step: it is no part of the digest and may change on resuming."""
    field = setting(default, help, **bounds)
    return dataclasses.field(default=default, metadata={**field.metadata, **HOW})


@dataclasses.dataclass(frozen=True)
class Config(Component):
    """A run: its components, its seeds, its budget, and how it is carried out."""

    task: Task = setting(Modular(), "what is learned")
    split: Split = setting(Fraction(), "which problems are train and test")
    layout: Layout = setting(Table(), "how a problem becomes a token sequence")
    position: Position = setting(NoPosition(), "positional encoding")
    model: Model = setting(MLP(), "network")
    loss: Loss = setting(CrossEntropy(), "what is minimised")
    gradient: GradientRule = setting(Plain(), "how the gradient is obtained")
    optimizer: Optimizer = setting(AdamW(), "how the gradient changes the parameters")
    curriculum: Curriculum = setting(Uniform(), "how hard the problems of a step are")
    start: Start = setting(Fresh(), "the parameters before the first step", added=True)

    seeds: int = setting(5, "how many seeds are trained, as one population", low=1, high=65536)
    first_seed: int = setting(0, "the seeds are first_seed, first_seed + 1, ...", low=0, high=2**30)
    batch_size: int = setting(128, "problems a step; a table gives at most all of its training rows", low=1)
    buckets: int = setting(
        4, "static shapes for the lengths of training; a step is padded to its bucket", low=1, high=64
    )
    test_size: int = setting(512, "test problems per difficulty (a table's test is always whole)", low=1)
    precision: str = setting("highest", "of float32 matrix products", choices=("default", "high", "highest"))
    compute_dtype: str = setting("float32", "of activations; parameters stay float32", choices=("float32", "bfloat16"))
    init_scale: float = setting(1.0, "multiplies every initial parameter", low=0.0, varies=True, added=True)
    grid: tuple[str, ...] = setting((), "settings that differ within the population: name=value:value,...", added=True)

    steps: int = how(1000, "the budget; part of the digest only if the learning rate's schedule uses it", low=1)
    record_every: int = how(10, "steps between rows of the training loss, and in one compiled call", low=1)
    evaluate_every: int = how(100, "steps between evaluations; a multiple of record_every", low=1)
    evaluate_early: int = how(0, "up to this step every row of the training loss comes with an evaluation", low=0)
    checkpoint_every: int = how(5000, "steps between checkpoints; a multiple of record_every", low=1)
    measures: tuple[str, ...] = how((), "what else is measured at each evaluation")
    mapping: str = how("jit", "how devices share the work", choices=("jit", "pmap", "shard_map"))
    shard: str = how("seeds", "what is divided among devices", choices=("seeds", "batch", "both"))
    devices: int = how(1, "how many devices pmap or shard_map uses, over all processes", low=1)
    batch_devices: int = how(2, "with --shard=both, how many of the devices share each member's batch", low=1)
    seeds_per_program: int = how(
        0, "members at once on a device, the rest after them; 0: one on a CPU, all on an accelerator", low=0
    )
    until: float = how(
        math.inf, "end when every member's in-distribution test has scored this at three evaluations in a row", low=0.0
    )
    halt: bool = how(True, "stop when a number is not finite; otherwise such a member only answers wrong from then on")

    kind: ClassVar[str] = ""

    @property
    def components(self) -> dict[str, Component]:
        return {f.name: getattr(self, f.name) for f, kind in registry.fields(Config) if issubclass_of_component(kind)}

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that training or evaluation meets."""
        parts = ("train", *self.split.parts)
        return self.layout.length(self.task, max(d for p in parts for d in self.split.difficulties(self.task, p)))

    @property
    def seed_range(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def check(self, config=None) -> None:
        """Raises `Refused` if the components do not fit together. Compiles nothing."""
        del config
        if self.grid:
            for cell in grid.cells(self):
                grid.at(self, cell).check()
            if len(split_parts := {grid.at(self, cell).split.parts for cell in grid.cells(self)}) > 1:
                raise Refused(f"--grid: the cells would be scored on different parts, {split_parts}.")
        for name in ("evaluate_every", "checkpoint_every"):
            if getattr(self, name) % self.record_every:
                raise Refused(
                    f"--{name}={getattr(self, name)} is not a multiple of --record_every={self.record_every}."
                )
        self.model.check(self)  # first: others ask it for its width and heads
        for component in self.components.values():
            component.check(self)
        for name in self.measures:
            registry.load("measure", name)().check(self)
        reads = self.layout.reads(self.task, max(self.split.difficulties(self.task, "train")))
        if self.record_every * self.split.batch_size(self.task, self.batch_size) * reads >= 2**31:
            raise Refused(
                f"--record_every={self.record_every} would count more than 2**31 reads before it is recorded."
            )
        if self.devices > 1 and self.mapping == "jit":
            raise Refused(f"--devices={self.devices} needs --mapping=pmap or --mapping=shard_map.")
        if self.shard == "both" and (self.mapping != "shard_map" or self.devices % self.batch_devices):
            raise Refused(
                f"--shard=both needs --mapping=shard_map and --devices={self.devices} to be a multiple of "
                f"--batch_devices={self.batch_devices}."
            )
        share = {"seeds": 1, "both": self.batch_devices, "batch": self.devices}[self.shard]
        if len(grid.members(self)) % (self.devices // share):
            among = f"--devices={self.devices}" + (f", {share} to a member" if share > 1 else "")
            raise Refused(f"{len(grid.members(self))} members do not divide among {among}; use --shard=batch.")


def issubclass_of_component(kind) -> bool:
    return isinstance(kind, type) and issubclass(kind, Component)


def to_dict(component: Component) -> dict[str, Any]:
    """A component as plain JSON data; a Config's parts carry their names."""
    found = {"name": component.name} if component.kind else {}
    for field, _ in registry.fields(type(component)):
        value = getattr(component, field.name)
        found[field.name] = to_dict(value) if isinstance(value, Component) else value
    return found


def from_dict(data: dict[str, Any], kind: str = "") -> Component:
    """The inverse of `to_dict`."""
    cls = registry.load(kind, data["name"]) if kind else Config
    known = dict((f.name, t) for f, t in registry.fields(cls))
    values = {k: from_dict(v, known[k].kind) if isinstance(v, dict) else v for k, v in data.items() if k != "name"}
    return cls(**values)


def identity(config: Component) -> dict[str, Any]:
    """What the digest is made of: everything that changes the numbers of a step."""
    data = _without_added(config, to_dict(config))
    for field in dataclasses.fields(config):
        if field.metadata.get("in_digest") is False and not (field.name == "steps" and config.optimizer.uses_budget):
            data.pop(field.name, None)
    return data


def _without_added(component: Component, data: dict[str, Any]) -> dict[str, Any]:
    """`data` of a component without what changes no number of its parts, and without what was added later and stands
    at its default."""
    for field, _ in registry.fields(type(component)):
        value = getattr(component, field.name)
        if field.metadata.get("added") and value == field.default:
            del data[field.name]
        elif isinstance(value, Component):
            _without_added(value, data[field.name])
        elif component.kind and field.metadata.get("in_digest") is False:
            del data[field.name]
    return data


def digest(config: Component) -> str:
    """Twelve hex digits that name a run directory."""
    return hashed(identity(config))


def hashed(data: dict[str, Any]) -> str:
    """Twelve hex digits of plain JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def leaves(component: Component, prefix: str = ""):
    """(flag name, field, type, value) of every setting, components first and then what is inside them."""
    for field, kind in registry.fields(type(component)):
        value, name = getattr(component, field.name), prefix + field.name
        yield name, field, kind, value
        if isinstance(value, Component):
            yield from leaves(value, name + ".")


def to_flags(config: Component) -> list[str]:
    """The command line that gives exactly this Config."""
    return [f"--{name}={_written(value)}" for name, _, _, value in leaves(config)]


def _written(value) -> str:
    if isinstance(value, Component):
        return value.name
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(argv: list[str], base: Component) -> Component:
    """`base` with the settings that the command line changes; see `parse_all`."""
    return parse_all(argv, base)[0]


def parse_all(argv: list[str], *bases: Component) -> tuple[Component, ...]:
    """Each of `bases` with the settings that the command line (argv[0] is the program) changes.

    Choosing a component (`--model=rnn`) gives it its own defaults, unless its base has that one already.

    Raises:
      Refused: for an unknown flag, a stray argument, an ill-typed or out-of-range value.
    """
    bases = tuple(_choose_components(argv, base) for base in bases)
    parser = flags.FlagValues()
    for base in bases:
        for name, field, kind, value in leaves(base):
            _define(parser, name, field, kind, value)
    flags.DEFINE_bool("help", False, "show this help", flag_values=parser, module_name="e2h")
    try:
        stray = parser(argv)[1:]
    except flags.Error as error:
        sentence = " ".join(str(error).split())
        raise Refused(sentence if sentence.endswith(("?", ".")) else sentence + ".") from None
    if stray:
        raise Refused(f"Stray argument {stray[0]!r}; settings are given as --name=value.")
    changed = tuple(_rebuilt(base, parser) for base in bases)
    if parser["help"].value:
        print("Settings of the chosen components, with their present values:\n")
        print(
            "\n".join(f"  --{n}={_written(v)}\n      {_explained(f, k)}" for b in changed for n, f, k, v in leaves(b))
        )
        sys.exit(0)
    return changed


def chosen(argv: list[str], name: str, default: str) -> str:
    """The value of a flag that must be known before the rest can be parsed."""
    for i, arg in enumerate(argv):
        key, equals, value = arg.lstrip("-").partition("=")
        if arg.startswith("-") and key == name:
            default = value if equals else (argv[i + 1] if i + 1 < len(argv) else "")
    return default


def fitting(argv: list[str]) -> Config:
    """A Config whose parts fit the task and the model that a command line names, for what it leaves open.

    The task's own layout; a table's fraction, or the split along the task's difficulty; an MLP for a table and a
    transformer otherwise; RoPE where a position encoding is used.
    """

    def named(kind: str, default: str) -> Component:
        return registry.load(kind, chosen(argv, kind, default))()

    task = named("task", "modular")
    table = "table" in task.layouts
    model = named("model", "mlp" if table else "transformer")
    along = {"length": "length", "computation": "complexity"}[task.axis]
    return Config(
        task=task,
        split=named("split", "fraction" if table else along),
        layout=named("layout", next(x for x in ("table", "causal", *task.layouts) if x in task.layouts)),
        model=model,
        position=named("position", "rope" if model.uses_position else "none"),
    )


def _choose_components(argv, component: Component, prefix: str = "") -> Component:
    changes = {}
    for field, kind in registry.fields(type(component)):
        if issubclass_of_component(kind):
            value, name = getattr(component, field.name), prefix + field.name
            wanted = chosen(argv, name, value.name)
            value = value if wanted == value.name else registry.load(kind.kind, wanted)()
            changes[field.name] = _choose_components(argv, value, name + ".")
    return dataclasses.replace(component, **changes)


def _define(parser, name, field, kind, value) -> None:
    common = dict(flag_values=parser, module_name="e2h")
    if issubclass_of_component(kind):
        flags.DEFINE_string(name, value.name, field.metadata["help"], **common)
    elif kind is bool:
        flags.DEFINE_bool(name, value, field.metadata["help"], **common)
    elif typing.get_origin(kind) is tuple:
        flags.DEFINE_list(name, list(map(str, value)), field.metadata["help"], **common)
    else:  # ranges and choices are the component's own to check
        define = {int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}[kind]
        define(name, value, field.metadata["help"], **common)


def _rebuilt(component: Component, parser, prefix: str = "") -> Component:
    changes = {}
    for field, kind in registry.fields(type(component)):
        value = getattr(component, field.name)
        if issubclass_of_component(kind):
            changes[field.name] = _rebuilt(value, parser, prefix + field.name + ".")
        elif typing.get_origin(kind) is tuple:
            element = typing.get_args(kind)[0]
            changes[field.name] = tuple(
                _element(element, v, prefix + field.name) for v in parser[prefix + field.name].value
            )
        else:
            changes[field.name] = parser[prefix + field.name].value
    return dataclasses.replace(component, **changes)


def _element(kind: type, word: str, name: str):
    try:
        return kind(word)
    except ValueError:
        raise Refused(f"--{name} takes a list of {kind.__name__}, and {word!r} is none.") from None


def _explained(field: dataclasses.Field, kind: type) -> str:
    meta, bounds = field.metadata, ""
    if meta.get("choices"):
        bounds = f" (one of {', '.join(meta['choices'])})"
    elif issubclass_of_component(kind):
        bounds = f" (one of {', '.join(registry.names(kind.kind))})"
    elif any(meta.get(bound) is not None for bound in ("low", "above", "high")):
        bounds = f" ({registry.describe_range(meta.get('low'), meta.get('high'), meta.get('above'))})"
    return meta["help"] + bounds
