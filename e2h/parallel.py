"""Members (seeds x cells of a grid) x devices: one member's functions become a population's.

The only file that names a mapping.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from e2h import evaluate, grid, train
from e2h.config import Config
from e2h.registry import Refused
from e2h.train import State

SEEDS, BATCH = "seeds", "batch"


def check_devices(config: Config) -> None:
    if config.devices > jax.local_device_count():
        raise Refused(
            f"--devices={config.devices}, but there are {jax.local_device_count()} of {jax.default_backend()}."
        )


class Members(NamedTuple):
    """Who a population is made of; the leading axis is S = cells of the grid x seeds, cell by cell."""

    seed: jax.Array  # int32 [S]
    settings: dict[str, jax.Array]  # what differs between cells, each float32 [S]

    def bind(self, config: Config) -> Config:
        """The config of one member (no leading axis), but for its split, whose numbers are in the split's data."""
        return grid.bind(config, {k: v for k, v in self.settings.items() if not k.startswith("split.")})


def members(config: Config) -> Members:
    seeds = jnp.array([seed for seed, _ in grid.members(config)], jnp.int32)
    return Members(seeds, jax.tree.map(jnp.asarray, grid.columns(config)))


def at_once(config: Config) -> int:
    """Members that a device computes together, as one batch; the others follow in the same program.

    A CPU's cores are full with one (measured: in turn, members of small networks take 0.6 to 0.95 of the time).
    """
    return config.seeds_per_program or (1 if jax.default_backend() == "cpu" else len(grid.members(config)))


def populate(function, group: int):
    """`function` of one seed over a leading seed axis, at most `group` seeds at a time.

    It takes (arrays of the seed, shared scalars) and returns arrays of the seed.
    """

    def population(per_seed, shared):
        count = len(jax.tree.leaves(per_seed)[0])
        if count == 1:  # alone: matrix products without a batch axis of one are faster
            alone = function(jax.tree.map(lambda a: a[0], per_seed), shared)
            return jax.tree.map(lambda a: jnp.asarray(a)[None], alone)
        if count <= group:
            return jax.vmap(function, in_axes=(0, None))(per_seed, shared)
        return jax.lax.map(lambda own: function(own, shared), per_seed, batch_size=group if group > 1 else None)

    return population


def spread(function, config: Config):
    """A compiled `function(per_seed, shared)` over the local devices, which take equal shares of the seeds."""
    n, population = config.devices, populate(function, at_once(config))
    if config.mapping == "jit" or config.shard == BATCH:
        return jax.jit(population)
    if config.mapping == "shard_map":
        divided, same = PartitionSpec(SEEDS), PartitionSpec()
        return jax.jit(_shard_map(population, config, SEEDS, (divided, same), divided))
    mapped = jax.pmap(population, in_axes=(0, None), devices=jax.local_devices()[:n])

    def over_devices(per_seed, shared):
        split = jax.tree.map(lambda a: a.reshape(n, -1, *a.shape[1:]), per_seed)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), mapped(split, shared))

    return over_devices


def share_batch(function, config: Config):
    """A compiled `function(per_seed, shared)` in which the devices share every seed's batch through the axis BATCH."""
    population = populate(function, at_once(config))
    if config.mapping == "shard_map":
        same = PartitionSpec()
        return jax.jit(_shard_map(population, config, BATCH, (same, same), same))
    mapped = jax.pmap(  # pmap wants one argument to map over: the number of the device
        lambda _, per_seed, shared: population(per_seed, shared),
        axis_name=BATCH,
        in_axes=(0, None, None),
        devices=jax.local_devices()[: config.devices],
    )

    def over_devices(per_seed, shared):
        everywhere = mapped(jnp.arange(config.devices), per_seed, shared)
        return jax.tree.map(lambda a: a.addressable_shards[0].data[0], everywhere)  # all hold the same

    return over_devices


def _shard_map(function, config: Config, axis: str, in_specs, out_specs):
    mesh = Mesh(np.array(jax.local_devices()[: config.devices]), (axis,))
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def init(config: Config) -> State:
    """The state of a population: a leading seed axis on parameters and optimizer state, one step for all."""

    def init_one(member, _):
        state = train.init(member.bind(config), member.seed, lambda: _prepare(config, member))
        return state.params, state.opt_state

    params, opt_state = jax.jit(populate(init_one, at_once(config)))(members(config), None)
    return State(params, opt_state, jnp.int32(0))


def prepare(config: Config):
    """The split's data of every member."""
    return jax.jit(jax.vmap(functools.partial(_prepare, config)))(members(config))


def _prepare(config: Config, member: Members):
    return grid.bind(config, member.settings).split.prepare(config.task, member.seed)


def chunk(config: Config):
    """`run(data, members, state, stop) -> (state, totals of every member)`, compiled once for equal configs."""
    return _chunk(_program(config))


@functools.cache
def _chunk(config: Config):
    by_batch = config.mapping != "jit" and config.shard == BATCH

    def one_seed(own, shared):
        (data, member, params, opt_state), (step, stop) = own, shared
        axis, shards = (BATCH, config.devices) if by_batch else (None, 1)
        state = State(params, opt_state, step)
        state, totals = train.chunk(member.bind(config), data, member.seed, state, stop, axis, shards)
        return state.params, state.opt_state, totals

    compiled = (share_batch if by_batch else spread)(one_seed, config)

    def run(data, members, state, stop):
        own, stop = (data, members, state.params, state.opt_state), jnp.int32(stop)
        params, opt_state, totals = compiled(own, (state.step, stop))
        return State(params, opt_state, stop), totals

    return run


def sweep(config: Config, part: str, capacity: int):
    """`run(data, members, params, difficulties) -> Cell [S, N]`, compiled once for equal configs."""
    return _sweep(_program(config), part, capacity)


@functools.cache
def _sweep(config: Config, part: str, capacity: int):
    def one_seed(own, difficulty_N):
        data, member, params = own
        return evaluate.sweep(member.bind(config), part, capacity, data, member.seed, params, difficulty_N)

    compiled = spread(one_seed, config)

    def run(data, members, params, difficulties):
        return compiled((data, members, params), jnp.array(difficulties, jnp.int32))

    return run


def measure(config: Config):
    """`run(data, members, params, step) -> {name: (sum [S], count [S])}`, compiled once for equal configs."""
    return _measure(_program(config))


@functools.cache
def _measure(config: Config):
    def one_seed(own, step):
        data, member, params = own
        return evaluate.measure(member.bind(config), data, member.seed, params, step)

    compiled = spread(one_seed, config)
    return lambda data, members, params, step: compiled((data, members, params), jnp.int32(step))


def _program(config: Config) -> Config:
    """The config without what leaves the compiled programs as they are."""
    steps = config.steps if config.optimizer.uses_budget else 1
    return dataclasses.replace(config, steps=steps, record_every=1, evaluate_every=1, checkpoint_every=1, first_seed=0)
