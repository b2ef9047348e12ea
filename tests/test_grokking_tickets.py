"""What the experiment on tickets says of rows made by hand, and the network that it trains."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from e2h import config as configs
from e2h import train
from e2h.claims import FAILS, HOLDS, UNTESTABLE
from e2h.config import Config
from e2h.layouts import Batch
from e2h.models.embedding_mlp import EmbeddingMLP
from e2h.registry import Refused
from e2h.tasks.modular import Modular
from experiments import grokking_tickets as tickets

NEVER = math.inf
BUDGET = 1000
TIMES = {  # arm -> (t_mem, t_gen), where every claim holds
    tickets.DENSE: (100, 600),
    tickets.TICKET: (100, 110),
    tickets.MEMORIZED: (100, 500),
    tickets.TRANSITION: (100, 300),
    tickets.RANDOM: (100, 700),
    tickets.L1: (100, 500),
    tickets.L2: (100, NEVER),
    tickets.FEW: (NEVER, NEVER),
}


def rows(arm, times, **cell):
    """Of three seeds: an accuracy of 0 until the step of an event, and .97 from it on."""
    return pd.DataFrame(
        dict(arm=arm, seed=seed, step=step, split=part, difficulty=1, problems=100, chance=0.01, **cell)
        | dict(exact=97 if step >= when else 0)
        for seed, (part, when), step in itertools.product(
            range(3), zip(("train", "test"), times, strict=True), range(0, BUDGET + 1, 10)
        )
    )


def verdicts(changed=()):
    found = [rows(arm, times) for arm, times in (TIMES | dict(changed)).items()]
    return {claim.id: claim.verdict for claim in tickets.claims(pd.concat(found))}


def test_every_claim_can_hold():
    assert set(verdicts().values()) == {HOLDS} and len(verdicts()) == 7


@pytest.mark.parametrize(
    "claim, arm, times",
    [
        ("ticket-no-delay", tickets.TICKET, (100, 160)),
        ("memorized-later", tickets.MEMORIZED, (100, 110)),
        ("memorized-later", tickets.MEMORIZED, (NEVER, NEVER)),
        ("random-no-better", tickets.RANDOM, (100, 290)),
        ("random-no-better", tickets.RANDOM, (100, 910)),
        ("random-no-better", tickets.RANDOM, (100, NEVER)),
        ("random-no-better", tickets.RANDOM, (NEVER, NEVER)),
        ("norm-l1", tickets.L1, (100, 390)),
        ("norm-l2", tickets.L2, (100, 390)),
        ("norm-l2", tickets.L2, (NEVER, NEVER)),
        ("too-few", tickets.FEW, (100, 900)),
    ],
)
def test_a_claim_can_fail_alone(claim, arm, times):
    assert [name for name, found in verdicts({arm: times}).items() if found != HOLDS] == [claim]


@pytest.mark.parametrize("dense, few", [((100, 290), HOLDS), ((100, NEVER), UNTESTABLE), ((NEVER, NEVER), UNTESTABLE)])
def test_nothing_is_said_of_the_controls_of_a_dense_network_without_a_delay(dense, few):
    found = verdicts({tickets.DENSE: dense})
    assert found["dense-late"] == FAILS and found["too-few"] == few
    assert {found[name] for name in ("random-no-better", "norm-l1", "norm-l2")} == {UNTESTABLE}


def test_no_ratio_is_a_median_over_the_seeds_that_happened_to_fit():
    found = pd.concat([rows(arm, times) for arm, times in TIMES.items()])
    found.loc[(found["seed"] == 0) & found["arm"].isin([tickets.RANDOM, tickets.L1, tickets.L2]), "exact"] = 0
    failed = {claim.id for claim in tickets.claims(found) if claim.verdict == FAILS}
    assert failed == {"random-no-better", "norm-l1", "norm-l2"}


def test_a_ticket_that_never_arrives_is_late_to_nothing():
    found = verdicts({tickets.TICKET: (100, NEVER), tickets.MEMORIZED: (100, NEVER)})
    assert (found["ticket-no-delay"], found["memorized-later"]) == (FAILS, FAILS)


def test_the_figure_has_a_point_for_every_network_of_every_arm():
    shares = [rows(tickets.SHARES, (100, 120), **{tickets.KEEP: keep}) for keep in (0.3, 0.5, 0.7)]
    found = pd.concat([*(rows(arm, times) for arm, times in TIMES.items()), *shares])
    assert list(tickets.networks(found)) == [*TIMES, *(f"ticket, keep {keep}" for keep in (0.3, 0.5, 0.7))]
    delays = tickets.figure(found).axes[2]
    points = {line.get_marker(): [] for line in delays.lines}
    for line in delays.lines:
        points[line.get_marker()] += list(np.ravel(line.get_ydata()))
    assert np.isfinite(points["o"]).all() and len(points["o"]) == 3 * (len(TIMES) - 2 + 3)
    np.testing.assert_array_equal(points["^"], [BUDGET / 100] * 3)  # seeds that never fitted have no point


def test_the_arms_are_of_one_dense_run():
    arms = tickets.arms(tickets.base("cpu", []))
    dense = arms[tickets.DENSE]
    for arm in arms.values():
        assert configs.digest(configs.dataclasses.replace(arm, start=dense.start, grid=())) == configs.digest(dense)
    assert dense.task.size == 2278 and dense.split.batch_size(dense.task, dense.batch_size) == 911


def test_the_network_is_the_product_of_its_matrices_around_one_relu():
    config = Config(task=Modular(p=5), model=EmbeddingMLP(dimensions=400, units=30))
    config.check()
    params = jax.jit(lambda: train.init(config, 3).params)()
    matrices = [np.asarray(params[k], np.float64) for k in ("embedding", "input", "output", "unembedding")]
    assert [m.shape for m in matrices] == [(5, 400), (400, 30), (30, 400), (400, 5)]
    for matrix in matrices:
        assert abs(matrix.std() * len(matrix) ** 0.5 - 1) < 4 / (2 * matrix.size) ** 0.5
    tokens = np.array([[0, 3], [3, 0], [2, 2]])
    batch = Batch(jnp.array(tokens)[..., None], *[jnp.zeros((3, 1), jnp.int32)] * 5)
    logits = jax.jit(lambda: train.forward(config, params, batch))()
    embedding, first, last, readout = matrices
    wanted = np.maximum(embedding[tokens].sum(1) @ first, 0) @ last @ readout
    np.testing.assert_allclose(logits[:, 0], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-6)


def test_the_network_refuses_what_is_no_row_of_numbers():
    layout = configs.registry.load("layout", "table")(equals=True)
    with pytest.raises(Refused, match="embedding_mlp adds the embeddings"):
        Config(model=EmbeddingMLP(), layout=layout).check()
