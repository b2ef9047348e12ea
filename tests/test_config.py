"""Flags -> Config -> flags, what the digest covers, and what is refused before anything runs."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import typing

import pytest

from e2h import config as configs
from e2h import registry
from e2h.config import Config, digest, from_dict, leaves, parse, to_dict, to_flags
from e2h.registry import Refused

ROOT = pathlib.Path(__file__).parent.parent
PROGRAM = "experiments/train.py"
LINES = (
    [],
    ["--task=parity", "--split=length", "--layout=tagging", "--model=rnn", "--split.train_max=7", "--split.test_max=9"],
    ["--optimizer=grokfast_ema", "--optimizer.inner=sgd", "--optimizer.inner.learning_rate=1", "--optimizer.lam=0"],
    [
        "--optimizer=orthogonal_gradient",
        "--optimizer.inner=grokfast_ma",
        "--optimizer.inner.inner=adamw",
        "--optimizer.inner.inner.eps=1e-30",
        "--optimizer.rescale=false",
    ],
    ["--model.hidden=", "--measures=weight_norm,zero_loss", "--optimizer.clip_norm=0.123456789", "--task.op=divide"],
    ["--model.hidden=3,2,1", "--optimizer.schedule=cosine", "--nosplit.shared", "--curriculum", "fixed", "-seeds", "2"],
    ["--start=ticket", "--start.steps=7", "--start.control=l2", "--grid=start.keep=0.3:0.5"],
)


def config_of(*line):
    return parse([PROGRAM, *line], Config())


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_flags_and_dicts_lead_back_to_the_config(line):
    config = config_of(*line)
    assert parse([PROGRAM, *to_flags(config)], Config()) == config
    assert to_flags(parse([PROGRAM, *to_flags(config)], Config())) == to_flags(config)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert hash(from_dict(to_dict(config))) == hash(config)


def test_flags_set_what_they_name():
    config = config_of(*LINES[3])
    assert (config.optimizer.rescale, config.optimizer.inner.name) == (False, "grokfast_ma")
    assert config.optimizer.inner.inner.eps == 1e-30
    assert config_of(*LINES[2]).optimizer.inner.learning_rate == 1.0
    assert config_of(*LINES[4]).model.hidden == () and config_of(*LINES[4]).optimizer.clip_norm == 0.123456789
    assert config_of(*LINES[5]).model.hidden == (3, 2, 1) and config_of(*LINES[5]).seeds == 2
    assert "--optimizer.clip_norm=inf" in to_flags(Config())


def test_a_chosen_component_keeps_the_settings_of_the_base_only_if_the_base_has_it():
    base = config_of("--task.p=5", "--optimizer.weight_decay=2")
    assert parse([PROGRAM, "--task=modular", "--optimizer=sgd"], base).task.p == 5
    assert parse([PROGRAM, "--optimizer=sgd"], base).optimizer.weight_decay == 0.0


def others(field, kind, value):
    """A permitted value unlike the present one, as it is written in a flag."""
    low, above, high, choices = (field.metadata[k] for k in ("low", "above", "high", "choices"))
    if configs.issubclass_of_component(kind):
        return next((name for name in registry.names(kind.kind) if name != value.name), None)
    if choices:
        return next(c for c in choices if c != value)
    if typing.get_origin(kind) is tuple:
        return "1,2,3" if typing.get_args(kind)[0] is int else "one,two"
    if kind is bool:
        return str(not value).lower()
    if kind is int:
        return value + 1 if high is None or value < high else value - 1
    if above is not None:
        return above + (1.0 if high is None else (high - above) / 2)
    return low if value != low else (1.0 if high is None else (low + high) / 2)


EVERY_SETTING = [
    (line, name, other, field.metadata.get("in_digest", True))
    for line in (LINES[0], LINES[1], LINES[3], LINES[5], LINES[6])
    for name, field, kind, value in leaves(config_of(*line))
    if (other := others(field, kind, value)) is not None
]


@pytest.mark.parametrize("line, name, other, counts", EVERY_SETTING)
def test_digest_changes_with_exactly_the_settings_that_change_a_step(line, name, other, counts):
    config = config_of(*line)
    changed = parse([PROGRAM, f"--{name}={other}"], config)
    assert changed != config
    counts = counts or (name == "steps" and "--optimizer.schedule=cosine" in line)
    assert (digest(changed) != digest(config)) == counts


def test_inside_a_component_too_a_setting_may_be_left_out_of_the_digest():
    here, there, other = (
        config_of("--split=exported", *flags)
        for flags in (["--split.digest=a"], ["--split.digest=a", "--split.path=b"], ["--split.digest=b"])
    )
    assert here != there and digest(here) == digest(there) != digest(other)


def test_how_settings_are_the_known_ones():
    how = {name for name, field, _, _ in leaves(Config()) if field.metadata.get("in_digest") is False}
    assert how == {
        *("steps", "record_every", "evaluate_every", "evaluate_early", "checkpoint_every", "measures"),
        *("mapping", "shard", "devices", "batch_devices", "seeds_per_program", "halt", "until"),
    }


@pytest.mark.parametrize("inner", ["--optimizer.inner.schedule=linear", "--optimizer.inner.schedule=constant"])
def test_steps_count_under_a_schedule_inside_a_wrapper(inner):
    line = ["--optimizer=grokfast_ema", inner]
    differs = digest(config_of(*line, "--steps=7")) != digest(config_of(*line, "--steps=8"))
    assert differs == ("linear" in inner)


def test_digest_names_a_directory_and_is_the_same_in_every_process():
    assert len(digest(Config())) == 12 and set(digest(Config())) <= set("0123456789abcdef")
    program = "from e2h.config import Config, digest; print(digest(Config()))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == digest(Config())


@pytest.mark.parametrize(
    "line, text",
    [
        (["--modle=rnn"], "modle.*model"),
        (["--task.q=3"], r"task\.q.*task\.p"),
        (["--model.width=3"], r"model\.width"),  # the chosen model has none
        (["stray"], "Stray argument 'stray'"),
        (["--task=paritty"], "did you mean 'parity'"),
        (["--optimizer=grokfast_ema", "--optimizer.inner=adamv"], "did you mean 'adamw'"),
        (["--task"], "task"),
        (["--seeds=0"], "^seeds=0 is out of range: it takes 1 to 65536"),
        (["--seeds=two"], "seeds"),
        (["--seeds=1.5"], "seeds"),
        (["--optimizer.learning_rate=fast"], "learning_rate"),
        (["--optimizer.learning_rate=-1"], "optimizer.learning_rate=-1.0 is out of range: it takes 0.0 to 1e"),
        (["--optimizer.b1=nan"], "optimizer.b1=nan is out of range"),
        (["--start=ticket", "--start.steps=3000000000"], "start.steps=3000000000 is out of range"),
        (["--optimizer.clip_norm=0"], "optimizer.clip_norm=0.0 is out of range: it takes more than 0.0"),
        (["--model.hidden=3,two"], "--model.hidden takes a list of int, and 'two' is none"),
        (["--model.bias=maybe"], "model.bias"),
        (["--precision=hihgest"], "^precision='hihgest' is not one of .*; did you mean 'highest'"),
        (["--task.op=devide"], "did you mean 'divide'"),
    ],
)
def test_bad_command_lines_are_refused_in_one_sentence(line, text):
    with pytest.raises(Refused, match=text) as refusal:
        config_of(*line)
    assert "\n" not in str(refusal.value)


TAGGING = ("--task=parity", "--split=length", "--layout=tagging", "--model=rnn")


@pytest.mark.parametrize(
    "line, text",
    [
        (["--evaluate_every=15"], "evaluate_every=15 is not a multiple of --record_every=10"),
        (["--checkpoint_every=15"], "checkpoint_every=15 is not a multiple"),
        (["--measures=weight_nrm"], "did you mean 'weight_norm'"),
        (["--devices=2", "--seeds=4"], "--mapping=pmap"),
        (["--devices=2", "--mapping=pmap"], "5 members do not divide"),
        (["--model=rnn", "--layout=tagging"], "task modular has no layout tagging .* it has table, query, causal"),
        (["--split=length"], "is a table"),
        (["--layout=causal"], "layout"),
        (["--position=rope"], "model mlp takes no position"),
        (["--curriculum=fixed", "--curriculum.difficulty=2"], "curriculum.difficulty=2 is outside the training range"),
        ([*TAGGING, "--split=fraction"], "task parity has none"),
        ([*TAGGING, "--curriculum=fixed", "--curriculum.difficulty=21"], "outside the training range 1..20"),
        ([*TAGGING, "--model=transformer", "--model.width=5"], "not a multiple of --model.heads"),
        (
            ["--model=transformer", "--model.causal=false", "--task=parity", "--split=length", "--layout=causal"],
            "needs a model that does not look ahead",
        ),
        (["--optimizer.schedule=cosine", "--optimizer.warmup_steps=1000"], "leaves nothing of --steps=1000"),
    ],
)
def test_components_that_do_not_fit_together_are_refused(line, text):
    with pytest.raises(Refused, match=text):
        config_of(*line).check()


@pytest.mark.parametrize("line", [[], [*TAGGING], ["--devices=5", "--mapping=shard_map", "--measures=weight_norm"]])
def test_what_fits_passes(line):
    config_of(*line).check()


def test_help_lists_the_chosen_components_and_exits_0(capsys):
    with pytest.raises(SystemExit) as stop:
        config_of("--help", "--model=rnn", "--seeds=3")
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    for line in ("--model.width=256", "--model=rnn", "--seeds=3", "(1 to 65536)", "(one of relu, tanh)", "mlp"):
        assert line in shown
    assert "--model.hidden" not in shown and "--task.flags" not in shown
    assert all(f"--{name}=" in shown for name, *_ in leaves(config_of("--model=rnn")))


def test_importing_and_parsing_start_no_backend_and_read_no_argv():
    program = """
import importlib, pkgutil, sys
sys.argv = ["program", "--task=nonsense", "--help"]
import e2h
for module in pkgutil.walk_packages(e2h.__path__, "e2h."):
    importlib.import_module(module.name)
from e2h.config import Config, digest, parse, to_flags
config = parse(["program", "--task.p=7"], Config())
to_flags(config), digest(config)
assert config.task.p == 7
from jax._src import xla_bridge
assert not xla_bridge._backends, xla_bridge._backends
heavy = {"tensorflow", "torch", "clu", "ray", "tensorflow_datasets"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_checking_starts_no_backend():
    """So that `jax.distributed.initialize`, which must come before a backend, may come after the checks."""
    program = """
import importlib
from jax._src import xla_bridge
from e2h import registry
from e2h.config import Config, fitting
from experiments import _main
configs = [Config(), *(fitting(["", f"--task={task}"]) for task in registry.names("task"))]
for name in _main.names():
    module = importlib.import_module(f"experiments.{name}")
    configs += module.arms(module.base("cpu", [name])).values() if hasattr(module, "arms") else ()
for config in configs:
    config.check()
    assert not xla_bridge._backends, config
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@dataclasses.dataclass(frozen=True)
class Plot(registry.Component):
    width: int = registry.setting(3, "inches", low=1)


def test_one_command_line_sets_several_components():
    config, plot = configs.parse_all([PROGRAM, "--width=5", "--task=parity", "--seeds=2"], Config(), Plot())
    assert (plot, config.task.name, config.seeds) == (Plot(5), "parity", 2)
    with pytest.raises(Refused, match=r"widht.*width"):
        configs.parse_all([PROGRAM, "--widht=5"], Config(), Plot())
