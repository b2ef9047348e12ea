"""A decoder on the sum of two trained embeddings (Liu et al. 2022, arXiv 2205.10343, section 3)."""

import dataclasses
import functools
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from e2h import rng
from e2h.models import Model, Network
from e2h.models._initialisers import KERNELS
from e2h.registry import Refused, setting


@dataclasses.dataclass(frozen=True)
class EmbeddingSum(Model):
    """A tanh network from E_i + E_j to a vector, which should be the code of the answer: fixed, random, N(0, 1).

    A logit is minus the mean squared distance to a class's code, so that the loss `code_distance` is the paper's and
    the arg max its accuracy, the nearest code. The codes are the same for all seeds.
    """

    dimensions: int = setting(1, "of an embedding, which starts uniform in +-1/2", low=1)
    hidden: tuple[int, ...] = setting((200, 200), "widths of the decoder's hidden layers")
    code: int = setting(30, "length of a code", low=1)

    causal: ClassVar[bool] = False

    def check(self, config) -> None:
        super().check(config)
        if config.layout.name != "table" or config.layout.equals or config.task.channels > 1:
            raise Refused("model embedding_sum adds the embeddings of a row: --layout=table without --layout.equals.")
        if not self.hidden or min(self.hidden) < 1:
            raise Refused(f"model.hidden={self.hidden} needs at least one layer, each of width 1 or more.")

    def network(self, *, position, vocabulary, classes, length, dtype):
        del position, length
        return EmbeddingSumNetwork(self, vocabulary, classes, dtype)


class EmbeddingSumNetwork(Network):
    settings: EmbeddingSum
    vocabulary: int
    classes: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, batch):
        s = self.settings
        start = functools.partial(_uniform, bound=0.5)
        table_VxD = self.param("embedding", start, (self.vocabulary, s.dimensions)).astype(self.dtype)
        x_BxD = table_VxD[batch.tokens_BxLxC[:, :, 0]].sum(1)
        for i, width in enumerate((*s.hidden, s.code)):
            bias = functools.partial(_uniform, bound=x_BxD.shape[-1] ** -0.5)
            dense = nn.Dense(width, dtype=self.dtype, kernel_init=KERNELS["torch_uniform"], bias_init=bias)
            x_BxD = dense(jnp.tanh(x_BxD) if i else x_BxD)
        code_VxK = jax.random.normal(rng.stream(rng.POPULATION, "codes"), (self.classes, s.code))
        distance_BxV = jnp.square(x_BxD.astype(jnp.float32)[:, None] - code_VxK[None]).mean(-1)
        return -distance_BxV[:, None]


def _uniform(key, shape, dtype=jnp.float32, *, bound: float):
    return jax.random.uniform(key, shape, dtype, -bound, bound)
