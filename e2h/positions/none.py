"""No encoding: a causal mask or a recurrence must tell the order (NoPE; Kazemnejad et al. 2023, arXiv 2305.19466)."""

import dataclasses

from e2h.positions import Position


@dataclasses.dataclass(frozen=True)
class NoPosition(Position):
    """Nothing is added."""
