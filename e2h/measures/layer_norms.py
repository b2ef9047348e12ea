"""The Euclidean norm of the parameters of each part of the network: sqrt(sum of squares)."""

import dataclasses

import jax
import jax.numpy as jnp

from e2h.measures import Measure
from e2h.measures._trees import norm


@dataclasses.dataclass(frozen=True)
class LayerNorms(Measure):
    """|w| of each top-level part (a matrix, a layer, a block) in columns such as `layer_norms:readout`."""

    def __call__(self, reading, config):
        del config
        return {name: (norm(part), jnp.ones(())) for name, part in reading.params.items() if jax.tree.leaves(part)}
