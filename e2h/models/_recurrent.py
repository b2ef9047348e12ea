"""What recurrent networks share: input projection, scan, readout, and generation from the carry."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from e2h.models import Network, embed, read
from e2h.models._initialisers import KERNELS


class RecurrentNetwork(Network):
    """Subclasses say how many gate inputs a step takes (`gates`, of the model's width each) and have two methods:

    start(batch) -> the carry before the first token
    step(carry, x_BxG, recurrent) -> the next carry from the projected input of one token

    The input projection of all steps is one gather before the scan: a one-hot input times a matrix is a row of it.
    The carry is a tuple whose first element is the output. The readout is linear after a ReLU, as in Delétang et al.
    """

    settings: object
    vocabulary: int
    classes: int
    dtype: jnp.dtype

    gates = 1

    def setup(self):
        init, width = KERNELS[self.settings.kernel_init], self.settings.width
        self.input = self.param("input", init, (self.vocabulary, self.gates * width))
        self.recurrent = self.param("recurrent", init, (width, self.gates * width))
        self.bias = self.param("bias", self.initial_bias, (self.gates * width,))
        self.readout = nn.Dense(self.classes, dtype=self.dtype, kernel_init=init)

    @staticmethod
    def initial_bias(key, shape):
        del key
        return jnp.zeros(shape)

    def inputs(self, tokens_BxLxC):
        x_BxLxG = embed(self.input.astype(self.dtype), tokens_BxLxC)
        return x_BxLxG + self.bias.astype(self.dtype)[None, None]

    def logits(self, h):
        return self.readout(jax.nn.relu(h)).astype(jnp.float32)

    def __call__(self, batch):
        x_LxBxG = self.inputs(batch.tokens_BxLxC).swapaxes(0, 1)
        recurrent = self.recurrent.astype(self.dtype)

        def step(carry, x_BxG):
            carry = self.step(carry, x_BxG, recurrent)
            return carry, carry[0]

        _, h_LxBxD = jax.lax.scan(step, self.start(x_LxBxG.shape[1]), x_LxBxG)
        return self.logits(read(h_LxBxD.swapaxes(0, 1), batch.read_BxR))

    def prefill(self, batch):
        x_LxBxG = self.inputs(batch.tokens_BxLxC).swapaxes(0, 1)
        recurrent = self.recurrent.astype(self.dtype)

        def step(carry, t_and_x):
            t, x_BxG = t_and_x
            moved = self.step(carry, x_BxG, recurrent)
            inside_B = t < batch.length_B
            return jax.tree.map(lambda new, old: jnp.where(inside_B[:, None], new, old), moved, carry), None

        steps_L = jnp.arange(x_LxBxG.shape[0])
        carry, _ = jax.lax.scan(step, self.start(x_LxBxG.shape[1]), (steps_L, x_LxBxG))
        return self.logits(carry[0]), carry

    def decode(self, cache, token_B, index_B, place_BxL):
        del index_B, place_BxL
        x_BxG = self.inputs(token_B[:, None, None])[:, 0]
        carry = self.step(cache, x_BxG, self.recurrent.astype(self.dtype))
        return self.logits(carry[0]), carry
