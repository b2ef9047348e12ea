"""Excluded loss (Nanda et al. 2023, arXiv 2301.05217, progress measures): what is known without waves in x + y."""

import dataclasses

from e2h.measures import Measure, _progress


@dataclasses.dataclass(frozen=True)
class ExcludedLoss(Measure):
    """The loss on the training problems when the key frequencies' cos w_k(x + y), sin w_k(x + y) are taken away.

    What is taken away is their share in the logits over the whole table, constants are not, all key frequencies
    (`_progress`) at once. A network that knows its problems by heart alone keeps its training loss, which this equals
    for logits without such waves; logits sum_k a_k cos w_k(x + y - c) leave ln p. It rises while circuits form.
    """

    def check(self, config):
        _progress.check(self, config)

    def __call__(self, reading, config):
        mean_PxV, _ = _progress.mean_by_sum(reading.params, config)
        key_PxV = _progress.keep(mean_PxV, _progress.key_frequencies(reading.params, config))
        batch = reading.batch
        sum_B = batch.tokens_BxLxC[:, :2, 0].sum(1) % config.task.p  # not the target, which may be corrupted
        return config.loss(reading.logits_BxRxV - key_PxV[sum_B][:, None], batch.target_BxR, batch.weight_BxR)
