"""A multilayer perceptron on the concatenated one-hot tokens of a fixed-length row, or on their values."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from e2h.models import Model, Network
from e2h.models._initialisers import KERNELS, kernel_setting
from e2h.registry import Refused, setting

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "tanh": jnp.tanh, "quadratic": jnp.square}


@dataclasses.dataclass(frozen=True)
class MLP(Model):
    """The defaults are the network of Prieto et al. 2025 (arXiv 2501.04697): 226-200-200-113, no biases, at p = 113."""

    hidden: tuple[int, ...] = setting((200, 200), "widths of the hidden layers")
    activation: str = setting("relu", "after each hidden layer", choices=ACTIVATIONS)
    bias: bool = setting(False, "whether layers have biases")
    kernel_init: str = kernel_setting("torch_uniform")
    mean_field: bool = setting(
        False, "divide the input by the root of its size, the output by the last width (Gromov 2023)", added=True
    )

    numbers: bool = setting(
        False, "read a token as a number, its id over the largest, in place of a one-hot vector", added=True
    )

    causal: ClassVar[bool] = False

    def check(self, config) -> None:
        super().check(config)
        if config.layout.name != "table":
            raise Refused(f"model mlp reads rows of one length: --layout=table, not {config.layout.name}.")
        if config.task.channels > 1:
            raise Refused(
                f"model mlp reads one channel of a token, and those of task {config.task.name} "
                f"have {config.task.channels}."
            )
        if not self.hidden or min(self.hidden) < 1:
            raise Refused(f"model.hidden={self.hidden} needs at least one layer, each of width 1 or more.")

    def network(self, *, position, vocabulary, classes, length, dtype):
        del position
        return MLPNetwork(self, vocabulary, classes, length, dtype)


class MLPNetwork(Network):
    settings: MLP
    vocabulary: int
    classes: int
    length: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, batch):
        init, act = KERNELS[self.settings.kernel_init], ACTIVATIONS[self.settings.activation]
        # A one-hot input times a matrix is a row of it: the first layer is a gather (the same numbers, less work).
        first, *widths = self.settings.hidden
        token_BxL = batch.tokens_BxLxC[:, :, 0]
        if self.settings.numbers:
            inputs = self.length
            x_BxL = token_BxL.astype(self.dtype) / (self.vocabulary - 1)
            x_BxD = x_BxL @ self.param("input", init, (inputs, first)).astype(self.dtype)
        else:
            inputs = self.length * self.vocabulary
            table_IxD = self.param("input", init, (inputs, first)).astype(self.dtype)
            offset_L = jnp.arange(self.length) * self.vocabulary
            x_BxD = table_IxD[token_BxL + offset_L[None]].sum(1)
        if self.settings.mean_field:
            x_BxD = x_BxD / inputs**0.5
        if self.settings.bias:
            x_BxD = x_BxD + self.param("input_bias", nn.initializers.zeros, (first,)).astype(self.dtype)[None]
        for width in (*widths, self.classes):
            x_BxD = nn.Dense(width, self.settings.bias, dtype=self.dtype, kernel_init=init)(act(x_BxD))
        if self.settings.mean_field:
            x_BxD = x_BxD / self.settings.hidden[-1]
        return x_BxD[:, None].astype(jnp.float32)
