"""Long short-term memory (Hochreiter & Schmidhuber 1997; with the forget gate of Gers et al. 2000)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.models import Model
from e2h.models._initialisers import kernel_setting
from e2h.models._recurrent import RecurrentNetwork
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class LSTM(Model):
    """One layer; the forget gate's bias starts at 1."""

    width: int = setting(256, "hidden units", low=1)
    kernel_init: str = kernel_setting("lecun_normal")

    def network(self, *, position, vocabulary, classes, length, dtype):
        del position, length
        return LSTMNetwork(self, vocabulary, classes, dtype)


class LSTMNetwork(RecurrentNetwork):
    gates = 4

    @staticmethod
    def initial_bias(key, shape):
        del key
        return jnp.repeat(jnp.array([0.0, 0.0, 1.0, 0.0]), shape[0] // 4)  # gates in the order of `step`

    def start(self, batch):
        zero = jnp.zeros((batch, self.settings.width), self.dtype)
        return zero, zero

    def step(self, carry, x_BxG, recurrent):
        h, c = carry
        write, value, forget, show = jnp.split(h @ recurrent + x_BxG, 4, axis=-1)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(write) * jnp.tanh(value)
        return jax.nn.sigmoid(show) * jnp.tanh(c), c
