"""Small configs of every model, batches made through the real path, and parameters drawn without compiling."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2h import batches, registry, train
from e2h.config import Config
from e2h.layouts.causal import Causal
from e2h.layouts.query import Query
from e2h.layouts.table import Table
from e2h.layouts.tagging import Tagging
from e2h.positions import Position
from e2h.positions.none import NoPosition
from e2h.registry import Refused
from e2h.splits.complexity import Complexity
from e2h.splits.fraction import Fraction
from e2h.splits.length import Length
from e2h.tasks.addition import Addition
from e2h.tasks.modular import Modular
from e2h.tasks.pointer_chasing import PointerChasing

SMALL = dict(width=8, heads=2, layers=2, expansion=2, hidden=(8, 6))
LENGTH = 14  # of the sequences of query and tagging, so that both use the same compiled operations
BASES = {
    "query": dict(task=Addition(zero_pad=True), split=Length(train_max=4, test_max=5), layout=Query()),
    "causal": dict(task=Addition(), split=Length(train_max=3, test_max=4), layout=Causal()),
    "tagging": dict(task=PointerChasing(names=7, flags=6), split=Complexity(train_max=2, test_max=3), layout=Tagging()),
    "table": dict(task=Modular(p=5), split=Fraction(), layout=Table()),
}
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile, not to run


def small(component_type, **settings):
    """A component with small sizes wherever it has a setting of such a name."""
    known = {field.name for field, _ in registry.fields(component_type)}
    return component_type(**{k: v for k, v in SMALL.items() if k in known} | settings)


def variants(component_type):
    """Decoder and encoder, where a model can be both, and at first every place of its layer norm."""
    known = {field.name: field for field, _ in registry.fields(component_type)}
    causal = [dict(causal=v) for v in (True, False)] if "causal" in known else [{}]
    norms = [dict(norm=v) for v in known["norm"].metadata["choices"]] if "norm" in known else [{}]
    return [(small(component_type, **c, **n), n != norms[0]) for n in norms for c in causal]


def configs(base: str):
    """pytest parameters: each model with each position that it accepts, on one base; other norms with one position."""
    found, done = [], set()
    for model_name, position_name in itertools.product(registry.names("model"), registry.names("position")):
        for model, once in variants(registry.load("model", model_name)):
            config = Config(**BASES[base], model=model, position=registry.load("position", position_name)())
            try:
                config.check()
            except Refused:
                continue
            if not (once and model in done):
                chosen = [f"{n}={getattr(model, n)}" for n in ("causal", "norm") if n in vars(model)]
                found.append(pytest.param(config, id="-".join([model_name, position_name, base, *chosen])))
            done.add(model)
    return found


def batch(config: Config, seed: int = 0, rows: int = 3):
    """Training problems, of rising difficulty where the task has several."""
    if type(config.position).assign is Position.assign:  # then all positions share one batch
        config = dataclasses.replace(config, position=NoPosition())
    return _batch(dataclasses.replace(config, model=Config().model, compute_dtype="float32"), seed, rows)


@functools.cache
def _batch(config: Config, seed: int, rows: int):
    return _batch_maker(config, rows)(seed)


@functools.cache
def _batch_maker(config: Config, rows: int):
    known = config.split.difficulties(config.task, "train")
    difficulty_B = jnp.array(np.linspace(known[0], known[-1], rows).round(), jnp.int32)

    def make(seed):
        data = config.split.prepare(config.task, seed)
        return batches.train_batch(config, data, seed, 0, jnp.arange(rows), difficulty_B, known[-1])[1]

    return jax.jit(make, compiler_options=FAST)


def shapes(config: Config, batch):
    return jax.eval_shape(lambda key: train.network(config).init(key, batch)["params"], jax.random.key(0))


def params(config: Config, batch, seed: int = 0):
    """Random parameters, gains and biases included; at the start a network is too regular to show a mistake."""
    return drawn(shapes(config, batch), seed)


def drawn(shapes, seed: int = 0):
    """Random parameters of the given shapes."""
    draw = np.random.default_rng(seed).standard_normal

    def leaf(shape):
        w = draw(shape.shape).astype(np.float32)
        return jnp.asarray(w / np.sqrt(shape.shape[0]) if w.ndim > 1 else (1 + w) / 2)

    return jax.tree.map(leaf, shapes)


def stack(*trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def scrambled(config: Config, batch, where_BxL, seed: int = 0):
    """The batch with other tokens and places where the mask says so."""
    draw = np.random.default_rng(seed)
    words = len(config.layout.vocabulary(config.task))
    tokens = (batch.tokens_BxLxC + jnp.asarray(draw.integers(1, words, batch.tokens_BxLxC.shape), jnp.int32)) % words
    places = jnp.asarray(draw.integers(-1, 4 * LENGTH, batch.place_BxL.shape), jnp.int32)
    return batch._replace(
        tokens_BxLxC=jnp.where(where_BxL[..., None], tokens, batch.tokens_BxLxC),
        place_BxL=jnp.where(where_BxL, places, batch.place_BxL),
    )
