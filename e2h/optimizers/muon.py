"""Muon on the hidden matrices, AdamW on all else (Jordan et al. 2024; on grokking Tveit et al., arXiv 2504.16041).

By Optax, which left alone would take every matrix, embeddings and readout too, would decay nothing of what it leaves to
Adam, and would give Adam Muon's far larger rate. The momentum is plain: Optax's Nesterov setting also changes the Adam
part.
"""

import dataclasses

import jax
import optax
import optax.contrib
from optax.contrib import MuonDimensionNumbers

from e2h.optimizers import DECAYS, Scheduled, decays
from e2h.registry import setting

OUTER = ("tokens", "places", "embedding", "input", "readout")  # parameters at the ends of a network


@dataclasses.dataclass(frozen=True)
class Muon(Scheduled):
    """Hidden matrices move by lr max(1, out / in)^(1/2) U V' of their momentum, by five Newton-Schulz steps.

    Both rates follow the schedule. A hidden matrix is a kernel inside a network's blocks, a recurrent matrix, or a
    dense layer of an MLP but the last; heads count as one matrix.
    """

    learning_rate: float = setting(0.02, "peak learning rate of the hidden matrices", low=0.0, high=1e38, varies=True)
    beta: float = setting(0.95, "share of the momentum that is kept", low=0.0, high=0.99999)
    adam_rate: float = setting(1e-3, "peak learning rate of the other parameters", low=0.0, high=1e38, varies=True)
    b1: float = setting(0.9, "decay of Adam's first moment", low=0.0, high=0.99999)
    b2: float = setting(0.98, "decay of Adam's second moment", low=0.0, high=0.99999)
    weight_decay: float = setting(0.0, "decay of all, multiplied by their learning rates", low=0.0, varies=True)
    decay_mask: str = setting("all", "which parameters decay", choices=DECAYS)

    def transformation(self, steps):
        def group(direction, peak):
            decay = optax.add_decayed_weights(self.weight_decay, decays(self.decay_mask))
            return optax.chain(direction, decay, optax.scale_by_learning_rate(self.schedule_to(peak, steps)))

        # Of rate 1 and without its Adam, which the groups leave nothing to.
        muon = optax.contrib.muon(1.0, beta=self.beta, nesterov=False, muon_weight_dimension_numbers=hidden_matrices)
        groups = {
            "hidden": group(optax.chain(muon, optax.scale(-1.0)), self.learning_rate),
            "rest": group(optax.scale_by_adam(self.b1, self.b2), self.adam_rate),
        }
        return optax.chain(self.clip(), optax.multi_transform(groups, _group_of))


def hidden_matrices(params):
    """Of each parameter which axes go in and which come out, or None if it is no hidden matrix."""
    dense = [name for name in params if name.startswith("Dense_")] if isinstance(params, dict) else []
    dense.sort(key=lambda name: (len(name), name))
    outer = (*OUTER, *dense[-1:])

    def axes(path, w):
        names = [str(getattr(part, "key", part)) for part in path]
        if w.ndim < 2 or not names or names[0] in outer or names[-1] not in ("kernel", "recurrent"):
            return None
        into = tuple(range(w.ndim - 1)) if names[-2:-1] == ["out"] else (0,)  # heads are summed over
        return MuonDimensionNumbers(into, tuple(a for a in range(w.ndim) if a not in into))

    return jax.tree_util.tree_map_with_path(axes, params)


def _group_of(params):
    return jax.tree.map(
        lambda axes: "rest" if axes is None else "hidden",
        hidden_matrices(params),
        is_leaf=lambda x: x is None or isinstance(x, MuonDimensionNumbers),
    )
