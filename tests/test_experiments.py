import contextlib
import functools
import importlib
import json
import pathlib
import subprocess
import sys

import _tiny
import jax
import jax.numpy as jnp
import pandas as pd
import pytest

from e2h import claims, config, parallel, records, registry, train
from e2h.claims import FAILS, HOLDS, UNTESTABLE
from e2h.config import Config, to_dict
from e2h.registry import Refused
from e2h.run import Broken, Stopped, run
from experiments import _main

MODULES = {name: importlib.import_module(f"experiments.{name}") for name in _main.names()}
COMMITTED = sorted(_main.RESULTS.glob("*/*/claims.json"))
TINY = {  # flags that make a component small
    "modular": ["--task.p=7"],
    "group_words": ["--task.n=3"],
    "pointer_chasing": ["--task.names=9", "--task.flags=4"],
    "length": ["--split.train_max=4", "--split.test_max=5"],
    "complexity": ["--split.train_max=2", "--split.test_max=4"],
    "mlp": ["--model.hidden=8"],
    "rnn": ["--model.width=8"],
    "lstm": ["--model.width=8"],
    "transformer": ["--model.width=8", "--model.layers=1", "--model.heads=2"],
}
SHORT = ["--steps=2", *(f"--{kind}_every=2" for kind in ("record", "evaluate", "checkpoint"))]
SHORT += ["--seeds=2", "--batch_size=8", "--test_size=8", "--buckets=1"]
TRAINED = [name for name, module in MODULES.items() if hasattr(module, "arms")]
every_experiment = pytest.mark.parametrize("name", MODULES)
every_trained = pytest.mark.parametrize("name", TRAINED)


def tiny(base: Config) -> list[str]:
    return SHORT + [flag for c in base.components.values() for flag in TINY.get(c.name, [])]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Relative paths lead to an empty directory, and what would be committed to a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_main, "RESULTS", tmp_path / "committed")
    _tiny.start_without_compiling(monkeypatch)


def traced(function, config):
    """In place of `parallel.spread`: the program is traced, not compiled, and all its numbers are 1 or very large.

    Arms that differ in real numbers alone are traced once.
    """
    population = parallel.populate(function, parallel.at_once(config))
    kind = json.dumps(without_reals(to_dict(config)))

    def run(per_seed, shared):
        given = str(jax.tree.map(jnp.shape, (per_seed, shared)))
        key = (function.__qualname__, kind, given)
        if key not in TRACED:
            TRACED[key] = jax.eval_shape(population, per_seed, shared)
        fill = {jnp.float32: 1, jnp.int32: train.NEVER}
        return jax.tree.map(lambda a: jnp.full(a.shape, fill.get(a.dtype.type, 0), a.dtype), TRACED[key])

    return run


TRACED = {}


def without_reals(data):
    """A config's settings but for real numbers, which no shape depends on."""
    if isinstance(data, dict):
        return {k: without_reals(v) for k, v in data.items()}
    return "real" if isinstance(data, float) else data


PREPARE = parallel.prepare


def prepared(config):
    """In place of `parallel.prepare`: zeros of its shapes."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(lambda: PREPARE(config)))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """(directory, command line) of two steps of an experiment, or of a small simulation.

    Of its arms the first is trained, the others are traced.
    """

    @functools.cache
    def of(name):
        where, ran = tmp_path_factory.mktemp(name), []

        def run_arm(*args):
            with pytest.MonkeyPatch.context() as patch:
                _tiny.start_without_compiling(patch)
                if ran:
                    patch.setattr(parallel, "spread", traced)
                    patch.setattr(parallel, "prepare", prepared)
                    for made in ("_chunk", "_sweep", "_measure"):  # kept apart from the real ones
                        patch.setattr(parallel, made, functools.cache(getattr(parallel, made).__wrapped__))
                ran.append(args)
                return run(*args)

        quick = tiny(MODULES[name].base("cpu", [name])) if name in TRAINED else MODULES[name].QUICK
        argv = [name, *quick, f"--runs={where}/runs", f"--results={where}/results"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_main, "run", run_arm)
            with of_fewer(name):
                return _main.launch(MODULES[name], argv), argv

    return of


@contextlib.contextmanager
def of_fewer(name):
    """Three of the eleven optimizers, which are all treated alike."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "optimizer_zoo":
            zoo = MODULES[name].ZOO
            patch.setattr(MODULES[name], "ZOO", {n: zoo[n] for n in ("AdamW", "SAM", "Grokfast")})
        yield


@every_trained
@pytest.mark.parametrize("scale", _main.SCALES)
def test_every_arm_of_a_protocol_fits_together(name, scale):
    arms = MODULES[name].arms(MODULES[name].base(scale, [name]))
    for arm in arms.values():
        arm.check()
    assert len({config.digest(arm) for arm in arms.values()}) == len(arms)


@every_experiment
def test_help_lists_the_settings_and_exits_0(name, capsys):
    with pytest.raises(SystemExit) as end:
        _main.launch(MODULES[name], [name, "--help"])
    assert end.value.code == 0
    help = capsys.readouterr().out
    settings = [flag for flag, *_ in config.leaves(MODULES[name].base("cpu", [name]))]
    assert all(f"  --{flag}=" in help for flag in (*settings, "scale", "runs", "results"))


@every_trained
@pytest.mark.parametrize("kind", [kind for kind in registry.KINDS if kind != "measure"])
def test_any_choice_of_a_component_runs_or_is_refused(name, kind, monkeypatch):
    class Runs(Exception):
        pass

    def ready(*args):
        raise Runs

    monkeypatch.setattr(_main, "run", ready)
    for choice in registry.names(kind):
        with pytest.raises((Runs, Refused)):
            _main.launch(MODULES[name], [name, f"--{kind}={choice}"])


@every_experiment
def test_an_outcome_is_a_figure_rows_and_claims(name, outcome):
    where, argv = outcome(name)
    assert where.parts[-3:] == ("results", name, "cpu")
    assert sorted(p.name for p in where.iterdir()) == ["claims.json", "figure.png", "rows.csv"]
    assert (where / "figure.png").read_bytes().startswith(b"\x89PNG")
    judged = json.loads((where / "claims.json").read_text(), parse_constant=pytest.fail)
    with of_fewer(name):
        assert judged["digest"] == digests(name, "cpu", argv, where)
    assert judged["experiment"] == name and judged["scale"] == "cpu" and judged["versions"] == records.versions()
    assert judged["command"].startswith(f"python -m experiments.{name} {argv[1]} ") and judged["wall_s"] > 0


@every_trained
def test_the_rows_of_two_steps_are_of_every_arm_and_seed(name, outcome):
    where, argv = outcome(name)
    with of_fewer(name):
        arms = MODULES[name].arms(config.parse_all(argv, MODULES[name].base("cpu", argv), _main.Options())[0])
    rows = pd.read_csv(where / "rows.csv")
    trained = rows[rows["arm"].isin(arms)]  # an experiment may add rows of its own that it read off the end
    assert set(trained["arm"]) == set(arms) and (
        any(hasattr(MODULES[name], more) for more in ("then", "inspect", "simulate")) or len(trained) == len(rows)
    )
    steps = set(
        (rows if hasattr(MODULES[name], "then") else trained)["step"]
    )  # of the first arms `kept` may keep the end
    assert set(trained["seed"]) == {0, 1} and {0, 2} <= steps <= {0, 1, 2}
    assert "online" not in set(rows["split"])
    for measure in next(iter(arms.values())).measures:  # one column, or one for each part
        columns = [c for c in rows.columns if c.partition(":")[0] == measure and not c.endswith("_count")]
        assert columns and {f"{column}_count" for column in columns} <= set(rows.columns)


@every_experiment
def test_claims_have_the_schema(name, outcome):
    judged = json.loads((outcome(name)[0] / "claims.json").read_text())
    assert list(judged) == ["experiment", "scale", "command", "digest", "versions", "device", "wall_s", "claims"]
    assert len({claim["id"] for claim in judged["claims"]}) == len(judged["claims"])
    for claim in judged["claims"]:
        assert list(claim) == ["id", "card", "statement", "published", "threshold", "measured", "verdict"]
        assert list(claim["published"]) == ["value", "source"] and list(claim["measured"]) == [
            "per_seed",
            "median",
            "range",
        ]
        assert claim["measured"]["per_seed"] and claim["verdict"] in (HOLDS, FAILS, UNTESTABLE)
        for text in (claim["id"], claim["card"], claim["statement"], claim["threshold"], *claim["published"].values()):
            assert isinstance(text, str) and text


@every_experiment
def test_figure_and_claims_come_from_the_stored_rows_alone(name, outcome):
    where, _ = outcome(name)
    rows = pd.read_csv(where / "rows.csv")
    with of_fewer(name):
        drawn = MODULES[name].figure(rows)
        assert name not in TRAINED or "only 2!" in drawn.get_supxlabel()
        judged = json.loads((where / "claims.json").read_text())["claims"]
        assert [claim.as_dict() for claim in MODULES[name].claims(rows)] == judged


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_a_committed_outcome_is_of_the_experiment_as_it_stands(path):
    name, scale = path.parts[-3:-1]
    judged = json.loads(path.read_text())
    assert judged["digest"] == digests(name, scale, [name], path.parent), (
        f"{name} has changed since its outcome was committed; rerun the experiment."
    )


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_committed_claims_are_those_of_the_committed_rows(path):
    module, rows = MODULES[path.parts[-3]], pd.read_csv(path.with_name("rows.csv"))
    again = [claim.as_dict() for claim in module.claims(rows)]
    found = json.loads(path.read_text())["claims"]
    assert [c["measured"] for c in again] == [c["measured"] for c in found]
    assert [(c["id"], c["verdict"]) for c in again] == [(c["id"], c["verdict"]) for c in found]
    module.figure(rows)


def test_powers_transformer_trains_on_division(tmp_path):
    argv = ["grokking", "--model=transformer", "--task.op=divide", *SHORT, *TINY["modular"], *TINY["transformer"]]
    chosen, _ = config.parse_all(argv, MODULES["grokking"].base("cpu", argv), _main.Options())
    assert chosen.task.size == 42 and chosen.model.name == "transformer"
    rows = run(chosen, tmp_path / "run", progress=False)
    assert set(rows[rows["split"] == "test"]["step"]) == {0, 2}


@pytest.fixture
def refusal(capsys, monkeypatch):
    """The sentence with which an experiment refuses flags."""

    def of(*flags, name="train"):
        monkeypatch.setattr(sys, "argv", [name, *flags])
        with pytest.raises(SystemExit) as end:
            _main.main(MODULES[name])
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        assert err.startswith("Refused: ") and err.count("\n") == 1 and err.rstrip().endswith((".", "?"))
        return err

    return of


def digests(name, scale, argv, outcome):
    """What names the runs of an experiment under a command line; those chosen by rows, by the rows that are stored."""
    module = MODULES[name]
    chosen, _ = config.parse_all(argv, module.base(scale, argv), _main.Options())
    arms = module.arms(chosen) if name in TRAINED else {name: chosen}
    if hasattr(module, "then"):
        arms |= module.then(chosen, pd.read_csv(outcome / "rows.csv"))
    return {arm: config.digest(c) for arm, c in arms.items()}


def files(directory):
    return {p: p.read_bytes() if p.is_file() else None for p in directory.rglob("*")}


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--nonsense=1", "nonsense"),
        ("--model=resnet", "There is no model 'resnet'"),
        ("--task=paritty", "did you mean 'parity'"),
        ("stray", "Stray argument 'stray'"),
        ("--steps=many", "steps"),
        ("--seeds=0", "out of range: it takes 1 to 65536"),
        ("--scale=huge", "--scale='huge' is not one of cpu, paper"),
        ("--split.train_fraction=1.0", "leaves no test problem of the 9409"),
        ("--task=parity --split.train_max=9 --split.test_max=5", "train_max=9, test_max=5 do not fit task parity"),
        ("--task=parity --split=fraction", "task parity has none"),
        ("--task=parity --position=learned --position.max_length=8", "has 8 places and the longest sequence has 102"),
        ("--task=parity --model=mlp", "model mlp reads rows of one length"),
        ("--evaluate_every=15", "not a multiple of --record_every=10"),
        ("--devices=99 --seeds=99 --mapping=pmap", "--devices=99, but there are 8 of cpu"),
        ("--runs=a_file/below", "Cannot write to a_file/below"),
        ("--runs=", "--runs= names no directory"),
        ("--results=", "--results= names no directory"),
        ("--results=a_file/below", "Cannot write to a_file/below"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_sentence_and_leaves_nothing(tmp_path, refusal, flags, words):
    (tmp_path / "a_file").touch()
    before = files(tmp_path)
    assert words in refusal(*flags.split())
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "name, flags, words",
    [
        ("parity_length", "--task=permutation", "No run of this experiment would use the --task settings"),
        ("parity_length", "--model=transformer --model.layers=3", "would use the --model settings"),
        ("pointer_complexity", "--task=parity", "This experiment cannot do with --task=parity"),
        ("grokking", "--optimizer=grokfast_ema", "cannot do with --optimizer=grokfast_ema"),
    ],
)
def test_a_setting_that_no_arm_would_use_is_refused(tmp_path, refusal, monkeypatch, name, flags, words):
    monkeypatch.setattr(_main, "run", None)
    assert words in refusal(*flags.split(), name=name)
    assert not files(tmp_path)


def test_a_run_directory_of_another_config_is_refused_and_left_alone(tmp_path, refusal):
    chosen = MODULES["train"].base("cpu", ["train"])
    directory = tmp_path / "runs" / "train" / config.digest(chosen)
    records.Records(directory, _tiny.replace(chosen, seeds=7)).close()
    before = files(tmp_path)
    assert "holds a run with seeds=7, not 5" in refusal()
    assert files(tmp_path) == before


@pytest.mark.parametrize("error, code", [(Stopped("s"), 75), (Broken("b"), 1), (OSError("disk full"), 1)])
def test_exit_codes(monkeypatch, capsys, error, code):
    def fail(module, argv):
        raise error

    monkeypatch.setattr(_main, "launch", fail)
    with pytest.raises(SystemExit) as end:
        _main.main(MODULES["train"])
    assert end.value.code == code
    assert capsys.readouterr().err == f"{type(error).__name__}: {error}\n"


def test_the_command_line_itself_refuses(tmp_path):
    command = [sys.executable, "-m", "experiments.grokking", "--nonsense"]
    root = pathlib.Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("Refused: ") and done.stderr.count("\n") == 1


def test_only_an_experiment_as_it_stands_goes_where_outcomes_are_committed(tmp_path):
    base = MODULES["grokking"].base("cpu", ["grokking"])
    place = lambda *args: _main._outcome(*args).relative_to(tmp_path)  # noqa: E731
    options = _main.Options(runs=str(tmp_path / "runs"))
    assert place("grokking", True, base, options) == pathlib.Path("committed/grokking/cpu")
    assert place("grokking", False, base, options) == pathlib.Path(f"runs/grokking/outcome-{config.digest(base)}")


def test_the_table_of_claims_has_a_line_for_each(tmp_path):
    from experiments import report

    claim = claims.Claim("id", "card", "statement", "1", "source", "<= 2", (1.0, float("inf")), HOLDS)
    made = claims.document("name", "cpu", "python -m experiments.name", {}, 60.0, [claim, claim])
    (tmp_path / "name" / "cpu").mkdir(parents=True)
    claims.write(tmp_path / "name" / "cpu" / "claims.json", made)
    lines = report.rows(tmp_path)
    assert len(lines) == 2 and all(line.count("|") == 10 for line in lines)
    assert "grokking" in report.not_run(tmp_path)
    assert "**holds**" in lines[0] and ">budget" in lines[0] and "`python -m experiments.name`" in lines[0]
