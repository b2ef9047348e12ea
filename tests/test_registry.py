"""A name finds a component by its file, and settings are checked before anything runs."""

import dataclasses
import importlib
import math

import pytest

from e2h import registry
from e2h.optimizers.adamw import AdamW
from e2h.optimizers.sgd import SGD
from e2h.registry import Refused, setting
from e2h.tasks.modular import Modular
from e2h.tasks.parity import Parity

LISTED = [(kind, name) for kind in registry.KINDS for name in registry.names(kind)]

TWO = """
import dataclasses
from e2h.registry import Component
@dataclasses.dataclass(frozen=True)
class One(Component):
    kind = "task"
@dataclasses.dataclass(frozen=True)
class Two(Component):
    kind = "task"
"""


@pytest.fixture
def task_folder(tmp_path, monkeypatch):
    """A folder whose modules belong to e2h.tasks."""
    package = importlib.import_module("e2h.tasks")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize("kind, name", LISTED)
def test_every_listed_name_is_a_frozen_component_with_defaults(kind, name):
    component = registry.load(kind, name)()
    assert (component.kind, component.name) == (kind, name)
    assert component == registry.load(kind, name)() and hash(component) == hash(registry.load(kind, name)())
    with pytest.raises(dataclasses.FrozenInstanceError):
        component.anything = 1
    assert all(field.metadata["help"] for field, _ in registry.fields(type(component)))


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_kind_has_components_and_lists_no_private_module(kind):
    names = registry.names(kind)
    assert names == sorted(names) and names and not any(name.startswith("_") for name in names)


@pytest.mark.parametrize(
    "kind, name, near", [("task", "paritty", "parity"), ("optimizer", "adam", "adamw"), ("split", "_ranges", "")]
)
def test_unknown_name_is_refused_with_the_nearest(kind, name, near):
    with pytest.raises(Refused, match=f"no {kind} {name!r}.*{near}.*Known: .*{registry.names(kind)[0]}"):
        registry.load(kind, name)
    assert registry.nearest("qqqq", ["parity"]) == ""


def test_one_new_file_is_a_new_task(task_folder):
    (task_folder / "mine.py").write_text(TWO[: TWO.index("@dataclasses.dataclass(frozen=True)\nclass Two")])
    assert "mine" in registry.names("task")
    assert registry.load("task", "mine")().name == "mine"


@pytest.mark.parametrize("text, count", [(TWO, 2), ("from e2h.tasks.parity import Parity\n", 0)])
def test_a_module_must_define_one_component(task_folder, text, count):
    (task_folder / f"defines_{count}.py").write_text(text)
    with pytest.raises(TypeError, match=f"exactly one component, it defines {count}"):
        registry.load("task", f"defines_{count}")


@dataclasses.dataclass(frozen=True)
class Every(registry.Component):
    kind = "every"
    count: int = setting(1, "h", low=0, high=3)
    share: float = setting(0.5, "h", low=0.0, high=1.0)
    rate: float = setting(0.5, "h", above=0.0)
    part: float = setting(0.5, "h", above=0.0, high=1.0)
    word: str = setting("a", "h", choices=("apple", "a"))
    on: bool = setting(False, "h")
    sizes: tuple[int, ...] = setting((1,), "h")


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"count": -1}, "every.count=-1 is out of range: it takes 0 to 3"),
        ({"count": 4}, "0 to 3"),
        ({"count": 1.0}, "takes int, not 1.0"),
        ({"count": True}, "takes int, not True"),
        ({"share": 1.01}, "out of range"),
        ({"rate": 0.0}, "every.rate=0.0 is out of range: it takes more than 0.0"),
        ({"rate": -1}, "more than 0.0"),
        ({"part": 0}, "more than 0.0, up to 1.0"),
        ({"part": 1.01}, "more than 0.0, up to 1.0"),
        ({"share": math.nan}, "out of range"),
        ({"share": True}, "takes float"),
        ({"word": "aple"}, "did you mean 'apple'"),
        ({"word": 3}, "takes str"),
        ({"on": 1}, "takes bool"),
        ({"sizes": (1, "2")}, "every.sizes takes"),
        ({"sizes": (True,)}, "every.sizes takes"),
        ({"sizes": 1}, "every.sizes takes"),
    ],
)
def test_ill_typed_or_out_of_range_setting_is_refused(settings, text):
    with pytest.raises(Refused, match=text):
        Every(**settings)


@pytest.mark.parametrize("settings", [{"count": 0}, {"count": 3}, {"share": 0.0}, {"share": 1.0}, {"sizes": ()}])
def test_bounds_are_inclusive(settings):
    assert dataclasses.asdict(Every(**settings)).items() >= settings.items()


def test_values_become_the_type_of_their_field():
    assert type(Every(share=1).share) is float and Every(share=1) == Every(share=1.0)
    assert Every(sizes=[2, 3]).sizes == (2, 3)


def test_components_are_equal_by_kind_and_settings():
    assert Modular(p=5) == Modular(p=5) != Modular(p=7)
    assert AdamW(learning_rate=0.1) != SGD(learning_rate=0.1)
    assert len({Parity(), Parity(), Modular()}) == 2
