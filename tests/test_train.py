import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import LENGTH, TABLE, init, prepare, replace, train

from e2h import batches, parallel, rng
from e2h import train as training
from e2h.models.mlp import MLP
from e2h.optimizers.sgd import SGD
from e2h.splits import TRAIN
from e2h.splits.length import Length
from e2h.tasks.modular import Modular

CONFIGS = pytest.mark.parametrize("config", [TABLE, LENGTH], ids=["table", "length"])
seed_of = lambda tree, k: jax.tree.map(lambda a: a[k], tree)


@CONFIGS
@pytest.mark.parametrize("size", [1, 7])
def test_the_size_of_chunks_changes_no_bit(config, size):
    chunked, totals = train(config, *range(size, 20, size), 20)
    whole, (total,) = train(config, 20)
    chex.assert_trees_all_equal(chunked, whole, strict=True)
    summed = jax.tree.map(lambda *parts: sum(parts), *[t.score for t in totals])
    for name in ("problems", "exact", "reads", "right"):
        np.testing.assert_array_equal(getattr(summed, name), getattr(total.score, name))
    np.testing.assert_allclose(summed.loss, total.score.loss, rtol=1e-6)


def test_totals_count_every_problem_of_every_step():
    score = train(TABLE, 20)[1][0].score
    np.testing.assert_array_equal(score.problems, [20 * TABLE.batch_size] * 2)
    assert ((score.exact >= 0) & (score.exact <= score.problems)).all() and (score.reads == score.problems).all()


@CONFIGS
def test_a_seed_of_a_population_equals_the_seed_trained_alone(config):
    together, (total,) = train(config, 20)
    alone, (total_alone,) = train(replace(config, seeds=1, first_seed=1), 20)
    for name in ("params", "opt_state"):
        of_two, of_one = seed_of(getattr(together, name), 1), seed_of(getattr(alone, name), 0)
        chex.assert_trees_all_close(of_two, of_one, atol=1e-6, rtol=0)
    assert total.score.problems[1] == total_alone.score.problems[0]  # as many were drawn, so the lengths were the same


def test_seeds_differ():
    one, other = (seed_of(train(TABLE, 20)[0].params, k) for k in (0, 1))
    assert all((a != b).any() for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def test_seeds_of_a_population_meet_the_same_difficulties_and_other_problems():
    sizes, known = batches.capacities(LENGTH, TRAIN), LENGTH.split.difficulties(LENGTH.task, TRAIN)
    drawn = [int(training.shared_difficulty(LENGTH, jnp.int32(step), known, jnp.arange(4), 4)) for step in range(20)]
    assert set(drawn) == set(known)
    tokens = [batches.train_batch(LENGTH, (), seed, 3, jnp.arange(4), 6, sizes[-1]).tokens_BxLxC for seed in (0, 1)]
    assert (tokens[0] != tokens[1]).any()


@pytest.mark.parametrize("group", [2, 3])
def test_groups_of_seeds_equal_the_whole_population(group):
    config = replace(TABLE, seeds=4)  # 3 leaves a group of one
    whole, groups = train(config, 20)[0], train(replace(config, seeds_per_program=group), 20)[0]
    chex.assert_trees_all_close(whole, groups, atol=1e-6, rtol=0)


def test_problems_of_weight_0_do_not_matter(monkeypatch):
    make = batches.train_batch

    def spoilt(extra, *args):
        """The batch, and `extra` problems of weight 0 that would change everything."""
        more = jax.tree.map(lambda a: jnp.concatenate([a, a[-1:].repeat(extra, 0)]), make(*args))
        weight_BxR = more.weight_BxR.at[TABLE.batch_size :].set(0)
        tokens, target = (jnp.concatenate([a[: TABLE.batch_size], a[TABLE.batch_size :] * 0 + 1]) for a in more[::4])
        return more._replace(tokens_BxLxC=tokens, target_BxR=target, weight_BxR=weight_BxR)

    state = training.State(seed_of(init(TABLE).params, 0), seed_of(init(TABLE).opt_state, 0), jnp.int32(0))

    def stepped(extra):
        monkeypatch.setattr(batches, "train_batch", functools.partial(spoilt, extra))
        step = lambda state: training.step(TABLE, seed_of(prepare(TABLE), 0), 0, state, jnp.arange(5), 1, 1, None)
        return jax.jit(step)(state)

    (pure, total, _), (mixed, total_mixed, finite) = stepped(0), stepped(3)
    chex.assert_trees_all_close(pure, mixed, atol=1e-7, rtol=0)
    chex.assert_trees_all_close(total, total_mixed, rtol=1e-6)
    assert finite


def test_steps_equal_sgd_written_by_hand_in_float64():
    rate, momentum, decay, clip = 0.5, 0.9, 0.1, 0.2
    config = replace(
        TABLE,
        task=Modular(op="subtract", p=5),
        model=MLP(hidden=(4,)),
        optimizer=SGD(learning_rate=rate, momentum=momentum, weight_decay=decay, clip_norm=clip),
        seeds=1,
    )
    data, state = seed_of(prepare(config), 0), init(config)
    w1, w2 = (np.float64(state.params[name]["kernel"] if name != "input" else state.params[name])[0] for name in ("input", "Dense_0"))
    m1, m2 = np.zeros_like(w1), np.zeros_like(w2)
    clipped = 0
    for step in range(5):
        batch = batches.train_batch(config, data, 0, step, jnp.arange(5), 1, 1)
        x = np.eye(5)[np.asarray(batch.tokens_BxLxC[:, :, 0])].reshape(5, 10)
        pre = x @ w1
        h = np.maximum(pre, 0)
        z = h @ w2
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        dz = (p - np.eye(5)[np.asarray(batch.target_BxR[:, 0])]) / 5
        g2, g1 = h.T @ dz, x.T @ (dz @ w2.T * (pre > 0))
        norm = np.sqrt((g1**2).sum() + (g2**2).sum())
        clipped += norm > clip
        g1, g2 = (g * min(1, clip / norm) for g in (g1, g2))
        m1, m2 = momentum * m1 + g1, momentum * m2 + g2
        w1, w2 = w1 - rate * (m1 + decay * w1), w2 - rate * (m2 + decay * w2)
    params = seed_of(train(config, 5)[0].params, 0)
    assert clipped > 0
    np.testing.assert_allclose(params["input"], w1, atol=1e-6)
    np.testing.assert_allclose(params["Dense_0"]["kernel"], w2, atol=1e-6)


def test_broken_at_is_the_first_step_that_is_not_finite():
    config = replace(TABLE, optimizer=SGD(learning_rate=1e30))
    _, singles = train(config, *range(1, 7))
    _, (total,) = train(config, 6)
    first = np.stack([t.broken_at for t in singles]).min(0)
    assert (first < 6).all() and (first > 0).all()
    np.testing.assert_array_equal(total.broken_at, first)
    assert (train(TABLE, 20)[1][0].broken_at == training.NEVER).all()


def test_a_loss_that_is_not_finite_is_broken_at_its_own_step():
    state = init(TABLE)
    poisoned = state._replace(params=jax.tree.map(lambda a: a.at[1].set(jnp.inf), state.params))
    _, total = parallel.chunk(TABLE)(prepare(TABLE), parallel.seeds(TABLE), poisoned, 3)
    assert total.broken_at.tolist() == [training.NEVER, 0]


def test_lengths_to_128_are_one_program_of_no_more_shapes_than_buckets(monkeypatch, caplog):
    config = replace(LENGTH, split=Length(train_max=128, test_max=130), buckets=4, seeds=1, batch_size=2)
    shapes, forward = [], training.forward

    def counted(config, params, batch):
        shapes.append(batch.tokens_BxLxC.shape)
        return forward(config, params, batch)

    monkeypatch.setattr(training, "forward", counted)
    known = config.split.difficulties(config.task, TRAIN)
    assert known == tuple(range(1, 129))
    with jax.log_compiles():
        train(config, *range(1, 101))
    programs = [r for r in caplog.records if re.search(r"Finished XLA compilation of jit\(population\)", r.getMessage())]
    assert len(programs) == 1
    assert 1 < len(set(shapes)) <= config.buckets
    draw = lambda step: training.shared_difficulty(config, step, known, jnp.arange(2), 2)
    drawn = jax.vmap(draw)(jnp.arange(100))
    assert len(np.unique((np.asarray(drawn) - 1) // 32)) == 4  # every bucket was met


def test_configs_that_differ_in_bookkeeping_share_compiled_programs(monkeypatch):
    train(TABLE, 20)
    monkeypatch.setattr(training, "forward", None)  # a second trace would call it
    train(replace(TABLE, steps=999, record_every=2, evaluate_every=4, checkpoint_every=8, first_seed=7), 20)


@pytest.mark.parametrize("stops", [(), (20,)], ids=["fresh", "trained"])
@CONFIGS
def test_a_state_holds_no_keys_and_no_weak_types(config, stops):
    state, _ = train(config, *stops)
    assert state.step.dtype == jnp.int32 and state.step == sum(stops)
    for leaf in jax.tree.leaves(state):
        assert not leaf.weak_type and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def test_a_whole_run_uses_no_key_twice():
    config = replace(LENGTH, seeds=3)  # compiled for no other test
    with jax.debug_key_reuse(True):
        state, _ = train(config, 3)
        for part, capacity, difficulties in __import__("e2h.evaluate").evaluate.sweeps(config):
            parallel.sweep(config, part, capacity)((), parallel.seeds(config), state.params, difficulties)


def test_streams_are_named():
    assert (jax.random.key_data(rng.stream(0, "a")) != jax.random.key_data(rng.stream(0, "b"))).any()
