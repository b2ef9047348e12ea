"""Words in finite groups (Shutman, Louidor & Tessler 2025, arXiv 2509.06931): from a and b to ab, aba, aba^-1, [a, b].

The groups act on n points and a product applies its right factor first, (xy)(i) = x(y(i)): cyclic, k: i -> k + i
(mod n); dihedral, of order 2 n, rk: i -> k + i and sk: i -> k - i (mod n); symmetric, written as the images of 0..n-1.
"""

import dataclasses
import functools
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from e2h.registry import Refused, setting
from e2h.tasks import Problem, TableTask

GROUPS = ("cyclic", "dihedral", "symmetric")
WORDS = {"ab": "ab", "aba": "aba", "aba_inverse": "abA", "commutator": "abAB"}  # a capital letter is an inverse


@dataclasses.dataclass(frozen=True)
class GroupWords(TableTask):
    """All pairs (a, b); each element is one opaque token, the identity the first.

    Twins are (a, b) and (b, a), where exchanging the letters turns the word into itself or into its inverse whatever
    a and b are: [b, a] = [a, b]^-1 in every group, ba = ab in a cyclic one. Relations that need the group to be known
    (its centre, its automorphisms, [ab, b] = [a, b]) make no twins: they are what is to be learned. In a cyclic group
    aba^-1 is b and [a, b] the identity.
    """

    word: str = setting("ab", "the word; [a, b] = a b a^-1 b^-1", choices=WORDS)
    group: str = setting("symmetric", "the group", choices=GROUPS)
    n: int = setting(4, "points that it acts on", low=3, high=1024)

    EXAMPLES: ClassVar[tuple] = (
        ("1203 1023", "2103"),
        ("1203 1023", "0213", {"word": "aba_inverse"}),
        ("120 102", "201", {"word": "commutator", "n": 3}),
        ("3 4", "3", {"word": "aba", "group": "cyclic", "n": 7}),
        ("3 6", "2", {"group": "cyclic", "n": 7}),
        ("r1 s0", "s1", {"group": "dihedral", "n": 5}),
        ("r1 s0", "r2", {"word": "commutator", "group": "dihedral", "n": 5}),
    )

    def __post_init__(self):
        super().__post_init__()
        if self.group == "symmetric" and self.n > 6:
            raise Refused(f"task.n={self.n} makes the table of the symmetric group too large: it takes 3 to 6.")

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        if self.group == "symmetric":
            return tuple("".join(map(str, p)) for p in itertools.permutations(range(self.n)))
        signs = ("",) if self.group == "cyclic" else ("r", "s")
        return tuple(f"{sign}{k}" for sign in signs for k in range(self.n))

    def products(self) -> np.ndarray:
        """The group's table [N, N]: the index of xy."""
        n = self.n
        if self.group == "symmetric":
            elements = np.array(list(itertools.permutations(range(n))))
            base = n ** np.arange(n)[::-1]  # lexicographic order is the order of the number in base n
            return np.searchsorted(elements @ base, elements[:, elements] @ base)
        x, y = np.ogrid[: len(self.prompt_vocabulary), : len(self.prompt_vocabulary)]
        turned = x // n * -2 + 1  # a reflection turns the other way what comes before it
        return (x // n + y // n) % 2 * n + (x % n + turned * (y % n)) % n

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        products = self.products()
        inverse = np.argmin(products, axis=1)  # the identity is the least index
        a, b = (m.ravel() for m in np.indices(products.shape))
        letters = {"a": a, "b": b, "A": inverse[a], "B": inverse[b]}
        result = functools.reduce(lambda x, y: products[x, y], [letters[c] for c in WORDS[self.word]])
        return np.stack([a, b], 1), result

    def canonical(self, x: Problem) -> jax.Array:
        pair = x.prompt_PxC[:, 0]
        return jnp.sort(pair) if self._exchanges else pair

    def forms(self) -> np.ndarray:
        pair_Nx2 = self.table().prompt_PxC[..., 0]
        return np.sort(pair_Nx2, axis=1) if self._exchanges else pair_Nx2

    @property
    def _exchanges(self) -> bool:
        """Whether (a, b) gives (b, a) away."""
        return self.word == "commutator" or (self.word == "ab" and self.group == "cyclic")

    def oracle(self, prompt: list[str]) -> list[str]:
        a, b = map(self._images, prompt)
        back = {i: x for x, i in enumerate(a)}
        if self.word == "ab":
            images = [a[b[i]] for i in range(self.n)]
        elif self.word == "aba":
            images = [a[b[a[i]]] for i in range(self.n)]
        elif self.word == "aba_inverse":
            images = [a[b[back[i]]] for i in range(self.n)]
        else:
            images = [a[b[back[b.index(i)]]] for i in range(self.n)]
        return [next(word for word in self.prompt_vocabulary if self._images(word) == images)]

    def _images(self, word: str) -> list[int]:
        """Where an element takes each point."""
        if self.group == "symmetric":
            return [int(c) for c in word]
        return [(int(word.strip("rs")) + (-i if "s" in word else i)) % self.n for i in range(self.n)]
