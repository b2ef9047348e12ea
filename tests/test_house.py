"""The rules of the house that a program can check."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "e2h").rglob("*.py"))
FILES = LIBRARY + sorted((ROOT / "experiments").rglob("*.py"))
in_library = pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))


def nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path) -> set[str]:
    """Dotted names of all that a file imports, wherever in it."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def identifiers(path) -> set[str]:
    """What a file names in code; strings and comments are free."""
    named = {node.id for node in nodes(path) if isinstance(node, ast.Name)}
    named |= {node.attr for node in nodes(path) if isinstance(node, ast.Attribute)}
    return named | {part for name in imports(path) for part in name.split(".")}


def files_that(has) -> list[str]:
    return [str(path.relative_to(ROOT / "e2h")) for path in LIBRARY if has(path)]


@pytest.mark.parametrize("package", ["tensorflow", "torch", "clu", "keras", "haiku"])
def test_no_file_imports(package):
    assert not [path for path in FILES if any(name.split(".")[0] == package for name in imports(path))]


@pytest.mark.parametrize(
    "package, home",
    [
        ("matplotlib", "figures.py"),
        ("orbax", "checkpoint.py"),
        ("absl", "config.py"),
        ("tensorboardX", "records.py"),
        ("signal", "run.py"),
        ("tqdm", "run.py"),
        ("tensorflow_datasets", "dataset.py"),
    ],
)
def test_a_package_has_one_home(package, home):
    assert files_that(lambda path: any(name.split(".")[0] == package for name in imports(path))) == [home]


@pytest.mark.parametrize("word", ["pmap", "shard_map", "Mesh"])
def test_mappings_are_named_in_one_file(word):
    assert files_that(lambda path: word in identifiers(path)) == ["parallel.py"]


@pytest.mark.parametrize("word", ["PRNGKey", "pyplot", "FLAGS"])
def test_no_file_names(word):
    assert not [path for path in FILES if word in identifiers(path)]


def test_who_leads_is_asked_in_one_file():
    """A collective that only some processes enter never ends: `hosts.lead` runs work on one and tells the others."""
    assert files_that(lambda path: "process_index" in identifiers(path)) == ["hosts.py"]


def test_keys_are_made_in_one_file():
    made = lambda path: "jax.random.key(" in path.read_text()  # noqa: E731
    assert files_that(made) == ["rng.py"]


def test_every_stream_is_named_in_one_place():
    """Two draws under one name would be of the same bits, which JAX's check of reused keys does not see."""
    calls = [node for path in LIBRARY for node in nodes(path) if isinstance(node, ast.Call)]
    named = [ast.unparse(call.args[1]) for call in calls if ast.unparse(call.func) == "rng.stream"]
    assert len(named) > 5 and len(set(named)) == len(named)
    assert all(name[0] in "'\"" for name in named)


@in_library
def test_a_library_prints_nothing(path):
    """But for the help that config.py prints on request, and command lines after `if __name__`."""
    tree = ast.parse(path.read_text())
    allowed = {"config.py": ("parse_all",), "export.py": ("main",)}.get(path.name, ())
    tree.body = [node for node in tree.body if getattr(node, "name", "") not in allowed]
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert "print" not in {call.id for call in calls if isinstance(call, ast.Name)}


@in_library
def test_nothing_below_calls_upward(path):
    assert not any(name.split(".")[0] == "experiments" for name in imports(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 350
    assert ast.get_docstring(ast.parse(text))


def test_importing_everything_loads_no_other_framework():
    load = """if True:
        import importlib, pkgutil, sys
        import e2h, experiments
        for package in (e2h, experiments):
            for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                importlib.import_module(found.name)
        print(*sorted({name.split(".")[0] for name in sys.modules}))
    """
    done = subprocess.run([sys.executable, "-c", load], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"jax", "flax", "optax", "e2h", "experiments"} <= loaded
    assert not loaded & {"tensorflow", "torch", "clu", "keras", "ray"}
