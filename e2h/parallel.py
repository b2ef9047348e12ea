"""Members (seeds x cells of a grid) x devices x processes: one member's functions become a population's.

The only file that names a mapping.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from e2h import evaluate, grid, hosts, train
from e2h.config import Config
from e2h.registry import Refused
from e2h.train import State

SEEDS, BATCH, BOTH = "seeds", "batch", "both"


def check_devices(config: Config) -> None:
    """Raises `Refused` for what these processes and their devices cannot do."""
    processes = jax.process_count()
    if processes > 1 and (config.mapping == "jit" or config.devices % processes):
        raise Refused(
            f"{processes} processes share a run with --mapping=shard_map or pmap and --devices a multiple of "
            f"{processes}, not with --mapping={config.mapping} --devices={config.devices}."
        )
    if config.devices > processes * jax.local_device_count():
        each = f" in each of {processes} processes" if processes > 1 else ""
        raise Refused(
            f"--devices={config.devices}, but there are {jax.local_device_count()} of {jax.default_backend()}{each}."
        )


def lanes(config: Config) -> tuple[int, int]:
    """(devices among which the members are divided, devices that share the batch of each)."""
    if config.mapping == "jit":
        return 1, 1
    share = {SEEDS: 1, BATCH: config.devices, BOTH: config.batch_devices}[config.shard]
    return config.devices // share, share


class Members(NamedTuple):
    """Who a population is made of; the leading axis is S = cells of the grid x seeds, cell by cell."""

    seed: jax.Array  # int32 [S]
    settings: dict[str, jax.Array]  # what differs between cells, each float32 [S]

    def bind(self, config: Config) -> Config:
        """The config of one member (no leading axis), but for its split, whose numbers are in the split's data."""
        return grid.bind(config, {k: v for k, v in self.settings.items() if not k.startswith("split.")})


def members(config: Config) -> Members:
    return place(config, _members(config))


def _members(config: Config) -> Members:
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
    """A compiled `function(per_seed, shared)`: the members divided among lanes of devices.

    The devices of a lane compute the same, unless the function divides its work along the axis BATCH.
    """
    population = populate(function, at_once(config))
    if config.mapping == "jit":
        return jax.jit(population)
    if config.mapping == "pmap":
        return (_pmap_batch if config.shard == BATCH else _pmap_seeds)(population, config)
    divided, same = PartitionSpec(SEEDS), PartitionSpec()
    mapped = jax.shard_map(
        population, mesh=_mesh(config), in_specs=(divided, same), out_specs=divided, check_vma=False
    )  # fmt: skip
    return jax.jit(mapped)


def _mesh(config: Config) -> Mesh:
    return Mesh(np.array(hosts.devices(config.devices)).reshape(lanes(config)), (SEEDS, BATCH))


def _pmap_seeds(population, config: Config):
    """Each process has the members of its own devices."""
    n = config.devices // jax.process_count()
    mapped = jax.pmap(population, in_axes=(0, None), devices=jax.local_devices()[:n])

    def over_devices(per_seed, shared):
        split = jax.tree.map(lambda a: a.reshape(n, -1, *a.shape[1:]), per_seed)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), mapped(split, shared))

    return over_devices


def _pmap_batch(population, config: Config):
    """Each process has all members."""
    n = config.devices // jax.process_count()
    mapped = jax.pmap(  # pmap wants one argument to map over: the number of the device
        lambda _, per_seed, shared: population(per_seed, shared),
        axis_name=BATCH,
        in_axes=(0, None, None),
        devices=hosts.devices(config.devices) if hosts.several() else jax.local_devices()[:n],
    )

    def over_devices(per_seed, shared):
        everywhere = mapped(jnp.arange(n), per_seed, shared)
        return jax.tree.map(lambda a: a.addressable_shards[0].data[0], everywhere)  # all hold the same

    return over_devices


def alone(config: Config) -> Config:
    """The same population on one device of each process, which all compute the same."""
    return dataclasses.replace(config, mapping="jit", devices=1, shard=SEEDS)


def place(config: Config, per_seed):
    """Arrays of all members, which every process has, where its devices will look for them."""
    if _everywhere(config):
        return per_seed
    if config.mapping == "pmap":
        return hosts.part(per_seed)
    sharding = NamedSharding(_mesh(config), PartitionSpec(SEEDS))

    def everywhere(a):
        a = np.asarray(a)
        return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])

    return jax.tree.map(everywhere, per_seed)


def _everywhere(config: Config) -> bool:
    """Whether each process holds the arrays of all members for itself."""
    return not hosts.several() or config.mapping == "jit" or (config.mapping == "pmap" and config.shard == BATCH)


def fetch(config: Config, per_seed):
    """The inverse of `place`, as NumPy arrays, on every process; all must take part."""
    if _everywhere(config):
        return jax.device_get(per_seed)
    return hosts.gathered(per_seed)


def adopt(config: Config, state: State | None) -> State:
    """A state that process 0 has read, placed; the other processes give None."""
    if state is None:
        state = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes(config))
    params, opt_state, step = hosts.arrays(state)
    return State(*place(config, (params, opt_state)), jnp.int32(step))


def init(config: Config) -> State:
    """The state of a population: a leading seed axis on parameters and optimizer state, one step for all."""
    params, opt_state, step = _init(config)
    return State(*place(config, (params, opt_state)), step)


def shapes(config: Config) -> State:
    """Shapes and types of all members' state, wherever it is placed."""
    return jax.eval_shape(lambda: _init(config))


def _init(config: Config) -> State:
    def init_one(member, _):
        state = train.init(member.bind(config), member.seed, lambda: _prepare(config, member))
        return state.params, state.opt_state

    params, opt_state = jax.jit(populate(init_one, at_once(config)))(_members(config), None)
    return State(params, opt_state, jnp.int32(0))


def prepare(config: Config):
    """The split's data of every member."""
    return place(config, jax.jit(jax.vmap(functools.partial(_prepare, config)))(_members(config)))


def _prepare(config: Config, member: Members):
    return grid.bind(config, member.settings).split.prepare(config.task, member.seed)


def chunk(config: Config):
    """`run(data, members, state, stop) -> (state, totals of every member)`, compiled once for equal configs."""
    return _chunk(_program(config))


@functools.cache
def _chunk(config: Config):
    shards = lanes(config)[1]

    def one_seed(own, shared):
        (data, member, params, opt_state), (step, stop) = own, shared
        axis = BATCH if shards > 1 else None
        state = State(params, opt_state, step)
        state, totals = train.chunk(member.bind(config), data, member.seed, state, stop, axis, shards)
        return state.params, state.opt_state, totals

    compiled = spread(one_seed, config)

    def run(data, members, state, stop):
        own = (data, members, state.params, state.opt_state)
        params, opt_state, totals = compiled(own, (np.int32(state.step), np.int32(stop)))
        return State(params, opt_state, jnp.int32(stop)), totals

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
        return compiled((data, members, params), np.array(difficulties, np.int32))

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
    return lambda data, members, params, step: compiled((data, members, params), np.int32(step))


def _program(config: Config) -> Config:
    """The config without what leaves the compiled programs as they are."""
    steps = config.steps if config.optimizer.uses_budget else 1
    return dataclasses.replace(config, steps=steps, record_every=1, evaluate_every=1, checkpoint_every=1, first_seed=0)
