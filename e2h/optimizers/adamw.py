"""Adam with decoupled decay (Loshchilov & Hutter 2019, arXiv 1711.05101).

w <- w - lr (m / (sqrt v + eps) + decay w)
"""

import dataclasses

import optax

from e2h.optimizers import DECAYS, Scheduled, decays
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class AdamW(Scheduled):
    """The decay is multiplied by the learning rate, its schedule included, and does not enter the moments."""

    b1: float = setting(0.9, "decay of the first moment", low=0.0, high=0.99999)
    b2: float = setting(0.999, "decay of the second moment", low=0.0, high=0.99999)
    eps: float = setting(1e-8, "added to the root of the second moment", low=0.0)
    weight_decay: float = setting(0.0, "decay, multiplied by the learning rate", low=0.0, varies=True)
    decay_mask: str = setting("all", "which parameters decay", choices=DECAYS)

    def transformation(self, steps):
        return optax.chain(
            self.clip(),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(self.weight_decay, decays(self.decay_mask)),
            optax.scale_by_learning_rate(self.rate(steps)),
        )
