"""Products in the symmetric group S_n (Power et al. 2022, arXiv 2201.02177, appendix A.1.1).

A permutation is written as the images of 0..n-1. The product x.y applies y first: (x.y)(i) = x(y(i)).
"""

import dataclasses
import itertools
import math
from typing import ClassVar

import numpy as np

from e2h.registry import setting
from e2h.tasks import TableTask


def _compose(x, y):
    """x.y for arrays [..., n]."""
    return np.take_along_axis(x, y, axis=-1)


PRODUCTS = {
    "xy": _compose,
    "xyx_inverse": lambda x, y: _compose(_compose(x, y), np.argsort(x, axis=-1)),
    "xyx": lambda x, y: _compose(_compose(x, y), x),
}


@dataclasses.dataclass(frozen=True)
class Permutation(TableTask):
    """All n!^2 pairs of permutations; each permutation is one opaque token, in lexicographic order."""

    n: int = setting(5, "permutations of n things", low=2, high=6)
    op: str = setting("xy", "the product", choices=PRODUCTS)

    EXAMPLES: ClassVar[tuple] = (
        ("10234 01243", "10243"),
        ("12034 10234", "21034"),
        ("12034 10234", "02134", {"op": "xyx_inverse"}),
        ("12034 10234", "10234", {"op": "xyx"}),
    )

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        return tuple("".join(map(str, p)) for p in itertools.permutations(range(self.n)))

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        elements = np.array(list(itertools.permutations(range(self.n))))
        count = math.factorial(self.n)
        x, y = (a.ravel() for a in np.meshgrid(np.arange(count), np.arange(count), indexing="ij"))
        result = PRODUCTS[self.op](elements[x], elements[y])
        base = self.n ** np.arange(self.n)[::-1]  # lexicographic order is the order of the number in base n
        return np.stack([x, y], 1), np.searchsorted(elements @ base, result @ base)

    def oracle(self, prompt: list[str]) -> list[str]:
        x, y = ([int(c) for c in word] for word in prompt)
        last = {"xy": range(self.n), "xyx": x, "xyx_inverse": [x.index(i) for i in range(self.n)]}[self.op]
        return ["".join(str(x[y[last[i]]]) for i in range(self.n))]
