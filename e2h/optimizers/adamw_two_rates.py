"""AdamW with a learning rate and a decay of their own for the embeddings (Liu et al. 2022, arXiv 2205.10343)."""

import dataclasses

import jax
import optax

from e2h.optimizers import decays
from e2h.optimizers.adamw import AdamW
from e2h.registry import setting


@dataclasses.dataclass(frozen=True)
class AdamWTwoRates(AdamW):
    """Parameters whose name begins with `embedding` take `embedding_rate` and `embedding_decay`, the others AdamW's.

    Both rates follow the schedule of the learning rate.
    """

    embedding_rate: float = setting(1e-3, "peak learning rate of the embeddings", low=0.0, high=1e38, varies=True)
    embedding_decay: float = setting(0.0, "decay of the embeddings, multiplied by their rate", low=0.0, varies=True)

    def transformation(self, steps):
        def group(rate, decay):
            return optax.chain(
                optax.scale_by_adam(self.b1, self.b2, self.eps),
                optax.add_decayed_weights(decay, decays(self.decay_mask)),
                optax.scale_by_learning_rate(self.schedule_to(rate, steps)),
            )

        groups = {
            "embedding": group(self.embedding_rate, self.embedding_decay),
            "others": group(self.learning_rate, self.weight_decay),
        }
        return optax.chain(self.clip(), optax.multi_transform(groups, _group_of))


def _group_of(params):
    def group(path, _):
        return "embedding" if jax.tree_util.keystr(path[:1], simple=True).startswith("embedding") else "others"

    return jax.tree_util.tree_map_with_path(group, params)
