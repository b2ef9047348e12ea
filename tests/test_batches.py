"""A batch is a function of seed and step, whatever rows, arrays or population it is drawn in."""

import dataclasses
import functools
import hashlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import label, quick_jit, take

from e2h import batches, registry
from e2h.config import Config
from e2h.curricula.uniform import Uniform
from e2h.layouts import Batch
from e2h.layouts.causal import Causal
from e2h.layouts.query import Query
from e2h.layouts.tagging import Tagging
from e2h.positions import Position
from e2h.registry import Refused
from e2h.splits import TEST, TRAIN
from e2h.splits.complexity import Complexity
from e2h.splits.fraction import Fraction
from e2h.splits.length import Length
from e2h.tasks.addition import Addition
from e2h.tasks.even_pairs import EvenPairs
from e2h.tasks.modular import Modular
from e2h.tasks.parity import Parity
from e2h.tasks.pointer_chasing import PointerChasing

# The first training batch of seed 0 of each task with its defaults, in all of its layouts.
FIRST_BATCH = {
    "addition": "cd45a5efdc0eeaef",
    "even_pairs": "9efb8c5c18f65b69",
    "group_words": "208daace2f1dc738",
    "modular": "24c6586252fab309",
    "parity": "47413fc290086b26",
    "permutation": "ad480a4e37326d9a",
    "pointer_chasing": "35c7284e412f127d",
    "unordered_sum": "f389b63bac93930d",
}
WHEN_TO_UPDATE = (
    "The numbers of {} changed: runs can no longer be compared with earlier ones. Put the new hash, {!r}, here only if "
    "that is intended, and say so in CHANGELOG.md. A new version of JAX that draws other random numbers counts as well."
)

SPLIT = Length(train_max=7, test_max=20)
RANGE = Config(task=Parity(), split=SPLIT, layout=Query(), batch_size=6, test_size=6, buckets=3)
MIXED = dataclasses.replace(RANGE, task=Addition(), layout=Causal(), curriculum=Uniform(mixed=True))
CHASE = Config(
    task=PointerChasing(names=9, flags=4),
    split=Complexity(train_max=2, test_max=4),
    layout=Tagging(),
    batch_size=6,
    test_size=6,
)
TABLE = Config(task=Modular(p=7), split=Fraction(0.4), batch_size=6, test_size=6)
CONFIGS = [RANGE, MIXED, CHASE, TABLE]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=["range", "mixed", "chase", "table"])


@functools.cache
def trainer(config, rows: int, capacity: int):
    def batch(seed, step, first, difficulty):
        data = config.split.prepare(config.task, seed)
        return batches.train_batch(config, data, seed, step, first + jnp.arange(rows), difficulty, capacity)

    return quick_jit(batch)


@functools.cache
def evaluated(config, part, capacity):
    def batch(seed, block, difficulty):
        data = config.split.prepare(config.task, seed)
        return batches.test_batch(config, data, seed, part, block, difficulty, capacity)

    return quick_jit(batch)


def drawn(config, seed=0, step=3, first=0, rows=6, difficulty=None, capacity=None):
    """(problems, Batch) of a training step, on the host."""
    highest = batches.capacities(config, TRAIN)[-1]
    if difficulty is None:
        difficulty = first + 1 + np.arange(rows, dtype=np.int32) if config.curriculum.mixed else np.int32(highest)
    return jax.device_get(trainer(config, rows, capacity or highest)(seed, step, first, difficulty))


def split_for(task):
    """The first split, with its defaults, that divides a task."""
    for name in registry.names("split"):
        config = Config(
            task=task, split=registry.load("split", name)(), layout=registry.load("layout", task.layouts[0])()
        )
        try:
            config.split.check(config)
        except Refused:
            continue
        return config.split


def first_batch_hash(task):
    """Hash of the integers of the first batch at the hardest difficulty of training, in each of the task's layouts."""
    split, found = split_for(task), hashlib.sha256()
    hardest = split.difficulties(task, TRAIN)[-1]
    layouts = [registry.load("layout", name)() for name in sorted(task.layouts)]

    def first():
        config, data = Config(task=task, split=split, layout=layouts[0], batch_size=4), split.prepare(task, 0)
        problems, batch = batches.train_batch(config, data, 0, 0, jnp.arange(4), hardest, hardest)
        return batch, [jax.vmap(functools.partial(layout.arrange, task))(problems) for layout in layouts]

    for array in jax.tree.leaves(jax.device_get(quick_jit(first)())):
        found.update(str(array.shape).encode() + array.astype("<i4").tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", [name for name in registry.names("task") if name in FIRST_BATCH])
def test_the_first_batch_of_a_task_is_still_the_same(name):
    found = first_batch_hash(registry.load("task", name)())
    assert found == FIRST_BATCH[name], WHEN_TO_UPDATE.format(name, found)


@pytest.mark.parametrize("name", registry.names("task"))
def test_some_split_divides_every_task_by_default(name):
    assert split_for(registry.load("task", name)()) is not None


# ---- capacities


SPANS = [
    dataclasses.replace(RANGE, task=task, split=split, buckets=buckets)
    for task, split in (
        (Parity(), Length()),
        (Parity(), Length(train_min=5, train_max=7, test_max=8)),
        (EvenPairs(), Length(train_min=2, train_max=2, test_max=500, test_every=7)),
        (Addition(), Length(train_min=3, train_max=33, test_max=1000)),
        (PointerChasing(), Complexity()),
        (Modular(p=5), Fraction()),
    )
    for buckets in (1, 2, 4, 64)
]


@pytest.mark.parametrize("config", SPANS, ids=lambda c: f"{label(c.task)} {label(c.split)} {c.buckets}")
def test_capacities_hold_every_difficulty_in_few_shapes(config):
    parts = (TRAIN, *config.split.parts)
    for part in parts:
        sizes, known = batches.capacities(config, part), config.split.difficulties(config.task, part)
        assert list(sizes) == sorted(set(sizes)) and sizes[-1] == known[-1]
        assert len({config.task.shape(c) for c in sizes}) == len(sizes)
        assert sizes[0] >= config.split.difficulties(config.task, TRAIN)[0]
    assert len(batches.capacities(config, TRAIN)) <= config.buckets
    assert len(batches.capacities(config, TEST)) == 1
    for part in config.split.unseen:
        lengths = [config.task.shape(c)[0] for c in (config.split.train_max, *batches.capacities(config, part))]
        assert all(longer <= 2 * shorter for shorter, longer in itertools.pairwise(lengths))


@pytest.mark.parametrize(
    "low, high, hardest, buckets, train, unseen",
    [
        (1, 20, 100, 4, (5, 10, 15, 20), (40, 80, 100)),
        (1, 20, 40, 3, (7, 14, 20), (40,)),
        (3, 5, 6, 8, (3, 4, 5), (6,)),
        (2, 2, 9, 4, (2,), (4, 8, 9)),
    ],
)
def test_capacities_of_a_range(low, high, hardest, buckets, train, unseen):
    split = Length(train_min=low, train_max=high, test_max=hardest)
    config = Config(task=Parity(), split=split, layout=Tagging(), buckets=buckets)
    assert batches.capacities(config, TRAIN) == train and batches.capacities(config, "test_length") == unseen


# ---- training batches


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@every_config
def test_a_row_does_not_depend_on_the_rows_drawn_with_it(config):
    assert_equal(take(drawn(config, first=2), slice(0, 4)), take(drawn(config), slice(2, 6)))
    if config is MIXED:
        assert_equal(drawn(config, first=2, rows=3), take(drawn(config), slice(2, 5)))


@every_config
def test_a_batch_is_a_function_of_seed_and_step(config):
    prompts = [drawn(config, seed=seed, step=step)[0].prompt_PxC.tobytes() for seed in (0, 1) for step in (0, 1)]
    assert len(set(prompts)) == 4
    assert_equal(drawn(config), drawn(config))


@every_config
def test_rows_beyond_the_batch_are_no_problems(config):
    _, batch = drawn(config, first=4)
    assert (batch.weight_BxR[2:] == 0).all()
    assert drawn(config)[1].weight_BxR.any()


@every_config
def test_a_batch_has_the_types_and_sizes_that_are_announced(config):
    _, batch = drawn(config)
    announced = batches.shape(config)
    assert [a.dtype for a in batch] == [a.dtype for a in announced] == [np.int32] * 5 + [np.float32]
    assert [a.shape[1:] for a in batch] == [a.shape[1:] for a in announced]
    assert {a.shape[0] for a in announced} == {1}


def test_a_batch_drawn_large_and_cut_is_the_one_drawn_small():
    difficulty = 1 + np.arange(6, dtype=np.int32) % 4
    (_, large), (_, small) = (drawn(MIXED, difficulty=difficulty, capacity=c) for c in (7, 4))
    assert_equal(batches.trim(MIXED, large, 4), small)


@functools.cache
def difficulties(config):
    """int32 [steps] or [steps, rows] of the first steps."""
    return jax.device_get(
        quick_jit(jax.vmap(lambda step: batches.difficulty(config, step, jnp.arange(6))))(jnp.arange(64))
    )


def test_the_difficulty_of_a_step_is_shared_by_all_seeds_and_differs_between_steps():
    others = [dataclasses.replace(RANGE, first_seed=7), dataclasses.replace(RANGE, seeds=1)]
    for config in others:
        assert_equal(difficulties(config), difficulties(RANGE))
    assert set(difficulties(RANGE)) == set(range(1, 8)) and difficulties(RANGE).dtype == np.int32


def test_a_mixed_curriculum_gives_each_row_its_difficulty_whatever_rows_are_drawn():
    found = difficulties(MIXED)
    assert found.shape == (64, 6) and set(found.ravel()) == set(range(1, 8))
    some = batches.difficulty(MIXED, 9, jnp.arange(2, 5))
    assert some.tolist() == found[9, 2:5].tolist()
    assert any(len(set(row)) > 2 for row in found)


def test_a_mixed_batch_holds_problems_of_the_difficulties_asked_for():
    problems, batch = drawn(MIXED)
    assert problems.prompt_length.tolist() == [2 * (d + 1) + 1 for d in range(6)]
    assert (batch.length_B > problems.prompt_length).all()


@dataclasses.dataclass(frozen=True)
class Shifted(Position):
    """Places moved by a random offset, so that places of two rows tell whether their keys differ."""

    def assign(self, key, place_L):
        return place_L + jax.random.randint(key, (), 0, 2**20)


def test_places_are_drawn_anew_for_each_row_step_and_seed_and_kept_in_tests():
    config = dataclasses.replace(RANGE, position=Shifted())
    places = [drawn(config, seed=seed, step=step)[1].place_BxL[:, 0] for seed in (0, 1) for step in (0, 1)]
    assert len(set(np.ravel(places))) == 24
    assert drawn(config, first=2)[1].place_BxL[:4, 0].tolist() == drawn(config)[1].place_BxL[2:, 0].tolist()
    tests = [evaluated(config, TEST, 7)(seed, block, 7)[1].place_BxL[:, 0] for seed in (0, 1) for block in (0, 1)]
    assert len(set(np.ravel(tests))) == 24


# ---- test batches


@pytest.mark.parametrize("config", [RANGE, CHASE, TABLE], ids=["range", "chase", "table"])
def test_blocks_and_seeds_of_a_test_differ(config):
    hardest = batches.capacities(config, TEST)[-1]
    at = evaluated(config, TEST, hardest)
    found = [at(seed, block, hardest)[0].prompt_PxC.tobytes() for seed in (0, 1) for block in (0, 1)]
    assert len(set(found)) == 4


def test_a_test_does_not_depend_on_the_capacity_it_is_drawn_at():
    part = RANGE.split.unseen[0]
    _, small = evaluated(RANGE, part, 14)(0, 0, 9)
    _, large = evaluated(RANGE, part, 20)(0, 0, 9)
    assert_equal(jax.device_get(batches.trim(RANGE, large, 14)), jax.device_get(small))
    assert isinstance(large, Batch) and (large.weight_BxR[:, 0] == 1).all()


def test_the_test_problems_stay_the_same_when_training_changes():
    changed = dataclasses.replace(RANGE, batch_size=3, buckets=1, curriculum=Uniform(mixed=True), first_seed=2)
    assert_equal(*(jax.device_get(evaluated(config, TEST, 7)(4, 0, 5)) for config in (RANGE, changed)))
