"""What the effective theory says of embeddings and training sets, and the network it speaks of."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from e2h import rng, train
from e2h.config import Config
from e2h.layouts import Batch
from e2h.losses.code_distance import CodeDistance
from e2h.models.embedding_sum import EmbeddingSum
from e2h.tasks.unordered_sum import UnorderedSum
from experiments import effective_theory as theory

ALL = list(itertools.combinations_with_replacement(range(10), 2))


def test_parallelograms_are_the_pairs_of_problems_with_one_sum():
    counts = np.bincount([i + j for i, j in ALL])
    assert len(theory.parallelograms(10)) == sum(c * (c - 1) // 2 for c in counts)


@pytest.mark.parametrize("line", [np.arange(10.0), 3 - 0.1 * np.arange(10)])
def test_on_a_line_every_parallelogram_holds_whatever_its_scale(line):
    assert len(theory.holding(line[:, None])) == len(theory.parallelograms(10))
    bent = line.copy()
    bent[9] += line[1] - line[0]
    assert len(theory.holding(bent[:, None])) < len(theory.parallelograms(10))


def test_the_line_is_unique_exactly_if_the_third_eigenvalue_is_above_zero():
    assert theory.third_eigenvalue(10, set(ALL)) > 1e-3
    assert theory.third_eigenvalue(10, set()) == 0
    without_nine = {pair for pair in ALL if 9 not in pair}  # then E_9 may be anywhere
    assert theory.third_eigenvalue(10, without_nine) < 1e-9


def test_predicted_are_the_trained_and_what_a_parallelogram_joins_to_them():
    held = theory.holding(np.arange(10.0)[:, None])
    assert theory.predicted(10, {(0, 2)}, held) == 2 / 55  # and 1 + 1
    assert theory.predicted(10, {(0, 2)}, []) == 1 / 55
    assert theory.predicted(10, set(ALL), []) == 1


@pytest.mark.parametrize(
    "train_at, test_at, name",
    [(100, 600, "comprehension"), (100, 1200, "grokking"), (100, None, "memorization"), (None, None, "confusion")],
)
def test_phases_are_named_by_when_both_accuracies_arrive(train_at, test_at, name):
    steps = range(0, 2000, 100)
    rows = pd.DataFrame(
        dict(seed=0, step=step, split=part, problems=10, exact=10 if at is not None and step >= at else 0)
        for part, at in (("train", train_at), ("test", test_at))
        for step in steps
    )
    assert theory.phase(rows) == name


def test_the_network_is_a_tanh_decoder_of_the_sum_judged_by_the_distance_to_the_codes():
    config = Config(
        task=UnorderedSum(p=4), model=EmbeddingSum(dimensions=2, hidden=(5, 2), code=3), loss=CodeDistance()
    )
    config.check()
    params = jax.jit(lambda: train.init(config, 3).params)()
    tokens = np.array([[0, 3], [2, 2]])
    batch = Batch(jnp.array(tokens)[..., None], *[jnp.zeros((2, 1), jnp.int32)] * 5)
    logits = jax.jit(lambda: train.forward(config, params, batch))()
    x = np.asarray(params["embedding"], np.float64)[tokens].sum(1)
    for layer in range(3):
        w = params[f"Dense_{layer}"]
        x = (np.tanh(x) if layer else x) @ np.asarray(w["kernel"], np.float64) + np.asarray(w["bias"], np.float64)
    codes = np.asarray(jax.random.normal(rng.stream(rng.POPULATION, "codes"), (7, 3)), np.float64)
    np.testing.assert_allclose(logits[:, 0], -np.square(x[:, None] - codes).mean(-1), rtol=1e-4, atol=1e-6)


def test_the_map_is_of_the_first_split_whose_every_test_sum_is_trained():
    config = theory.arms(theory.base("cpu", []))[theory.PHASES]
    sums, n = config.task.table().answer_A[:, 0], config.split.blocks(config.task, "train", 1)
    prepare = jax.jit(lambda seed: config.split.prepare(config.task, seed)["row_N"])

    def answerable(seed):
        row_N = np.asarray(prepare(seed))
        return set(sums[row_N[n:]]) <= set(sums[row_N[:n]])

    assert [answerable(seed) for seed in range(theory.ANSWERABLE + 1)] == [False] * theory.ANSWERABLE + [True]
    assert config.seed_range == range(theory.ANSWERABLE, theory.ANSWERABLE + 1)


def test_the_map_names_every_network_of_its_own_seed():
    cells = [(0.0, 1e-3), (0.0, 1e-2), (5.0, 1e-3), (5.0, 1e-2)]
    rows = pd.DataFrame(
        {"arm": theory.PHASES, "seed": 1, "step": 0, "split": part, "problems": 10, "exact": 10} | cell
        for decay, rate in cells
        for part in ("train", "test")
        for cell in [{theory.DECAY: decay, theory.RATE: rate}]
    )
    splits = rows.assign(arm=theory.SPLITS, seed=0)
    assert (theory.phases(pd.concat([rows, splits])).to_numpy() == "comprehension").all()
    assert theory.phases(pd.concat([rows, splits])).shape == (2, 2)
