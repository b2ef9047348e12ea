"""Adam with coupled decay, as in torch's Adam(weight_decay=...): the gradient becomes g + decay w before the moments.

Not AdamW: the second moment divides the decay as well, so weights with large gradients decay less.
"""

import dataclasses

import optax

from e2h.optimizers import DECAYS, Scheduled, decays
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class AdamL2(Scheduled):
    """w <- w - lr m / (sqrt v + eps), with moments of g + decay w."""

    b1: float = setting(0.9, "decay of the first moment", low=0.0, high=0.99999)
    b2: float = setting(0.999, "decay of the second moment", low=0.0, high=0.99999)
    eps: float = setting(1e-8, "added to the root of the second moment", low=0.0)
    weight_decay: float = setting(0.0, "decay added to the gradient", low=0.0, varies=True)
    decay_mask: str = setting("all", "which parameters decay", choices=DECAYS)

    def transformation(self, steps):
        return optax.chain(
            self.clip(),
            optax.add_decayed_weights(self.weight_decay, decays(self.decay_mask)),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.scale_by_learning_rate(self.rate(steps)),
        )
