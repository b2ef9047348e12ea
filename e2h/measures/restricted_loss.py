"""Restricted loss (Nanda et al. 2023, arXiv 2301.05217, progress measures): what is known by waves in x + y alone."""

import dataclasses

import jax.numpy as jnp

from e2h.measures import Measure, _progress


@dataclasses.dataclass(frozen=True)
class RestrictedLoss(Measure):
    """The loss over all p^2 pairs when the logits keep only the key frequencies' cos w_k(x + y), sin w_k(x + y).

    Each class also keeps its mean over the table. Key frequencies are found from the weights (`_progress`). Logits
    sum_k a_k cos w_k(x + y - c) have ln sum_d exp(sum_k a_k cos w_k d) - sum_k a_k, those without waves in x + y (and
    without preference) ln p. While circuits form it falls before the test loss does; at the end it may be below it,
    as it lacks what was learned by heart. A softmax is blind to what is common to all classes, so that centring the
    logits over them, as the paper does, changes nothing.
    """

    def check(self, config):
        _progress.check(self, config)

    def __call__(self, reading, config):
        mean_PxV, class_P = _progress.mean_by_sum(reading.params, config)
        kept_K = _progress.key_frequencies(reading.params, config).at[0].set(True)
        loss_P = config.loss.per_read(_progress.keep(mean_PxV, kept_K), class_P)
        return config.task.p * loss_P.sum(), jnp.float32(config.task.size)  # each sum has p pairs
