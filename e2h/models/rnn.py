"""A vanilla recurrent network (Elman 1990): h <- act(W h + U x + b)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.models import Model
from e2h.models._initialisers import kernel_setting
from e2h.models._recurrent import RecurrentNetwork
from e2h.registry import setting

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


@dataclasses.dataclass(frozen=True)
class RNN(Model):
    """One layer; ReLU and 256 units as in Delétang et al. 2022 (arXiv 2207.02098)."""

    width: int = setting(256, "hidden units", low=1)
    activation: str = setting("relu", "of the hidden state", choices=ACTIVATIONS)
    kernel_init: str = kernel_setting("lecun_normal")

    def network(self, *, position, vocabulary, classes, length, dtype):
        del position, length
        return RNNNetwork(self, vocabulary, classes, dtype)


class RNNNetwork(RecurrentNetwork):
    def start(self, batch):
        return (jnp.zeros((batch, self.settings.width), self.dtype),)

    def step(self, carry, x_BxG, recurrent):
        return (ACTIVATIONS[self.settings.activation](carry[0] @ recurrent + x_BxG),)
