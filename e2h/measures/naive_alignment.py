"""Alignment with naive loss minimization (Prieto et al. 2025, arXiv 2501.04697): the cosine between minus the gradient
of the loss and the weights, over all parameters together.

In a network that is homogeneous in its weights (ReLU, no biases), growing them along themselves only makes the logits
larger: the loss falls and no prediction changes. It is the gradient of the loss, before an optimizer changes it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from e2h.measures import Measure
from e2h.measures._trees import unit


@dataclasses.dataclass(frozen=True)
class NaiveAlignment(Measure):
    """-g.w / (|g| |w|); 0 where the gradient or the weights vanish, and with them the direction."""

    def __call__(self, reading, config):
        del config
        g, w = unit(jax.grad(reading.mean_loss)(reading.params)), unit(reading.params)
        return -optax.tree.vdot(g, w), jnp.ones(())
