"""Binary operations modulo p (Power et al. 2022, arXiv 2201.02177, appendix A.1.1, and the operators of its code).

Division is true division: c with c * y = x (mod p). Pairs whose divisor has no inverse are left out, so at a prime p
there are p (p - 1) of them.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from e2h.registry import setting
from e2h.tasks import Problem, TableTask

OPERATIONS = {  # name -> (x, y, y^-1, p) -> result before reduction; NumPy int64 arrays or Python ints
    "add": lambda x, y, inv, p: x + y,
    "subtract": lambda x, y, inv, p: x - y,
    "multiply": lambda x, y, inv, p: x * y,
    "divide": lambda x, y, inv, p: x * inv,
    "divide_odd_subtract_even": lambda x, y, inv, p: np.where(y % 2 == 1, x * inv, x - y),
    "even_add_odd_multiply": lambda x, y, inv, p: np.where(x % 2 == 0, x + y, x * y),
    "even_add_odd_subtract": lambda x, y, inv, p: np.where(x % 2 == 0, x + y, x - y),
    "x2_plus_y": lambda x, y, inv, p: x**2 + y,
    "x3_plus_y": lambda x, y, inv, p: x**3 + y,
    "x2_plus_y2": lambda x, y, inv, p: x**2 + y**2,
    "x2_plus_xy_plus_y2": lambda x, y, inv, p: x**2 + x * y + y**2,
    "x2_plus_xy_plus_y2_plus_x": lambda x, y, inv, p: x**2 + x * y + y**2 + x,
    "x3_plus_xy": lambda x, y, inv, p: x**3 + x * y,
    "x3_plus_xy2_plus_y": lambda x, y, inv, p: x**3 + x * y**2 + y,
    # Matched pairs of Doshi et al. 2024 (arXiv 2406.03495): f(g(x) + h(y)), and the same with a term more.
    "fourth_2x_plus_3y": lambda x, y, inv, p: (2 * x + 3 * y) ** 4,
    "fourth_2x_plus_3y_minus_x2": lambda x, y, inv, p: (2 * x + 3 * y) ** 4 - x**2,
    "cubed_4x_plus_y2": lambda x, y, inv, p: ((4 * x + y**2) % p) ** 3,
    "cubed_4x_plus_y2_plus_xy": lambda x, y, inv, p: ((4 * x + y**2) % p) ** 3 + x * y,
}


@dataclasses.dataclass(frozen=True)
class Modular(TableTask):
    """The table x o y = z (mod p), rows ordered by (x, y)."""

    op: str = setting("add", "the binary operation", choices=OPERATIONS)
    p: int = setting(97, "the modulus", low=2, high=2048)
    unordered: bool = setting(False, "only the pairs with x <= y", added=True)

    EXAMPLES: ClassVar[tuple] = (
        ("96 5", "4"),
        ("1 2", "49", {"op": "divide"}),
        ("3 2", "1", {"op": "subtract"}),
        ("2 5", "94", {"op": "subtract"}),
        ("4 2", "2", {"op": "divide_odd_subtract_even"}),
        ("2 3", "29", {"op": "x3_plus_xy2_plus_y"}),
        ("5 96", "4", {"unordered": True}),
    )

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.p)))

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        inverse = np.array([pow(v, -1, self.p) if np.gcd(v, self.p) == 1 else 0 for v in range(self.p)])
        x, y = (a.ravel() for a in np.meshgrid(np.arange(self.p), np.arange(self.p), indexing="ij"))
        divides = {"divide": y >= 0, "divide_odd_subtract_even": y % 2 == 1}.get(self.op, y < 0)
        keep = (~divides | (np.gcd(y, self.p) == 1)) & ((x <= y) | (not self.unordered))
        x, y = x[keep], y[keep]
        return np.stack([x, y], 1), OPERATIONS[self.op](x, y, inverse[y], self.p) % self.p

    def canonical(self, x: Problem) -> jax.Array:
        pair = x.prompt_PxC[:, 0]
        return jnp.sort(pair) if _commutes(self) else pair

    def forms(self) -> np.ndarray:
        pair_Nx2 = self.table().prompt_PxC[..., 0]
        return np.sort(pair_Nx2, axis=1) if _commutes(self) else pair_Nx2

    def oracle(self, prompt: list[str]) -> list[str]:
        x, y = map(int, prompt)
        quotient = next((c for c in range(self.p) if c * y % self.p == x), 0)
        if self.op == "divide" or (self.op == "divide_odd_subtract_even" and y % 2):
            return [str(quotient)]
        return [str(int(OPERATIONS[self.op](x, y, 0, self.p)) % self.p)]


@functools.cache
def _commutes(task: Modular) -> bool:
    """Whether the table equals its transpose, wherever both x o y and y o x are in it.

    Judged by the table, not by the operation: x^3 + y is x + y at p = 3, and every inverse is its own at p = 24.
    """
    result_PxP = np.full((task.p, task.p), -1)
    result_PxP[tuple(task.table().prompt_PxC[..., 0].T)] = task.table().answer_A[:, 0]
    both_PxP = (result_PxP >= 0) & (result_PxP.T >= 0)
    return bool((result_PxP == result_PxP.T)[both_PxP].all())
