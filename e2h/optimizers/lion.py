"""Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2), by Optax.

w <- w - lr (sign(b1 m + (1 - b1) g) + decay w), then m <- b2 m + (1 - b2) g
"""

import dataclasses

import optax

from e2h.optimizers import DECAYS, Scheduled, decays
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class Lion(Scheduled):
    """A step moves every weight by the rate: take a rate 3 to 10 times below AdamW's, a decay as many times above."""

    learning_rate: float = setting(1e-4, "peak learning rate", low=0.0, high=1e38, varies=True)
    b1: float = setting(0.9, "share of the momentum in the step's direction", low=0.0, high=0.99999)
    b2: float = setting(0.99, "share of the momentum that is kept", low=0.0, high=0.99999)
    weight_decay: float = setting(0.0, "decay, multiplied by the learning rate", low=0.0, varies=True)
    decay_mask: str = setting("all", "which parameters decay", choices=DECAYS)

    def transformation(self, steps):
        return optax.chain(
            self.clip(),
            optax.scale_by_lion(self.b1, self.b2),
            optax.add_decayed_weights(self.weight_decay, decays(self.decay_mask)),
            optax.scale_by_learning_rate(self.rate(steps)),
        )
