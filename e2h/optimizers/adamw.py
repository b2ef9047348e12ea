"""Adam with decoupled decay (Loshchilov & Hutter 2019, arXiv 1711.05101).

w <- w - lr (m / (sqrt v + eps) + decay w)
"""

import dataclasses

import jax
import jax.numpy as jnp
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
    decay_towards: str = setting(
        "origin", "or the parameters before the first step (Power et al. 2022)", choices=("origin", "start"), added=True
    )

    def transformation(self, steps):
        decay = decay_towards_start if self.decay_towards == "start" else optax.add_decayed_weights
        return optax.chain(
            self.clip(),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            decay(self.weight_decay, decays(self.decay_mask)),
            optax.scale_by_learning_rate(self.rate(steps)),
        )


def decay_towards_start(weight_decay, mask) -> optax.GradientTransformation:
    """Adds weight_decay (w - w0) for the parameters that the mask takes; w0 is carried in the state."""

    def init(params):
        return jax.tree.map(jnp.array, params)

    def update(updates, start, params):
        add = lambda u, w, w0, taken: u + weight_decay * (w - w0) if taken else u  # noqa: E731
        return jax.tree.map(add, updates, params, start, mask(params)), start

    return optax.GradientTransformation(init, update)
