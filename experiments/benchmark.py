"""How fast e2h is, as ratios within one run on one machine: `python -m experiments.benchmark` (a few minutes).

Absolute times drift from machine to machine and from hour to hour; the ratios are what to compare.
"""

import dataclasses
import functools
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from e2h import batches, grid, parallel, records, train
from e2h.config import Config
from e2h.evaluate import sweeps
from e2h.layouts.query import Query
from e2h.layouts.table import Table
from e2h.models.mlp import MLP
from e2h.models.rnn import RNN
from e2h.models.transformer import Transformer
from e2h.optimizers.adamw import AdamW
from e2h.positions.learned import Learned
from e2h.run import run
from e2h.splits.fraction import Fraction
from e2h.splits.length import Length
from e2h.tasks.modular import Modular
from e2h.tasks.parity import Parity

PARITY = Config(
    task=Parity(),
    split=Length(train_max=40, test_max=500, test_every=20),
    layout=Query(),
    model=RNN(width=256),
    optimizer=AdamW(clip_norm=1.0),
    seeds=1,
    record_every=50,
    evaluate_every=10**6 // 50 * 50,
)
MODULAR = Config(
    task=Modular(p=97),
    split=Fraction(train_fraction=0.5),
    layout=Table(equals=True),
    position=Learned(max_length=8),
    model=Transformer(width=128, layers=2),
    batch_size=512,
    seeds=1,
)


def main() -> None:
    print(f"{records.device()}; {' '.join(f'{k} {v}' for k, v in records.versions().items())}\n")
    rate = matmul_rate()
    for title, measure in (
        ("host loop / bare scan of the same step", host_loop),
        ("parity, RNN-256, batch 128, lengths 1..40", buckets_against_recompiling),
        ("population of seeds, parity RNN-64", populations),
        ("a grid of 12 x 12 small networks, 500 steps each", grids),
        ("compiled programs", compiled_programs),
        ("arithmetic, modular transformer 2 x 128, batch 512", functools.partial(arithmetic, rate)),
    ):
        print(title, flush=True)
        for name, value in measure():
            print(f"    {name:<72} {value}", flush=True)


def matmul_rate(size: int = 2048) -> float:
    """The largest float32 matrix product rate seen, GFLOP/s."""
    a = jnp.ones((size, size))
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    return 2 * size**3 / seconds(lambda: product(a), repeats=7, best=True) / 1e9


def seconds(work, repeats: int = 5, best: bool = False) -> float:
    """Median (or least) wall time of `work()`, which returns arrays, after one call to warm up."""
    jax.block_until_ready(work())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - began)
    return min(times) if best else statistics.median(times)


def start(config: Config):
    """(data, members, state) of a population."""
    return parallel.prepare(config), parallel.members(config), parallel.init(config)


def bare_scan(config: Config, steps: int):
    """A jitted `lax.scan` over the step of one seed, nothing around it."""
    rows, sizes = jnp.arange(config.batch_size), batches.capacities(config, "train")

    def branch(capacity, state, batch):
        return train.step(config, state, batches.trim(config, batch, capacity))

    def body(carry, _):
        data, seed, state = carry
        difficulty = batches.difficulty(config, state.step, rows)
        _, batch = batches.train_batch(config, data, seed, state.step, rows, difficulty, sizes[-1])
        branches = [functools.partial(branch, capacity) for capacity in sizes]
        state, *told = jax.lax.switch(jnp.searchsorted(jnp.array(sizes), difficulty), branches, state, batch)
        return (data, seed, state), told  # the score is part of the step: left out, it would not be computed

    return jax.jit(lambda *carry: jax.lax.scan(body, carry, length=steps))


def host_loop(steps: int = 3000):
    """Chunks, rows, TensorBoard events and checkpoints against the bare scan, before and after it to cancel drift."""
    config = dataclasses.replace(PARITY, model=RNN(width=64), steps=steps, test_size=8)
    data, members, state = start(config)
    one = jax.tree.map(lambda a: a[0], (data, members.seed, state.params, state.opt_state))
    scan = bare_scan(config, steps)
    bare = lambda: scan(one[0], one[1], train.State(one[2], one[3], jnp.int32(0)))  # noqa: E731
    jax.block_until_ready(bare())
    run_seconds(dataclasses.replace(config, steps=50))  # compiles
    ratios = []
    for _ in range(5):
        before = seconds(bare, repeats=1)
        short, long = (run_seconds(dataclasses.replace(config, steps=n)) for n in (steps, 2 * steps))
        ratios.append((long - short) / statistics.mean([before, seconds(bare, repeats=1)]))
    yield "ratio, median of 5 (least to most)", f"{np.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def run_seconds(config: Config) -> float:
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        run(config, pathlib.Path(directory), progress=False)
        return time.perf_counter() - began


def buckets_against_recompiling(steps: int = 1000):
    """The whole population program against a jitted step that is compiled for each length."""
    data, members, state = start(PARITY)
    chunk = parallel.chunk(dataclasses.replace(PARITY, seeds_per_program=2))  # a program of its own, so it is cold
    began = time.perf_counter()
    jax.block_until_ready(chunk(data, members, state, steps))
    cold = time.perf_counter() - began
    warm = seconds(lambda: chunk(data, members, state, steps), repeats=3) / steps
    own = jax.tree.map(lambda a: a[0], (data, members.seed, state.params, state.opt_state))
    rows = jnp.arange(PARITY.batch_size)

    @functools.partial(jax.jit, static_argnums=1)
    def step(state, length):
        _, batch = batches.train_batch(PARITY, own[0], own[1], state.step, rows, jnp.int32(length), length)
        return train.step(PARITY, state, batch)[0]

    fresh = train.State(own[2], own[3], jnp.int32(0))
    began = time.perf_counter()
    jax.block_until_ready([step(fresh, length).params for length in range(1, 41)])
    compiling = time.perf_counter() - began
    each = statistics.mean(seconds(lambda n=n: step(fresh, n).params, repeats=5) for n in range(1, 41))
    other = compiling + steps * each
    yield "first 1,000 steps from cold: one program / one per length", f"{cold:.1f} s / {other:.1f} s"
    yield "ratio, cold", f"{other / cold:.2f} x faster"
    yield "warm step: one program / one per length", f"{warm * 1e3:.2f} ms / {each * 1e3:.2f} ms"
    padded = parallel.chunk(dataclasses.replace(PARITY, buckets=1))
    one_bucket = seconds(lambda: padded(data, members, state, steps), repeats=3) / steps
    yield "warm step: four buckets / padded to 40", f"{warm * 1e3:.2f} ms / {one_bucket * 1e3:.2f} ms"


def populations(steps: int = 200):
    for count in (1, 4, 16):
        config, each = dataclasses.replace(PARITY, model=RNN(width=64), seeds=count), []
        for together in (1, count):
            config = dataclasses.replace(config, seeds_per_program=together)
            began = start(config)
            each.append(seconds(lambda c=config, b=began: parallel.chunk(c)(*b, steps), repeats=3) / steps / count)
        yield f"{count} seeds, in turn / all at once", f"{each[0] * 1e3:.3f} / {each[1] * 1e3:.3f} ms a step and seed"


def grids(steps: int = 500):
    """One program over (learning rate, decay) against a run for each cell, of which a few are timed; both from cold."""
    axes = {"learning_rate": np.geomspace(1e-4, 1e-1, 12), "weight_decay": np.linspace(0, 11, 12)}
    lines = tuple(f"optimizer.{name}=" + ":".join(f"{v:.4g}" for v in values) for name, values in axes.items())
    config = Config(
        task=Modular(p=23), split=Fraction(train_fraction=0.7), model=MLP(hidden=(64,)), batch_size=2**20, seeds=1,
        steps=steps, record_every=steps // 2, evaluate_every=steps // 2, halt=False,
    )  # fmt: skip
    population = dataclasses.replace(config, grid=lines)
    one = run_seconds(population)
    some = [grid.at(population, grid.cells(population)[i]) for i in (0, 70, 143)]
    each = statistics.median(run_seconds(cell) for cell in some)
    yield "runs a minute: one program / separate runs", f"{144 * 60 / one:.0f} / {60 / each:.0f}"
    yield "ratio", f"{144 * each / one:.1f} x"


def compiled_programs():
    """Programs that training on 1..40 and evaluating up to 500 compile."""
    config = dataclasses.replace(PARITY, test_size=64, model=RNN(width=32))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiled.append(event) if "backend_compile_duration" in event else None
    )
    data, members, state = start(config)
    before = len(compiled)
    state, _ = parallel.chunk(config)(data, members, state, 50)
    parallel.chunk(config)(data, members, state, 107)
    trained = len(compiled)
    for part, capacity, difficulties in sweeps(config):
        parallel.sweep(config, part, capacity)(data, members, state.params, difficulties)
    yield "training on lengths 1..40", trained - before
    yield "evaluating lengths 1..500", len(compiled) - trained


def arithmetic(rate: float, steps: int = 20):
    """Floating-point operations of the matrix products in a step, counted by hand, over its time."""
    data, members, state = start(MODULAR)
    each = seconds(lambda: parallel.chunk(MODULAR)(data, members, state, steps), repeats=5) / steps
    work = transformer_flops(MODULAR)
    yield "largest float32 matrix product", f"{rate:.0f} GFLOP/s"
    yield "step", f"{each * 1e3:.1f} ms, {work / each / 1e9:.0f} GFLOP/s, {work / each / 1e9 / rate:.0%} of that"
    everywhere = transformer_flops(MODULAR, reads=MODULAR.longest)
    yield "work when all positions of the last block are computed / only the one read", f"{everywhere / work:.2f}"


def transformer_flops(config: Config, reads: int = 1) -> float:
    """Of the products in forward and backward passes (three times the forward's), with `reads` outputs a row."""
    m, length = config.model, config.longest
    d, classes = m.width, len(config.layout.classes(config.task))

    def block(queries):
        attention = 2 * queries * length * d * 2
        return attention + 2 * d * d * (2 * length + 2 * queries) + 2 * queries * d * m.expansion * d * 2

    forward = (m.layers - 1) * block(length) + block(reads) + 2 * reads * d * classes
    return 3.0 * config.batch_size * forward


if __name__ == "__main__":
    main()
