"""Words in finite groups: the tables against permutation matrices, the blocks against characters written by hand."""

import collections
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import label

from e2h import rng, train
from e2h.models.mlp import MLP
from e2h.registry import Refused
from e2h.tasks.group_words import WORDS, GroupWords
from experiments import _blocks, group_words, word_rank

GROUPS = [("cyclic", 5), ("cyclic", 6), ("dihedral", 3), ("dihedral", 4), ("dihedral", 5)]
GROUPS += [("symmetric", n) for n in (3, 4, 5)]
EVERY = [GroupWords(group=group, n=n, word=word) for group, n in GROUPS for word in WORDS]
every_group = pytest.mark.parametrize("group, n", GROUPS)
every_word = pytest.mark.parametrize("task", EVERY, ids=label)


def matrix(task, word):
    """A permutation matrix: column i has its 1 at the image of i."""
    if task.group == "symmetric":
        return np.eye(task.n, dtype=int)[:, [int(c) for c in word]]
    turn, flip = np.roll(np.eye(task.n, dtype=int), 1, 0), np.eye(task.n, dtype=int)[-np.arange(task.n) % task.n]
    turned = np.linalg.matrix_power(turn, int(word.strip("rs")))
    return turned @ flip if word.startswith("s") else turned


BY_MATRICES = {
    "ab": lambda a, b: a @ b,
    "aba": lambda a, b: a @ b @ a,
    "aba_inverse": lambda a, b: a @ b @ a.swapaxes(-1, -2),
    "commutator": lambda a, b: a @ b @ a.swapaxes(-1, -2) @ b.swapaxes(-1, -2),
}


@every_word
def test_every_row_is_the_product_of_permutation_matrices(task):
    matrix_NxPxP = np.stack([matrix(task, word) for word in task.prompt_vocabulary])
    assert len(np.unique(matrix_NxPxP, axis=0)) == len(matrix_NxPxP) == order(task)
    prompts, answers = task.rows()
    assert prompts.tolist() == [list(pair) for pair in itertools.product(range(order(task)), repeat=2)]
    some = slice(None, None, 7 if task.n == 5 and task.group == "symmetric" else 1)
    a, b = (matrix_NxPxP[prompts[some, k]] for k in (0, 1))
    np.testing.assert_array_equal(matrix_NxPxP[answers[some]], BY_MATRICES[task.word](a, b))


def order(task):
    return {"cyclic": task.n, "dihedral": 2 * task.n, "symmetric": math.factorial(task.n)}[task.group]


def test_commutators_of_s3_are_the_identity_or_a_cycle_of_three():
    task = GroupWords(n=3, word="commutator")
    found = collections.Counter(np.array(task.prompt_vocabulary)[task.rows()[1]])
    assert found == {"012": 18, "120": 9, "201": 9} and task.chance(1) == 0.5


@pytest.mark.parametrize("group, n, classes", [("dihedral", 5, 4), ("dihedral", 4, 5), ("symmetric", 4, 5)])
def test_as_many_pairs_commute_as_elements_times_classes(group, n, classes):
    task = GroupWords(group=group, n=n, word="commutator")
    assert (task.rows()[1] == 0).sum() == order(task) * classes


@every_word
def test_twins_are_exchanged_letters_that_give_the_answer_or_its_inverse_throughout(task):
    prompts, answers = task.rows()
    answer_NxN, product_NxN = answers.reshape(order(task), -1), task.products()
    same, undone = answer_NxN == answer_NxN.T, product_NxN[answer_NxN, answer_NxN.T] == 0
    form_Nx2 = np.asarray(jax.vmap(task.canonical)(jax.tree.map(jnp.asarray, task.table())))
    exchanged = np.sort(prompts, axis=1)
    gives_away = (same | undone).all()
    assert gives_away == (task.word == "commutator" or (task.word, task.group) == ("ab", "cyclic"))
    np.testing.assert_array_equal(form_Nx2, exchanged if gives_away else prompts)


def test_a_group_too_large_is_refused():
    assert GroupWords(n=6).prompt_vocabulary[-1] == "543210"
    with pytest.raises(Refused, match=r"task\.n=7 makes the table of the symmetric group too large"):
        GroupWords(n=7)


# ---- blocks


def cycles(word):
    """Lengths of a permutation's cycles, in order."""
    found, left = [], set(range(len(word)))
    while left:
        at, length = left.pop(), 1
        while (at := int(word[at])) in left:
            left.remove(at)
            length += 1
        found.append(length)
    return tuple(sorted(found))


CHARACTERS = {  # by lengths of cycles
    3: {(1, 1, 1): (1, 1, 2), (1, 2): (1, -1, 0), (3,): (1, 1, -1)},
    4: {
        (1, 1, 1, 1): (1, 1, 2, 3, 3),
        (1, 1, 2): (1, -1, 0, 1, -1),
        (2, 2): (1, 1, 2, -1, -1),
        (1, 3): (1, 1, -1, 0, 0),
        (4,): (1, -1, 0, -1, 1),
    },
}


def by_characters(n):
    """(characters [F, N], projections [F, N, N]) of S_n."""
    words = GroupWords(n=n).prompt_vocabulary
    character_FxN = np.array([CHARACTERS[n][cycles(word)] for word in words]).T
    matrices = np.stack([matrix(GroupWords(n=n), word) for word in words])
    quotients = np.einsum("xij,ykj->xyik", matrices, matrices)  # x y^-1
    index_NxN = (quotients[:, :, None] == matrices).all((-1, -2)).argmax(-1)
    return character_FxN, np.stack([c[0] / len(words) * c[index_NxN] for c in character_FxN])


@pytest.mark.parametrize(
    "group, n, dims",
    [
        ("symmetric", 3, [1, 1, 4]),
        ("symmetric", 4, [1, 1, 4, 9, 9]),
        ("symmetric", 5, [1, 1, 16, 16, 25, 25, 36]),
        ("cyclic", 7, [1, 2, 2, 2]),
        ("cyclic", 6, [1, 1, 2, 2]),
        ("dihedral", 5, [1, 1, 4, 4]),
        ("dihedral", 4, [1, 1, 1, 1, 4]),
    ],
)
def test_blocks_are_invariant_and_have_the_dimensions_of_representations(group, n, dims):
    task = GroupWords(group=group, n=n)
    product_NxN, bases = task.products(), _blocks.blocks(task.products())
    assert [basis.shape[1] for basis in bases] == dims and sum(dims) == order(task)
    basis_NxN = np.concatenate(bases, 1)
    np.testing.assert_allclose(basis_NxN.T @ basis_NxN, np.eye(order(task)), atol=1e-12)
    for basis, x in itertools.product(bases, range(0, order(task), 7)):
        for moved in (product_NxN[x], product_NxN[:, x]):
            np.testing.assert_allclose(basis @ basis.T @ basis[moved], basis[moved], atol=1e-10)


@pytest.mark.parametrize("n", [3, 4])
def test_blocks_are_those_of_the_characters(n):
    left = list(by_characters(n)[1])
    for basis in _blocks.blocks(GroupWords(n=n).products()):
        away = [abs(basis @ basis.T - projection).max() for projection in left]
        assert min(away) < 1e-12
        del left[int(np.argmin(away))]
    assert not left


@pytest.mark.parametrize("task", [t for t in EVERY if t.group == "symmetric" and t.n < 5], ids=label)
def test_shares_and_cover_are_those_of_the_characters(task):
    character_FxN, projection_FxNxN = by_characters(task.n)
    bases, delta = _blocks.blocks(task.products()), _blocks.tensor(task)
    assert delta.sum() == order(task) ** 2 and all(delta[a, b, c] == 1 for (a, b), c in zip(*task.rows(), strict=True))
    at = [next(f for f, p in enumerate(projection_FxNxN) if np.allclose(p, b @ b.T)) for b in bases]
    projected = np.einsum("abc,iax,jby,kcz->ijkxyz", delta, *[projection_FxNxN[at]] * 3, optimize=True)
    found = _blocks.shares(bases, delta)
    np.testing.assert_allclose(found, np.square(projected).sum((3, 4, 5)) / order(task) ** 2, atol=1e-12)
    for (i, phi), (j, psi), (k, zeta) in itertools.product(enumerate(at), repeat=3):
        powers = [character_FxN[zeta] ** len(WORDS[task.word].lower().split(letter)[1:]) for letter in "ab"]
        times = [power @ character_FxN[f] // order(task) for power, f in zip(powers, (phi, psi), strict=True)]
        assert _blocks.cover(bases, task.word)[i, j, k] == (min(times) > 0)


@every_group
def test_a_product_lies_in_equal_blocks_with_shares_of_their_dimensions(group, n):
    task = GroupWords(group=group, n=n)
    bases = _blocks.blocks(task.products())
    dims = np.array([basis.shape[1] for basis in bases])
    want = np.zeros([len(dims)] * 3)
    np.einsum("iii->i", want)[:] = dims / order(task)
    np.testing.assert_allclose(_blocks.shares(bases, _blocks.tensor(task)), want, atol=1e-12)
    found = word_rank.support(task)
    assert found["outside"] < 1e-20 and found["deviation"] < 1e-12
    assert found["room"] == (dims**3).sum() / order(task) ** 3


def test_the_shares_of_s3_and_s4():
    shares = {n: np.einsum("iii->i", shares_of(GroupWords(n=n))) for n in (3, 4)}
    np.testing.assert_allclose(shares[3], [1 / 6, 1 / 6, 4 / 6])
    np.testing.assert_allclose(shares[4], [1 / 24, 1 / 24, 4 / 24, 9 / 24, 9 / 24])


def shares_of(task):
    return _blocks.shares(_blocks.blocks(task.products()), _blocks.tensor(task))


# ---- ranks


@pytest.mark.parametrize("case", [case for case, (*_, blocks) in word_rank.RANKS.items() if blocks])
def test_the_ranks_of_blocks_add_up_to_twice_the_order_minus_the_blocks(case):
    task, rank, blocks = word_rank.RANKS[case]
    assert eval(blocks.replace("x", "*")) == rank == 2 * order(task) - len(_blocks.blocks(task.products()))


def test_a_fit_is_adam_in_float64():
    """A few steps in NumPy, with fewer neurons and with all."""
    settings = word_rank.WordRank(starts=2, steps=9, learning_rate=0.05)
    delta = _blocks.tensor(GroupWords(group="cyclic", n=4))
    found = word_rank.fit(delta, [3, 5], settings)
    assert jnp.ones(()).dtype == jnp.float32 and found.shape == (2, 2) and found.dtype == np.float64
    for i, k in itertools.product(range(2), range(2)):
        with jax.enable_x64(True):
            draws = [jax.random.normal(rng.stream(k, "init", f), (4, 5), jnp.float64) for f in range(3)]
        np.testing.assert_allclose(
            found[i, k], numpy_fit(delta, [0.25 * np.asarray(d) for d in draws], [3, 5][i]), 1e-8
        )  # Optax computes the rate in float32


def numpy_fit(delta, uvw, neurons):
    uvw = [w[:, :neurons] for w in uvw]
    m, v = ([np.zeros_like(w) for w in uvw] for _ in range(2))
    for step in range(9):
        off = 2 * (np.einsum("ar,br,cr->abc", *uvw) - delta) / delta.size
        into = ("abc,br,cr->ar", "abc,ar,cr->br", "abc,ar,br->cr")
        gradient = [np.einsum(into[f], off, *[w for g, w in enumerate(uvw) if g != f]) for f in range(3)]
        m = [0.9 * a + 0.1 * g for a, g in zip(m, gradient, strict=True)]
        v = [0.99 * a + 0.01 * g**2 for a, g in zip(v, gradient, strict=True)]
        rate = 0.05 if step < 4 else 0.05 * (1 - (step - 4) / 5)
        root = [np.sqrt(a / (1 - 0.99 ** (step + 1))) + 1e-8 for a in v]
        uvw = [w - rate * a / (1 - 0.9 ** (step + 1)) / r for w, a, r in zip(uvw, m, root, strict=True)]
    return np.square(np.einsum("ar,br,cr->abc", *uvw) - delta).mean()


def test_three_cyclic_elements_take_four_neurons():
    """One real number and one complex: 1 + 3."""
    settings = word_rank.WordRank(starts=6, steps=2500)
    best = word_rank.fit(_blocks.tensor(GroupWords(group="cyclic", n=3)), [3, 4], settings).min(1)
    assert best[1] < word_rank.FITS < 1e-2 < best[0]


def test_an_unknown_case_is_refused():
    with pytest.raises(Refused, match="--cases: 'S9-ab' is not one of S3-ab, "):
        word_rank.WordRank(cases=("S9-ab",))


def test_what_a_network_computes_is_measured_over_the_whole_table():
    """A network made of the characters of the cyclic group of three, and one whose answers ignore b."""
    config = dataclasses.replace(
        group_words.base("cpu", []),
        task=GroupWords(group="cyclic", n=3),
        model=MLP(hidden=(4,), activation="relu"),
        seeds=2,
    )
    hot = np.zeros((2, 6, 4), np.float32)
    hot[0, :, :3] = np.tile(np.eye(3), (2, 1))
    hot[1, :3, :3] = np.eye(3)
    read = np.zeros((4, 3), np.float32)
    read[:3] = np.eye(3)
    params = {"input": jnp.asarray(hot), "Dense_0": {"kernel": jnp.asarray(np.stack([read] * 2))}}
    found = group_words.inspect("arm", config, train.State(params, None, None))
    # e_a + e_b: 24 in all; a constant 2 / 3 in 27 entries, and the rest in (block, constant, block) and the like.
    assert found["inside"].tolist() == pytest.approx([12 / (12 + 12), 3 / (3 + 6)], abs=1e-5)
    assert found["seed"].tolist() == [0, 1] and found["room"].tolist() == pytest.approx([9 / 27] * 2, abs=1e-5)
