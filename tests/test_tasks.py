"""Every task keeps the contract of `Task`; then what each one promises by itself."""

import collections
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import BLOCK, draw, examples, instances, label, quick_jit, take

from e2h import registry
from e2h.registry import Refused
from e2h.tasks import BLANK, NO_PLACE, TableTask, answer_words, problem, prompt_words
from e2h.tasks.addition import PLUS, Addition, _add
from e2h.tasks.even_pairs import EvenPairs
from e2h.tasks.group_words import GroupWords
from e2h.tasks.modular import OPERATIONS, Modular
from e2h.tasks.parity import Parity
from e2h.tasks.permutation import PRODUCTS, Permutation
from e2h.tasks.pointer_chasing import PointerChasing

LONG = 500  # the longest difficulty tried
DRAWS = BLOCK
every_task = pytest.mark.parametrize("task", list(instances()), ids=label)
every_example = pytest.mark.parametrize(
    "task, prompt, answer",
    [
        (registry.load("task", name)(**settings), prompt, answer)
        for name in registry.names("task")
        for prompt, answer, settings in examples(registry.load("task", name))
    ],
)


def hardest(task):
    return min(task.highest, LONG)


def small(task):
    """A capacity for the tests that need no long problems."""
    return min(task.lowest + 7, task.highest)


@functools.cache
def drawn(task):
    """(difficulty of each, problems): a fifth as hard as can be, the rest of any difficulty."""
    any_N = np.random.default_rng(0).integers(task.lowest, hardest(task) + 1, DRAWS)
    difficulty_N = np.where(np.arange(DRAWS) < DRAWS // 5, hardest(task), any_N)
    return difficulty_N, draw(task, difficulty_N, hardest(task))


def words_of(task, problems):
    """(prompt words, answer words) of each problem; like `prompt_words`, for many at once."""
    prompt_vocabulary = np.array([*task.prompt_vocabulary, ""], object)  # BLANK is the last
    prompts_NxP = prompt_vocabulary[problems.prompt_PxC].sum(-1)
    answers_NxA = np.array(task.answer_vocabulary, object)[problems.answer_A]
    for prompt, p, answer, a in zip(
        prompts_NxP, problems.prompt_length, answers_NxA, problems.answer_length, strict=True
    ):
        yield list(prompt[:p]), list(answer[:a])


@functools.cache
def canonical(task):
    return quick_jit(jax.vmap(task.canonical))


def canonical_of(task, problems):
    return np.asarray(canonical(task)(problems))


def distinct_rows(array):
    return len(np.unique(np.asarray(array).reshape(len(array), -1), axis=0))


@every_example
def test_oracle_gives_the_answer_of_every_example(task, prompt, answer):
    words = prompt.split() if " " in prompt else list(prompt)
    assert "".join(task.oracle(words)) == "".join(answer.split())
    assert set(task.oracle(words)) <= set(task.answer_vocabulary)


@pytest.mark.parametrize("name", registry.names("task"))
def test_every_task_has_examples(name):
    assert examples(registry.load("task", name))


@every_task
def test_samples_agree_with_the_oracle(task):
    difficulty_N, problems = drawn(task)
    assert difficulty_N[0] == hardest(task)
    texts = list(words_of(task, problems))
    for prompt, answer in texts:
        assert task.oracle(prompt) == answer
    for i in range(0, DRAWS, 100):
        assert texts[i] == (prompt_words(task, take(problems, i)), answer_words(task, take(problems, i)))


def test_a_sampler_that_uses_a_key_twice_is_caught(key):
    twice = lambda key: jax.random.bits(key) + jax.random.bits(key)  # noqa: E731
    with pytest.raises(jax.errors.KeyReuseError):
        quick_jit(jax.vmap(twice))(jax.random.split(key))


@every_task
def test_samples_fill_arrays_of_the_promised_shape_with_known_tokens(task):
    _, x = drawn(task)
    p, a = task.shape(hardest(task))
    assert x.prompt_PxC.shape == (DRAWS, p, task.channels) and x.answer_A.shape == (DRAWS, a)
    assert x.place_P.shape == (DRAWS, p) and x.at_A.shape == (DRAWS, a)
    assert all(field.dtype == np.int32 for field in x)
    inside_NxP, inside_NxA = (
        np.arange(n) < length[:, None] for n, length in ((p, x.prompt_length), (a, x.answer_length))
    )
    assert x.prompt_length.min() >= 1 and x.prompt_length.max() == p
    assert x.answer_length.min() >= 1 and x.answer_length.max() == a
    tokens = x.prompt_PxC[inside_NxP]
    assert tokens.min() >= BLANK and tokens.max() < len(task.prompt_vocabulary) and (tokens >= 0).any(-1).all()
    assert x.answer_A[inside_NxA].min() >= 0 and x.answer_A[inside_NxA].max() < len(task.answer_vocabulary)
    assert x.place_P[inside_NxP].min() >= NO_PLACE
    assert (x.at_A[inside_NxA] >= 0).all() and (x.at_A < x.prompt_length[:, None])[inside_NxA].all()
    assert len(set(task.prompt_vocabulary)) == len(task.prompt_vocabulary)
    assert len(set(task.answer_vocabulary)) == len(task.answer_vocabulary)


@every_task
def test_a_key_gives_the_same_problem_at_every_capacity_that_holds_it(task):
    if task.shape(small(task)) == task.shape(hardest(task)):
        key = jax.random.key(0)
        one, other = (jax.make_jaxpr(lambda d, c=c: task.sample(key, d, c))(1) for c in (small(task), hardest(task)))
        assert str(one) == str(other)
        return
    difficulty_N = task.lowest + np.arange(DRAWS) % (small(task) - task.lowest + 1)
    ours, theirs = (draw(task, difficulty_N, capacity) for capacity in (small(task), hardest(task)))
    p, a = task.shape(small(task))
    inside_NxP, inside_NxA = (np.arange(n) < m[:, None] for n, m in ((p, ours.prompt_length), (a, ours.answer_length)))
    for field in ours._fields:
        one, other = getattr(ours, field), getattr(theirs, field)
        if one.ndim > 1:
            inside = inside_NxP if "_P" in field else inside_NxA
            one, other = one[inside], other[:, : one.shape[1]][inside]
        np.testing.assert_array_equal(one, other)


@every_task
def test_what_stands_beyond_a_length_is_never_looked_at(task):
    _, x = drawn(task)
    p, a = task.shape(hardest(task))
    inside_NxP, inside_NxA = (np.arange(n) < m[:, None] for n, m in ((p, x.prompt_length), (a, x.answer_length)))
    other = x._replace(
        prompt_PxC=np.where(inside_NxP[..., None], x.prompt_PxC, 1),
        answer_A=np.where(inside_NxA, x.answer_A, 1),
        place_P=np.where(inside_NxP, x.place_P, 7),
        at_A=np.where(inside_NxA, x.at_A, 7),
    )
    of = quick_jit(jax.vmap(lambda x: (task.canonical(x), task.complexity(x))))
    jax.tree.map(np.testing.assert_array_equal, of(x), of(other))


@every_task
def test_difficulty_moves_its_axis_and_no_longer_prompt_unless_that_is_the_axis(task):
    difficulty_N, problems = drawn(task)
    complexity = jax.device_get(quick_jit(jax.vmap(task.complexity))(problems))
    assert (complexity.length == problems.prompt_length).all()
    order = np.argsort(difficulty_N, kind="stable")
    rises = np.diff(getattr(complexity, task.axis)[order])[np.diff(difficulty_N[order]) > 0]
    assert (rises > 0).all()
    if task.axis != "length":
        assert len(set(complexity.length)) == 1
        np.testing.assert_array_equal(getattr(complexity, task.axis), difficulty_N)


@every_task
@pytest.mark.parametrize("above_lowest", [0, 1])
def test_no_answer_that_ignores_the_prompt_beats_chance(task, above_lowest):
    difficulty, n = min(task.lowest + above_lowest, task.highest), 10_000
    chance = task.chance(difficulty)
    if isinstance(task, TableTask):
        counts = collections.Counter(task.table().answer_A[:, 0].tolist())
        assert chance == max(counts.values()) / task.size
    x = draw(task, np.full(n, difficulty), small(task))
    answers = np.where(np.arange(x.answer_A.shape[1]) < x.answer_length[:, None], x.answer_A, -1)
    best = np.unique(answers, axis=0, return_counts=True)[1].max() / n
    # The commonest of many answers: more than the 3 standard errors of a single one.
    assert abs(best - chance) < 4.5 * math.sqrt(chance * (1 - chance) / n)


@every_task
def test_answers_of_one_difficulty_are_of_one_length_if_the_layout_shows_it(task):
    if set(task.layouts) - {"causal"}:
        for difficulty in {task.lowest, min(task.lowest + 2, task.highest)}:
            assert len(set(draw(task, np.full(DRAWS, difficulty), small(task)).answer_length)) == 1


COMMUTATIVE = ("add", "multiply", "x2_plus_y2", "x2_plus_xy_plus_y2")  # whatever the modulus


def meaning(task, prompt):
    """What the canonical form should keep of a prompt."""
    if isinstance(task, Addition):
        return tuple(sorted("".join(prompt).split("+")))
    if isinstance(task, Modular) and task.op in COMMUTATIVE:
        return tuple(sorted(prompt))
    if isinstance(task, GroupWords) and (task.word, task.group) == ("ab", "cyclic"):
        return tuple(sorted(prompt))
    if isinstance(task, PointerChasing):
        flags = tuple(w for w in prompt if w in "HI")
        counted = flags if task.cycle == "counting" else prompt.count("H")
        return *sorted(w for w in prompt if ">" in w or "?" in w), counted
    return tuple(prompt)


SMALL = [Parity(), EvenPairs(), Addition(), Addition(zero_pad=True, reverse=True), Permutation(n=3)]
SMALL += [Modular(p=7, op=op) for op in ("add", "divide", "subtract")]
SMALL += [GroupWords(n=3), GroupWords(group="cyclic", n=6), GroupWords(group="dihedral", n=4, word="aba")]
SMALL += [PointerChasing(names=4, flags=3)]
SMALL += [PointerChasing(names=7, flags=3, cycle="counting")]


@pytest.mark.parametrize("task", SMALL, ids=label)
def test_canonical_forms_are_equal_for_twins_only(task):
    for difficulty in range(task.lowest, min(task.highest, 4) + 1):
        problems = draw(task, np.full(DRAWS, difficulty), small(task))
        ours = [tuple(row) for row in canonical_of(task, problems).tolist()]
        theirs = [meaning(task, prompt) for prompt, _ in words_of(task, problems)]
        assert len(set(ours)) == len(set(theirs)) == len(set(zip(ours, theirs, strict=True)))


@pytest.mark.parametrize("task", SMALL, ids=label)
def test_twins_have_the_same_answer(task):
    answers = collections.defaultdict(set)
    problems = draw(task, np.full(DRAWS, task.lowest), small(task))
    for prompt, answer in words_of(task, problems):
        answers[meaning(task, prompt)].add(tuple(answer))
    assert len(answers) < DRAWS and all(len(found) == 1 for found in answers.values())


@pytest.mark.parametrize(
    "task, difficulty, distinct",
    [
        *((Parity(), n, 2**n) for n in range(1, 9)),
        *((EvenPairs(), n, 2**n) for n in range(2, 9)),
        (Addition(), 1, 100),
        (Addition(), 2, 8100),
        (Addition(zero_pad=True), 1, 100),
        (Addition(zero_pad=True), 2, 10_000),
        (Modular(p=11), 1, 121),
        (Modular(p=11, op="divide"), 1, 110),
        (Modular(p=10, op="divide"), 1, 40),
        (Permutation(n=3), 1, 36),
        (GroupWords(group="dihedral", n=5), 1, 100),
        (PointerChasing(names=4, flags=3), 1, 24),
        (PointerChasing(names=7, flags=3, cycle="counting"), 2, 21),
    ],
)
def test_distinct_counts_the_problems_that_many_draws_find(task, difficulty, distinct):
    assert task.distinct(difficulty) == distinct
    problems = draw(task, np.full(20 * distinct + 500, difficulty), small(task))
    inside = np.arange(task.shape(small(task))[0]) < problems.prompt_length[:, None]
    prompts = np.where(inside[..., None], problems.prompt_PxC, 0)
    forms = canonical_of(task, problems) if isinstance(task, PointerChasing) else prompts
    assert distinct_rows(forms) == distinct


def test_difficulties_far_beyond_a_float_have_exact_counts():
    assert Parity().distinct(5000) == 2**5000 and Addition(zero_pad=True).distinct(500) == 10**1000
    assert Addition().chance(500) == 0.0 and Addition().chance(2) == 1 / 90


# ---- tables


BY_HAND = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "even_add_odd_multiply": lambda x, y: x + y if x % 2 == 0 else x * y,
    "even_add_odd_subtract": lambda x, y: x + y if x % 2 == 0 else x - y,
    "x2_plus_y": lambda x, y: x * x + y,
    "x3_plus_y": lambda x, y: x * x * x + y,
    "x2_plus_y2": lambda x, y: x * x + y * y,
    "x2_plus_xy_plus_y2": lambda x, y: x * x + x * y + y * y,
    "x2_plus_xy_plus_y2_plus_x": lambda x, y: x * x + x * y + y * y + x,
    "x3_plus_xy": lambda x, y: x * x * x + x * y,
    "x3_plus_xy2_plus_y": lambda x, y: x * x * x + x * y * y + y,
    "fourth_2x_plus_3y": lambda x, y: pow(2 * x + 3 * y, 4),
    "fourth_2x_plus_3y_minus_x2": lambda x, y: pow(2 * x + 3 * y, 4) - x * x,
    "cubed_4x_plus_y2": lambda x, y: pow(4 * x + y * y, 3),
    "cubed_4x_plus_y2_plus_xy": lambda x, y: pow(4 * x + y * y, 3) + x * y,
}


def quotients(x, y, p):
    """Every c with c y = x, if there is exactly one whatever x is."""
    return [c for c in range(p) if c * y % p == x] if math.gcd(y, p) == 1 else []


def modular_table(op, p):
    for x, y in itertools.product(range(p), repeat=2):
        if op == "divide" or (op == "divide_odd_subtract_even" and y % 2 == 1):
            yield from ((x, y, c) for c in quotients(x, y, p))
        elif op == "divide_odd_subtract_even":
            yield x, y, (x - y) % p
        else:
            yield x, y, BY_HAND[op](x, y) % p


def table_rows(task):
    table = task.table()
    return np.concatenate([table.prompt_PxC[..., 0], table.answer_A], 1).tolist()


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("p", [5, 7, 10, 97])
def test_modular_table_is_the_one_computed_by_hand(op, p):
    assert table_rows(Modular(op=op, p=p)) == list(map(list, modular_table(op, p)))


@pytest.mark.parametrize("op, p", [("add", 67), ("divide", 10), ("subtract", 5)])
def test_an_unordered_table_has_the_pairs_that_rise(op, p):
    rows = table_rows(Modular(op=op, p=p, unordered=True))
    assert rows == [[x, y, z] for x, y, z in modular_table(op, p) if x <= y]
    assert p != 67 or len(rows) == 67 * 68 // 2


@pytest.mark.parametrize("op", OPERATIONS)
def test_rows_share_a_form_exactly_if_they_are_mirrored_and_the_operation_commutes(op):
    for p in (*range(2, 25), 97, 113):
        result = {(x, y): z for x, y, z in modular_table(op, p)}
        commutes = all(result.get((y, x), z) == z for (x, y), z in result.items())
        assert commutes or op not in COMMUTATIVE
        assert p < 25 or commutes == (op in COMMUTATIVE)
        wanted, found = collections.defaultdict(set), collections.defaultdict(set)
        for pair, form in zip(result, Modular(op=op, p=p).forms().tolist(), strict=True):
            wanted[tuple(sorted(pair)) if commutes else pair].add(pair)
            found[tuple(form)].add(pair)
        assert sorted(map(sorted, found.values())) == sorted(map(sorted, wanted.values())), p


@pytest.mark.parametrize(
    "op, moduli",
    [
        ("divide", {3, 4, 6, 8, 12, 24}),  # where the square of every unit is 1, and there are two units
        ("x3_plus_y", {2, 3, 6}),  # where x^3 = x
        ("even_add_odd_subtract", {2, 4}),
        ("subtract", {2}),
    ],
)
def test_at_some_moduli_other_operations_have_twins(op, moduli):
    tasks = {p: Modular(op=op, p=p) for p in range(2, 31)}
    assert {p for p, task in tasks.items() if distinct_rows(task.forms()) < task.size} == moduli


def test_division_is_true_division():
    rows = np.array(table_rows(Modular(op="divide", p=97)))
    assert len(rows) == 97 * 96 == 9312
    x, y, c = rows.T
    np.testing.assert_array_equal(c * y % 97, x)


def compose(x, y):
    return "".join(x[int(i)] for i in y)


def inverse(x):
    return "".join(str(x.index(str(i))) for i in range(len(x)))


def cycle_type(x):
    lengths, seen = [], set()
    for start in range(len(x)):
        at, steps = start, 0
        while at not in seen:
            seen.add(at)
            at, steps = int(x[at]), steps + 1
        lengths.append(steps)
    return sorted(lengths)


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_permutation_table_is_the_one_composed_by_hand(op, n):
    task = Permutation(n=n, op=op)
    assert task.size == math.factorial(n) ** 2
    words, last = task.prompt_vocabulary, {"xy": lambda x: None, "xyx": lambda x: x, "xyx_inverse": inverse}[op]
    for i, (x, y, z) in enumerate(table_rows(task)):
        assert (x, y) == divmod(i, len(words))
        product = compose(words[x], words[y])
        assert words[z] == (compose(product, last(words[x])) if last(words[x]) else product)
        if op == "xyx_inverse" and n < 5:
            assert cycle_type(words[z]) == cycle_type(words[y])


@every_task
def test_a_table_holds_no_problem_twice_and_what_sample_gives(task):
    if isinstance(task, TableTask):
        rows = set(map(tuple, table_rows(task)))
        assert len(rows) == task.size == task.distinct(1) and task.highest == 1
        _, problems = drawn(task)
        assert rows >= set(map(tuple, np.concatenate([problems.prompt_PxC[..., 0], problems.answer_A], 1).tolist()))


@every_task
def test_a_table_knows_the_canonical_forms_of_its_rows(task):
    if isinstance(task, TableTask):
        forms = task.forms()
        np.testing.assert_array_equal(forms, canonical_of(task, task.table()))
        assert isinstance(forms, np.ndarray)


# ---- addition


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("zero_pad", [False, True])
def test_addition_at_100_and_more_digits_agrees_with_python_integers(reverse, zero_pad):
    task = Addition(reverse=reverse, zero_pad=zero_pad)
    problems = draw(task, 100 + np.arange(DRAWS) % 401, LONG)
    lengths = collections.Counter()
    for i, (prompt, answer) in enumerate(words_of(task, problems)):
        first, second = "".join(prompt).split("+")
        written = "".join(answer[::-1] if reverse else answer)
        assert len(first) == len(second) == 100 + i % 401
        assert int(written) == int(first) + int(second)
        assert len(written) == len(first) + 1 if zero_pad else written[0] != "0" and first[0] != "0" != second[0]
        lengths[len(written) - len(first)] += 1
    assert lengths.keys() == ({1} if zero_pad else {0, 1})


def digits(number, n):
    return np.array([int(c) for c in str(number).zfill(n)[::-1]], np.int32)


@pytest.mark.parametrize("n", [1, 2, 3, 64, 500])
def test_a_carry_runs_through_all_digits(n):
    pairs = [
        (10**n - 1, 1),
        (1, 10**n - 1),
        (10**n - 1, 10**n - 1),
        (10**n - 1, 0),
        (int("5" * n), int("4" * n)),
        (0, 0),
    ]
    pairs += [(int("4" * (n - 1) + "5"), int("5" * n))]
    a, b, total = (
        np.stack(v) for v in zip(*((digits(x, n), digits(y, n), digits(x + y, n + 1)) for x, y in pairs), strict=True)
    )
    np.testing.assert_array_equal(quick_jit(jax.vmap(_add))(a, b), total)


def test_every_sum_of_two_digit_numbers_is_right():
    a, b = (v.ravel() for v in np.meshgrid(np.arange(100), np.arange(100)))
    sums = quick_jit(jax.vmap(_add))(np.stack([a % 10, a // 10], 1), np.stack([b % 10, b // 10], 1))
    np.testing.assert_array_equal(sums @ np.array([1, 10, 100]), a + b)


@pytest.mark.parametrize("zero_pad", [False, True])
def test_operands_are_uniform(zero_pad):
    n, low = 20_000, 0 if zero_pad else 10
    prompts = draw(Addition(zero_pad=zero_pad), np.full(n, 2), 8).prompt_PxC[..., 0]
    for first in (0, 3):
        counts = np.bincount(prompts[:, first] * 10 + prompts[:, first + 1], minlength=100)
        assert counts[:low].sum() == 0
        assert chi_square(counts[low:]) < 6
    assert (prompts[:, 2] == PLUS).all()
    assert abs(np.corrcoef(prompts[:, 1], prompts[:, 4])[0, 1]) < 5 / math.sqrt(n)


def chi_square(counts):
    """Chi-square against equal counts, in standard deviations above its mean."""
    expected, free = counts.sum() / len(counts), len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free)


def test_addition_offers_query_slots_only_if_they_give_nothing_away():
    assert Addition().layouts == ("causal",) and "query" in Addition(zero_pad=True).layouts


# ---- bit strings


@pytest.mark.parametrize("task", [Parity(), EvenPairs()], ids=label)
def test_bits_are_fair_and_independent(task):
    bits = draw(task, np.full(4000, 8), 8).prompt_PxC[..., 0]
    assert chi_square(np.bincount(bits @ (1 << np.arange(8)), minlength=256)) < 6


# ---- pointer chasing


CHASE = PointerChasing(names=8, flags=6)


def test_pointer_chasing_follows_one_cycle_through_all_names_as_often_as_flags_say():
    difficulty_N, problems = drawn(CHASE)
    for k, (prompt, answer) in zip(difficulty_N, words_of(CHASE, problems), strict=True):
        table, query, flags = prompt[:8], prompt[8], prompt[9:]
        f = dict(word.split(">") for word in table)
        orbit = [query[:-1]]
        while (following := f[orbit[-1]]) != orbit[0]:
            orbit.append(following)
        assert len(f) == len(orbit) == 8
        assert flags.count("H") == k == len(flags) - flags.count("I")
        assert answer == [orbit[k]]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_answer_is_uniform_over_the_names_other_than_the_start(k):
    problems = draw(CHASE, np.full(20_000, k), 3)
    start, answer = problems.prompt_PxC[:, 8, 0], problems.answer_A[:, 0]
    pairs = np.bincount(start * 8 + answer, minlength=64).reshape(8, 8)
    assert np.trace(pairs) == 0
    assert chi_square(pairs[~np.eye(8, dtype=bool)]) < 6


def test_neither_the_order_of_the_table_nor_the_places_of_the_flags_tell_anything():
    x = draw(CHASE, np.full(20_000, 2), 3)
    names, hops = x.prompt_PxC[:, :8, 0], x.prompt_PxC[:, 9:, 0] == CHASE.prompt_vocabulary.index("H")
    assert chi_square(np.bincount(names[:, 0], minlength=8)) < 6
    assert chi_square(np.bincount((names[:, 1] - names[:, 0]) % 8, minlength=8)[1:]) < 6
    where_is_start = (names == x.prompt_PxC[:, 8:9, 0]).argmax(1)
    where_is_answer = (names == x.answer_A).argmax(1)
    assert chi_square(np.bincount(where_is_start, minlength=8)) < 6
    assert chi_square(np.bincount(where_is_answer, minlength=8)) < 6
    pairs_of_hops = [(1 << i) + (1 << j) for i, j in itertools.combinations(range(6), 2)]
    assert chi_square(np.bincount(hops @ (1 << np.arange(6)), minlength=64)[pairs_of_hops]) < 6


def test_reordering_table_and_flags_changes_no_canonical_form():
    _, x = drawn(CHASE)
    generator = np.random.default_rng(0)
    table = generator.permuted(np.tile(np.arange(8), (DRAWS, 1)), axis=1)
    flags = 9 + generator.permuted(np.tile(np.arange(6), (DRAWS, 1)), axis=1)
    order = np.concatenate([table, np.full((DRAWS, 1), 8), flags], 1)
    shuffled = x._replace(prompt_PxC=np.take_along_axis(x.prompt_PxC, order[..., None], 1))
    assert (shuffled.prompt_PxC != x.prompt_PxC).any((1, 2)).all()
    np.testing.assert_array_equal(canonical_of(CHASE, x), canonical_of(CHASE, shuffled))


def test_table_tokens_stand_in_no_order_and_flags_do():
    place = take(drawn(CHASE)[1], 0).place_P.tolist()
    assert place == [NO_PLACE] * 9 + list(range(6)) and CHASE.shape(1) == CHASE.shape(3) == (15, 1)


def test_hops_stay_below_half_the_cycle():
    assert PointerChasing(names=24, flags=12).highest == 11 and PointerChasing(names=25, flags=12).highest == 12
    assert PointerChasing(names=25, flags=5).highest == 5 and PointerChasing(names=3).highest == 1


def test_counting_cycle_counts():
    task = PointerChasing(names=7, flags=3, cycle="counting")
    x = draw(task, 1 + np.arange(90) % 3, 3)
    np.testing.assert_array_equal((x.prompt_PxC[:, 7, 0] + 1 + np.arange(90) % 3) % 7, x.answer_A[:, 0])


# ---- the defaults that `problem` fills in


def test_problem_fills_in_places_and_reads_at_the_last_prompt_token():
    x = problem([3, 4, 5, 0], 3, 7)
    assert (x.place_P.tolist(), x.at_A.tolist(), x.answer_length.item()) == ([0, 1, 2, 3], [2], 1)
    assert x.prompt_PxC.shape == (4, 1) and x.answer_A.tolist() == [7]


def test_a_table_without_rows_is_refused():
    class Empty(Modular):
        def rows(self):
            return jnp.zeros((0, 2)), jnp.zeros(0)

    with pytest.raises(Refused, match="no problems"):
        Empty().table()
