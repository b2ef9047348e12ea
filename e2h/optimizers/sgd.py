"""Stochastic gradient descent: m <- momentum m + g; w <- w - lr (m + decay w)."""

import dataclasses

import optax

from e2h.optimizers import DECAYS, Scheduled, decays
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class SGD(Scheduled):
    """Decoupled decay; without momentum it equals the gradient of (decay / 2) |w|^2."""

    learning_rate: float = setting(0.1, "peak learning rate", low=0.0, high=1e38, varies=True)
    momentum: float = setting(0.0, "share of the last update that is kept", low=0.0, high=1.0)
    nesterov: bool = setting(False, "look ahead along the momentum")
    weight_decay: float = setting(0.0, "decay, multiplied by the learning rate", low=0.0, varies=True)
    decay_mask: str = setting("all", "which parameters decay", choices=DECAYS)

    def transformation(self, steps):
        return optax.chain(
            self.clip(),
            optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity(),
            optax.add_decayed_weights(self.weight_decay, decays(self.decay_mask)),
            optax.scale_by_learning_rate(self.rate(steps)),
        )
