"""No problem is trained on and tested on: for no seed, at no difficulty, nor through a symmetric twin."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import cut, draw, instances, label, quick_jit

from e2h import registry
from e2h.config import Config
from e2h.registry import Refused
from e2h.splits import TEST, TRAIN
from e2h.splits._ranges import RangeSplit, fingerprint, first_of_its_kind
from e2h.splits.complexity import Complexity
from e2h.splits.fraction import CLEAN, CORRUPTED, Fraction
from e2h.splits.length import Length
from e2h.tasks import problem
from e2h.tasks.addition import Addition
from e2h.tasks.even_pairs import EvenPairs
from e2h.tasks.modular import Modular
from e2h.tasks.parity import Parity
from e2h.tasks.permutation import Permutation
from e2h.tasks.pointer_chasing import PointerChasing

SEEDS = range(3)
STEPS = 4
SIZE = 256  # problems of a batch and of a test block
EXTRA = 3  # rows beyond a batch

RANGES = [
    (Length(train_max=6, test_max=9), Parity()),
    (Length(train_max=6, test_max=9, held_out=0.4), EvenPairs()),
    (Length(train_max=3, test_max=5), Addition()),
    (Complexity(train_max=2, test_max=3), PointerChasing(names=7, flags=3)),
]

# A task of a file of its own is held to the same, without being written here.
for task in instances():
    if "table" not in task.layouts and type(task) not in {type(known) for _, known in RANGES}:
        split = {"length": Length, "computation": Complexity}[task.axis]
        easy = min(task.lowest + 3, task.highest - 1)
        RANGES.append((split(train_max=easy, test_max=min(easy + 2, task.highest)), task))

every_range = pytest.mark.parametrize("split, task", RANGES, ids=lambda c: label(c))
every_split = pytest.mark.parametrize("name", registry.names("split"))


@functools.cache
def drawn(split, task):
    """{part: {difficulty: (forms, weights, is_held_out, lengths)}}, each with leading axes [seeds or steps, SIZE]."""
    row_B = jnp.arange(SIZE + EXTRA)

    def described(problems, weight_B, difficulty):
        held_B = jax.vmap(lambda x: split.is_held_out(task, x, difficulty))(problems)
        return jax.vmap(task.canonical)(problems), weight_B, held_B, problems.prompt_length

    def train(seed, step, difficulty):
        drawn = split.train(task, (), seed, step, row_B, SIZE, difficulty, split.test_max)
        return described(*drawn, difficulty)

    def test(part, seed, _, difficulty):
        return described(*split.test(task, (), seed, part, 0, SIZE, difficulty, split.test_max), difficulty)

    found = {}
    for part in (TRAIN, *split.parts):
        call = quick_jit(train if part == TRAIN else functools.partial(test, part))
        at = [(seed, step) for seed in SEEDS for step in range(STEPS if part == TRAIN else 1)]
        found[part] = {
            d: jax.tree.map(lambda *a: np.stack(a), *jax.device_get([call(*i, d) for i in at]))
            for d in split.difficulties(task, part)
        }
    return found


def forms(cell):
    """The canonical forms that count."""
    form, weight, *_ = cell
    return set(map(bytes, np.ascontiguousarray(form[weight > 0])))


# ---- splits by difficulty


@every_range
def test_no_training_problem_of_any_seed_is_a_test_problem_of_any_seed(split, task):
    found = drawn(split, task)
    assert {TRAIN, *split.parts} == found.keys()
    for difficulty, cell in found[TRAIN].items():
        assert forms(cell)
        assert not forms(cell) & forms(found[TEST][difficulty])
    assert found[TRAIN].keys().isdisjoint(*(found[part].keys() for part in split.unseen))


@every_range
def test_the_hash_sends_each_problem_to_one_side(split, task):
    found = drawn(split, task)
    for part, cells in found.items():
        for _, weight, held, _ in cells.values():
            if part not in split.unseen:
                assert (held[weight > 0] == (part == TEST)).all()


@every_range
def test_unseen_parts_are_harder_than_all_of_training(split, task):
    found = drawn(split, task)
    assert max(found[TRAIN]) == split.train_max and max(found[split.unseen[0]]) == split.test_max
    for part in split.unseen:
        assert min(found[part]) > max(found[TRAIN])
        for difficulty, (form, weight, _, length) in found[part].items():
            assert (length == (2 * difficulty + 1 if isinstance(task, Addition) else length.flat[0])).all()
            if task.axis == "computation":
                assert (form[..., -1] == difficulty).all() and (weight[:, 0] == 1).all()


@every_range
def test_short_problems_are_divided_without_remainder(split, task):
    found = drawn(split, task)
    for difficulty in found[TRAIN]:
        exist = task.distinct(difficulty)
        if isinstance(task, Addition):
            exist = (exist + task._operands(difficulty)) // 2  # a + b and b + a are one
        if exist <= 200:
            assert len(forms(found[TRAIN][difficulty]) | forms(found[TEST][difficulty])) == exist


def test_the_two_problems_of_length_one_may_both_be_trained_on():
    found = drawn(*RANGES[0])
    assert len(forms(found[TRAIN][1])) + len(forms(found[TEST][1])) == 2
    assert found[TEST][1][1].sum() == len(SEEDS) * len(forms(found[TEST][1]))


@every_range
def test_a_test_block_counts_each_problem_once(split, task):
    for part in split.parts:
        for form, weight, held, _ in drawn(split, task)[part].values():
            assert set(np.unique(weight)) <= {0.0, 1.0}
            for form_B, weight_B, held_B in zip(form, weight, held, strict=True):
                found = form_B if part in split.unseen else form_B[held_B]
                assert weight_B.sum() == len(np.unique(found, axis=0)) == len(np.unique(form_B[weight_B > 0], axis=0))


@every_range
def test_a_second_draw_leaves_few_rows_of_a_training_batch_without_a_problem(split, task):
    for _, weight, _, _ in drawn(split, task)[TRAIN].values():
        assert (weight[:, SIZE:] == 0).all()
    assert (weight[:, :SIZE] == 0).mean() < 0.8 * split.held_out


@every_range
def test_batches_of_other_seeds_and_steps_differ(split, task):
    form = drawn(split, task)[TRAIN][split.train_max][0]
    assert len({batch.tobytes() for batch in form}) == len(form)
    blocks = drawn(split, task)[split.unseen[0]][split.test_max][0]
    assert len({block.tobytes() for block in blocks}) == len(SEEDS)


@pytest.mark.parametrize("task, difficulty", [(Parity(), 64), (Addition(), 5), (PointerChasing(), 2)], ids=str)
def test_the_held_out_share_is_the_one_asked_for_whatever_the_answer(task, difficulty):
    count, shares = 8000, (0.05, 0.125, 0.5)
    problems = draw(task, np.full(count, difficulty), max(difficulty, 8) if task.axis == "length" else difficulty)
    sides = lambda x: [Length(held_out=share).is_held_out(task, x, difficulty) for share in shares]  # noqa: E731
    for share, held in zip(shares, jax.device_get(quick_jit(jax.vmap(sides))(problems)), strict=True):
        error = np.sqrt(share * (1 - share) / count)
        assert abs(held.mean() - share) < 5 * error
        odd = problems.answer_A[:, 0] % 2 == 1
        assert abs(held[odd].mean() - held[~odd].mean()) < 10 * error


@pytest.mark.parametrize("task", [Parity(), EvenPairs(), Addition()], ids=label)
def test_the_hash_does_not_depend_on_the_capacity(task):
    difficulty_N = 2 + np.arange(1000) % 5

    problems = draw(task, difficulty_N, 8)
    of = lambda x, d: (fingerprint(task, x, d.astype(jnp.uint32)), Length().is_held_out(task, x, d))  # noqa: E731
    prints = [quick_jit(jax.vmap(of))(cut(task, problems, c), jnp.array(difficulty_N, jnp.int32)) for c in (6, 8)]
    jax.tree.map(np.testing.assert_array_equal, *prints)


def test_two_salts_are_two_hashes():
    """Problems that collide under one salt do not under the other, so together they have 64 bits."""
    bits = np.random.default_rng(0).integers(0, 2, (2**18, 40), dtype=np.int32)

    class Bits(Parity):
        def canonical(self, x):
            return x

    prints = quick_jit(jax.vmap(jax.vmap(functools.partial(fingerprint, Bits()), (0, None)), (None, 0)))
    first, second = np.asarray(prints(bits, jnp.arange(2, dtype=jnp.uint32)))
    order = np.argsort(first)
    twice = np.flatnonzero(first[order][1:] == first[order][:-1])
    assert len(twice) > 1
    assert (second[order][twice] != second[order][twice + 1]).all()


def test_first_of_its_kind_skips_what_was_not_found():
    bits = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 0], [1, 1, 0]], np.int32)
    problems = jax.vmap(lambda x: problem(x, 3, 0))(bits)
    first = quick_jit(lambda x, found: first_of_its_kind(Parity(), x, found))(
        problems, np.array([False, True, True, True])
    )
    assert first[1:].tolist() == [True, True, False]


@pytest.mark.parametrize(
    "split, train, test, unseen",
    [
        (Length(train_max=3, test_max=5), (1, 2, 3), (1, 2, 3), (4, 5)),
        (Length(train_max=4, test_max=11, test_every=3), (1, 2, 3, 4), (1, 4), (5, 7, 10, 11)),
        (Length(train_min=2, train_max=6, test_max=8, test_every=3), (2, 3, 4, 5, 6), (2, 5, 6), (7, 8)),
        (Length(train_min=3, train_max=3, test_max=4), (3,), (3,), (4,)),
    ],
)
def test_difficulties_of_the_parts(split, train, test, unseen):
    assert [split.difficulties(Parity(), part) for part in (TRAIN, TEST, "test_length")] == [train, test, unseen]


def test_training_starts_at_what_the_task_defines():
    assert Length(train_min=0, train_max=3, test_max=4).difficulties(EvenPairs(), TRAIN) == (2, 3)


@pytest.mark.parametrize(
    "task, split, text",
    [
        (Modular(), Length(), "is a table"),
        (Modular(), Complexity(), "is a table"),
        (PointerChasing(), Length(), "varies length, and the difficulty of task pointer_chasing is computation"),
        (Parity(), Complexity(), "varies computation"),
        (Parity(), Fraction(), "task parity has none; try --split=length"),
        (PointerChasing(), Fraction(), "has none"),
        (Parity(), Length(train_max=20, test_max=20), "train_max < test_max"),
        (Parity(), Length(train_max=21, test_max=20), "train_max < test_max"),
        (Parity(), Length(train_min=9, train_max=8), "train_min"),
        (Parity(), Length(test_max=2**20 + 1), "1048576"),
        (EvenPairs(), Length(train_max=1, test_max=3), "2 <= train_min"),
        (PointerChasing(), Complexity(test_max=12), "test_max <= 11"),
        (PointerChasing(names=8, flags=2), Complexity(train_max=1, test_max=3), "test_max <= 2"),
        (Parity(), Length(train_max=2, test_max=3), "Only 6 problems of task parity"),
        (Parity(), Length(train_min=5, train_max=5, held_out=0.05), "Only 32 problems"),
        (Modular(), Fraction(train_fraction=0.0), "leaves no train problem of the 9409"),
        (Modular(), Fraction(train_fraction=1.0), "leaves no test problem"),
        (Modular(p=3), Fraction(train_fraction=0.1), "leaves no train problem of the 9"),
    ],
)
def test_impossible_splits_are_refused(task, split, text):
    with pytest.raises(Refused, match=text):
        split.check(Config(task=task, split=split))


@pytest.mark.parametrize("task", [Parity(), Addition()], ids=label)
def test_ranges_with_more_problems_than_a_float_can_count_are_fine(task):
    split = Length(train_max=2000, test_max=2001)
    split.check(Config(task=task, split=split))


@every_split
def test_every_split_has_train_and_test_parts(name):
    split = registry.load("split", name)()
    assert TEST in split.parts and set(split.unseen) <= set(split.parts) - {TRAIN, TEST}
    if isinstance(split, RangeSplit):
        assert TRAIN not in split.parts


# ---- fractions of a table


TABLES = [
    (Fraction(train_fraction=0.4, by=by), task)
    for by in ("orbit", "ordered")
    for task in (Modular(p=11), Permutation(n=3))
]
every_table = pytest.mark.parametrize("split, task", TABLES, ids=lambda c: label(c))


@functools.cache
def prepared(split, task):
    """The split's data of four seeds."""
    return jax.device_get(quick_jit(jax.vmap(lambda seed: split.prepare(task, seed)))(jnp.arange(4)))


def divided(split, task, row_N):
    """{part: rows}: of a table's order the first are for training."""
    train = split.batch_size(task, task.size)
    return {TRAIN: row_N[..., :train], TEST: row_N[..., train:]}


def parts_of(split, task):
    """{part: rows [seeds, count]}."""
    return divided(split, task, prepared(split, task)["row_N"])


@every_table
def test_train_and_test_divide_the_table(split, task):
    parts = parts_of(split, task)
    for train, test in zip(parts[TRAIN], parts[TEST], strict=True):
        assert sorted([*train, *test]) == list(range(task.size))
    assert abs(parts[TRAIN].shape[1] - split.train_fraction * task.size) <= 2
    assert split.blocks(task, TEST, 7) == -(-parts[TEST].shape[1] // 7)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("split, task", [TABLES[0], TABLES[-1]], ids=lambda c: label(c))
def test_seeds_have_splits_of_their_own_unless_shared(split, task, shared):
    split = Fraction(split.train_fraction, split.by, shared)
    train = [frozenset(rows) for rows in parts_of(split, task)[TRAIN].tolist()]
    assert len(set(train)) == (1 if shared else len(train))
    if shared:
        own = Fraction(split.train_fraction, split.by)
        assert set(train) == {frozenset(parts_of(own, task)[TRAIN][0].tolist())}


@pytest.mark.parametrize(
    "split, task, train",
    [
        (Fraction(0.4, "ordered"), Modular(p=113), 5107),  # floor(0.4 * 12769)
        (Fraction(0.29, "ordered"), Modular(p=10), 29),  # 0.29 * 100 < 29 in binary
        (Fraction(0.5, "ordered"), Modular(op="divide"), 4656),
        (Fraction(0.5, "orbit"), Modular(p=11), 5 + 27 * 2),  # of 11 singles and 55 pairs
        (Fraction(0.5, "orbit"), Modular(p=11, op="subtract"), 60),
    ],
)
def test_the_number_of_training_rows(split, task, train):
    assert split.batch_size(task, 10**6) == train
    assert [split.blocks(task, part, 1) for part in (TRAIN, TEST)] == [train, task.size - train]


@pytest.mark.parametrize("by, share", [("orbit", 0.0), ("ordered", 0.4)])
def test_orbits_keep_mirrored_pairs_together_and_ordered_splits_do_not(by, share):
    task, shares = Modular(p=11), []
    parts, pairs = parts_of(Fraction(0.4, by), task), task.table().prompt_PxC[..., 0]
    for seed in range(4):
        train, test = ({tuple(pairs[i]) for i in parts[part][seed]} for part in (TRAIN, TEST))
        shares += [(b, a) in train for a, b in test if a != b]
    assert abs(np.mean(shares) - share) < (0.1 if share else 1e-9)


SMALL = Fraction(train_fraction=0.4, shared=True), Modular(p=7)  # seeds differ in nothing but the order
ROWS = 18  # of training: 2 of 7 singles, 8 of 21 pairs


@functools.cache
def trainer(batch_size):
    split, task = SMALL
    rows = jnp.arange(batch_size + EXTRA)

    def steps(seed, step_N):
        data = split.prepare(task, seed)
        return data, jax.vmap(lambda step: split.train(task, data, seed, step, rows, batch_size, 1, 1))(step_N)

    return quick_jit(steps)


def batches(batch_size, count, seed=0):
    """(prompts [count][rows], weights, the training rows) of the first steps."""
    data, (problems, weight) = trainer(batch_size)(seed, jnp.arange(count))
    pairs = SMALL[1].table().prompt_PxC[..., 0]
    known = {tuple(pairs[i].tolist()) for i in divided(*SMALL, np.asarray(data["row_N"]))[TRAIN]}
    return [list(map(tuple, batch)) for batch in problems.prompt_PxC[..., 0].tolist()], np.asarray(weight), known


def test_an_epoch_visits_no_row_twice_and_each_epoch_has_its_own_order():
    prompts, _, known = batches(5, 9)
    assert len(known) == ROWS
    epochs = [[row for batch in prompts[i : i + 3] for row in batch[:5]] for i in (0, 3, 6)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == 15 and set(epoch) <= known
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert set().union(*epochs) == known


def test_a_batch_is_a_function_of_seed_and_step():
    assert batches(5, 9)[0] == batches(5, 9)[0] != batches(5, 9, seed=1)[0]


def test_a_full_batch_is_every_training_row_once_at_every_step():
    prompts, _, known = batches(ROWS, 9)
    for batch in prompts:
        assert set(batch[:ROWS]) == known


@pytest.mark.parametrize("batch_size", [5, ROWS])
def test_rows_beyond_the_batch_are_no_problems(batch_size):
    _, weight, _ = batches(batch_size, 9)
    assert (weight[:, :batch_size] == 1).all() and (weight[:, batch_size:] == 0).all()


@every_table
@pytest.mark.parametrize("part", [TRAIN, TEST])
def test_the_blocks_of_a_part_hold_each_of_its_rows_once(split, task, part):
    data = {"row_N": jnp.asarray(prepared(split, task)["row_N"][0])}
    rows = parts_of(split, task)[part][0]
    block_N = jnp.arange(split.blocks(task, part, 16))
    test = quick_jit(jax.vmap(lambda block: split.test(task, data, 0, part, block, 16, 1, 1)))
    problems, weight = jax.device_get(test(block_N))
    prompts, found = task.table().prompt_PxC[..., 0], problems.prompt_PxC[..., 0][weight > 0]
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, prompts[rows].tolist()))


CORRUPT = Fraction(train_fraction=0.4, corrupted=0.5), Modular(p=11)


def corrupt_block(part, split=CORRUPT[0], seed=0):
    """(pairs, answers in training, true answers) of a part that one block holds."""
    task, data = CORRUPT[1], jax.tree.map(lambda a: jnp.asarray(a[seed]), prepared(split, CORRUPT[1]))
    problems, weight = jax.device_get(split.test(task, data, seed, part, 0, task.size, 1, 1))
    inside = weight > 0
    pairs = problems.prompt_PxC[inside][..., 0]
    return pairs, problems.answer_A[inside, 0], pairs.sum(1) % task.p


def test_corruption_changes_that_share_of_the_training_answers_and_no_other():
    n = CORRUPT[0].batch_size(CORRUPT[1], 10**6)
    by_part = {part: corrupt_block(part) for part in CORRUPT[0].parts}
    assert list(by_part) == [TRAIN, CORRUPTED, CLEAN, TEST]
    assert [len(answers) for _, answers, _ in by_part.values()] == [n, n // 2, n - n // 2, CORRUPT[1].size - n]
    for part in (CLEAN, TEST):
        assert (by_part[part][1] == by_part[part][2]).all()
    wrong = np.mean([np.mean(a != t) for _, a, t in (corrupt_block(CORRUPTED, seed=s) for s in range(4))])
    assert 0.75 < wrong <= 1  # drawn from all 11 answers, one of which is right
    pairs = {part: set(map(tuple, found[0].tolist())) for part, found in by_part.items()}
    assert pairs[CORRUPTED] | pairs[CLEAN] == pairs[TRAIN] and not pairs[CORRUPTED] & pairs[CLEAN]


def test_training_sees_the_corrupted_answers():
    split, task = CORRUPT
    n = split.batch_size(task, 10**6)
    data = jax.tree.map(lambda a: jnp.asarray(a[0]), prepared(split, task))
    problems, _ = split.train(task, data, 0, 3, jnp.arange(n), n, 1, 1)
    seen = dict(zip(map(tuple, problems.prompt_PxC[..., 0].tolist()), problems.answer_A[:, 0].tolist(), strict=True))
    pairs, answers, _ = corrupt_block(TRAIN)
    assert seen == dict(zip(map(tuple, pairs.tolist()), answers.tolist(), strict=True))


def test_corruption_leaves_the_division_as_it_was():
    plain = Fraction(train_fraction=0.4)
    assert (prepared(*CORRUPT)["row_N"] == prepared(plain, CORRUPT[1])["row_N"]).all()


@pytest.mark.parametrize("share, size", [(0.5, 9), (1.0, ROWS), (0.51, 10)])
def test_a_step_takes_at_most_its_share_of_the_training_rows(share, size):
    split = Fraction(train_fraction=0.4, batch_fraction=share)
    assert split.batch_size(SMALL[1], 10**6) == size and split.batch_size(SMALL[1], 3) == 3
