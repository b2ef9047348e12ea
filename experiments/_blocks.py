"""Blocks of a finite group, and in which of their triplets a word's tensor lies (Shutman et al., arXiv 2509.06931).

R^G is a sum of blocks that translations from either side leave alone: one for each real irreducible representation,
where complex conjugate ones count as one ("basic self-conjugate" representations). Everything here is computed from the
group's table of products, without a table of characters.
"""

import numpy as np

from e2h.tasks.group_words import WORDS, GroupWords

SMALL = 1e-9  # beside 1
WRITTEN = {"ab": "ab", "aba": "aba", "aba_inverse": "aba$^{-1}$", "commutator": "[a, b]"}


def label(task: GroupWords) -> str:
    """`S3-ab`."""
    return f"{task.group[0].upper()}{task.n}-{task.word}"


def tensor(task: GroupWords) -> np.ndarray:
    """delta [a, b, c]: 1 where c is the word's value at (a, b)."""
    _, answers_N = task.rows()
    order = len(task.prompt_vocabulary)
    return np.eye(order)[answers_N].reshape(order, order, order)


def blocks(products_NxN: np.ndarray) -> list[np.ndarray]:
    """An orthonormal basis [N, D] of each block, in the order of their dimensions D."""
    inverse_N = np.argmin(products_NxN, axis=1)  # the identity is the least index
    conjugates_NxN = products_NxN[products_NxN, inverse_N[:, None]]  # column x: all y x y^-1
    class_N = np.minimum(conjugates_NxN.min(0), conjugates_NxN[:, inverse_N].min(0))
    # Translations, weighed alike on a class of conjugates and inverses, act on each block as a number of its own.
    weight_N = np.random.default_rng(0).uniform(size=len(products_NxN))[class_N]
    number_N, basis_NxN = np.linalg.eigh(weight_N[products_NxN[:, inverse_N]])
    cuts = np.flatnonzero(np.diff(number_N) > SMALL * len(number_N)) + 1
    return sorted(np.split(basis_NxN, cuts, axis=1), key=lambda basis_NxD: basis_NxD.shape[1])


def dimensions(bases: list[np.ndarray]) -> np.ndarray:
    """[a's block, b's, c's]: the dimension of each triplet."""
    dims = [basis_NxD.shape[1] for basis_NxD in bases]
    return np.einsum("i,j,k->ijk", dims, dims, dims)


def shares(bases: list[np.ndarray], delta_NxNxN: np.ndarray) -> np.ndarray:
    """[a's block, b's, c's]: the share of the tensor's squared norm in each triplet."""
    basis_NxN, starts = np.concatenate(bases, 1), np.cumsum([0] + [b.shape[1] for b in bases[:-1]])
    squares = np.einsum("abc,ai,bj,ck->ijk", delta_NxNxN, *[basis_NxN] * 3, optimize=True) ** 2
    for axis in range(3):
        squares = np.add.reduceat(squares, starts, axis)
    return squares / squares.sum()


def cover(bases: list[np.ndarray], word: str) -> np.ndarray:
    """[a's block, b's, c's]: whether fusion allows any of the word's tensor there.

    The representation of a's block must occur in the n_a-th tensor power of that of c's block, that of b's in the
    n_b-th; n_a and n_b count a letter and its inverse in the word.
    """
    character_FxN = np.stack([basis_NxD @ basis_NxD[0] for basis_NxD in bases])  # the projected identity
    character_FxN = character_FxN / character_FxN[:, :1]
    in_a_FxF, in_b_FxF = (
        character_FxN @ (character_FxN ** WORDS[word].lower().count(letter)).T > SMALL for letter in "ab"
    )
    return in_a_FxF[:, None] & in_b_FxF[None]
