import copy
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _tiny import LENGTH, TABLE, init, prepare, replace, seed_of, trained

from e2h import batches, evaluate, parallel, train
from e2h.gradients.winsorized import Winsorized
from e2h.models.mlp import MLP
from e2h.optimizers.sgd import SGD
from e2h.splits import TRAIN
from e2h.splits.length import Length
from e2h.tasks.modular import Modular

CONFIGS = pytest.mark.parametrize("config", [TABLE, LENGTH], ids=["table", "length"])


def lengths_drawn(config, steps):
    """The lengths of the first steps; no seed enters."""
    return np.asarray(
        jax.jit(jax.vmap(lambda step: batches.difficulty(config, step, jnp.arange(2))))(jnp.arange(steps))
    )


@CONFIGS
@pytest.mark.parametrize("size", [1, 7])
def test_the_size_of_chunks_changes_no_bit(config, size):
    chunked, totals = trained(config, *range(size, 20, size), 20)
    whole, (total,) = trained(config, 20)
    chex.assert_trees_all_equal(chunked, whole, strict=True)
    summed = jax.tree.map(lambda *parts: sum(parts), *[t.score for t in totals])
    chex.assert_trees_all_equal(summed[:4], total.score[:4])  # counts
    np.testing.assert_allclose(summed.loss, total.score.loss, rtol=1e-6)


def test_totals_count_every_problem_of_every_step():
    score = trained(TABLE, 20)[1][0].score
    np.testing.assert_array_equal(score.problems, [20 * TABLE.batch_size] * 2)
    np.testing.assert_array_equal(score.reads, score.problems)
    assert ((0 < score.exact) & (score.exact <= score.problems) & (score.exact == score.right)).all()


@CONFIGS
def test_a_seed_of_a_population_equals_the_seed_trained_alone(config):
    alone_config = replace(config, seeds=1, first_seed=1)
    together, (total,) = trained(config, 20)
    alone, (total_alone,) = trained(alone_config, 20)
    chex.assert_trees_all_close(seed_of(together[:2], 1), seed_of(alone[:2], 0), atol=1e-6, rtol=0)
    assert total.score.problems[1] == total_alone.score.problems[0]  # as many were drawn: the lengths were the same


def test_a_seed_starts_as_it_does_alone():
    alone = replace(TABLE, seeds=1, first_seed=1)
    chex.assert_trees_all_equal(seed_of(parallel.init(TABLE)[:2], 1), seed_of(parallel.init(alone)[:2], 0))
    chex.assert_trees_all_equal(seed_of(prepare(TABLE), 1), seed_of(prepare(alone), 0))


def test_seeds_share_their_lengths_and_nothing_else():
    assert set(lengths_drawn(LENGTH, 20)) == set(LENGTH.split.difficulties(LENGTH.task, TRAIN))
    draw = jax.vmap(lambda seed: batches.train_batch(LENGTH, (), seed, 3, jnp.arange(4), 6, 6)[1].tokens_BxLxC)
    tokens = jax.jit(draw)(jnp.arange(2))
    assert (tokens[0] != tokens[1]).any()
    for leaf in jax.tree.leaves(trained(TABLE, 20)[0].params):
        assert (leaf[0] != leaf[1]).any()


@pytest.mark.parametrize("seeds, group", [(2, 1), (3, 2)], ids=["even", "uneven"])
def test_groups_of_seeds_equal_the_whole_population(seeds, group):
    groups = trained(replace(TABLE, seeds=seeds, seeds_per_program=group), 20)[0]
    for first in range(seeds - 1):
        whole = trained(replace(TABLE, first_seed=first, seeds_per_program=2), 20)[0]
        of_groups = jax.tree.map(lambda a, f=first: a[f : f + 2], groups[:2])
        chex.assert_trees_all_close(whole[:2], of_groups, atol=1e-6, rtol=0)


def test_problems_of_weight_0_do_not_matter():
    state = train.State(*seed_of(init(TABLE)[:2], 0), jnp.int32(0))
    data, rows = seed_of(prepare(TABLE), 0), jnp.arange(TABLE.batch_size)

    @functools.partial(jax.jit, static_argnums=0)
    def stepped(extra):
        """A step on a batch and `extra` problems of weight 0, all alike, which would pull hard."""
        _, batch = batches.train_batch(TABLE, data, 0, 0, rows, 1, 1)
        more = jax.tree.map(lambda a: jnp.concatenate([a, jnp.ones((extra, *a.shape[1:]), a.dtype)]), batch)
        more = more._replace(weight_BxR=more.weight_BxR.at[TABLE.batch_size :].set(0))
        return train.step(TABLE, state, more)

    chex.assert_trees_all_close(stepped(0), stepped(20), atol=1e-6, rtol=0)


def test_steps_equal_sgd_written_by_hand_in_float64():
    rate, momentum, decay, clip, rows, p = 0.5, 0.9, 0.1, 0.2, 5, 5
    sgd = SGD(learning_rate=rate, momentum=momentum, weight_decay=decay, clip_norm=clip)
    config = replace(TABLE, task=Modular(op="subtract", p=p), model=MLP(hidden=(4,)), optimizer=sgd, seeds=1)
    data, params = seed_of(prepare(config), 0), seed_of(init(config).params, 0)
    draw = jax.vmap(lambda step: batches.train_batch(config, data, 0, step, jnp.arange(rows), 1, 1)[1])
    batch = jax.jit(draw)(jnp.arange(5))
    w1, w2 = np.float64(params["input"]), np.float64(params["Dense_0"]["kernel"])
    m1, m2, norms = 0, 0, []
    for tokens, target in zip(batch.tokens_BxLxC, batch.target_BxR, strict=True):
        x_BxI = np.eye(p)[np.asarray(tokens)[:, :, 0]].reshape(rows, 2 * p)
        before_BxD = x_BxI @ w1
        h_BxD = np.maximum(before_BxD, 0)
        exp_BxV = np.exp(h_BxD @ w2)
        dz_BxV = (exp_BxV / exp_BxV.sum(1, keepdims=True) - np.eye(p)[np.asarray(target)[:, 0]]) / rows
        g1, g2 = x_BxI.T @ (dz_BxV @ w2.T * (before_BxD > 0)), h_BxD.T @ dz_BxV
        norms.append(np.sqrt((g1**2).sum() + (g2**2).sum()))
        m1, m2 = (momentum * m + g * min(1, clip / norms[-1]) for m, g in ((m1, g1), (m2, g2)))
        w1, w2 = w1 - rate * (m1 + decay * w1), w2 - rate * (m2 + decay * w2)
    assert max(norms) > clip
    found = seed_of(trained(config, 5)[0].params, 0)
    np.testing.assert_allclose(found["input"], w1, atol=1e-6)
    np.testing.assert_allclose(found["Dense_0"]["kernel"], w2, atol=1e-6)


def test_broken_at_is_the_first_step_that_leaves_something_not_finite():
    config = replace(TABLE, optimizer=SGD(learning_rate=1e8))
    overflows = []  # of the loss or the norm of the parameters, after each step
    for stop in range(1, 7):
        state, totals = trained(config, *range(1, stop + 1))
        squares = sum(np.square(np.float64(w)).sum((1, 2)) for w in jax.tree.leaves(state.params))
        overflows.append(~np.isfinite(totals[-1].score.loss) | ~(squares < np.finfo(np.float32).max))
    first = np.argmax(overflows, 0)
    assert (first > 0).all() and np.any(overflows, 0).all()
    np.testing.assert_array_equal(trained(config, 6)[1][0].broken_at, first)
    assert (totals[0].broken_at == train.NEVER).all()


def test_one_broken_seed_breaks_no_other():
    state = init(TABLE)
    poisoned = state._replace(params=jax.tree.map(lambda a: a.at[1].set(jnp.inf), state.params))
    _, total = parallel.chunk(TABLE)(prepare(TABLE), parallel.members(TABLE), poisoned, 3)
    assert total.broken_at.tolist() == [train.NEVER, 0]


def test_100_chunks_over_128_lengths_are_one_program_of_no_more_shapes_than_buckets(monkeypatch, caplog):
    config = replace(LENGTH, split=Length(train_max=128, test_max=130), buckets=4, seeds=1, batch_size=2)
    shapes, forward = [], train.forward

    def counted(config, params, batch):
        shapes.append(batch.tokens_BxLxC.shape)
        return forward(config, params, batch)

    monkeypatch.setattr(train, "forward", counted)
    init(config)
    with jax.log_compiles():
        trained(config, *range(1, 101))
    compiled = [r for r in caplog.records if re.search(r"Compiling jit\(population\)", r.getMessage())]
    assert len(compiled) == 1
    assert len(set(shapes)) == config.buckets
    lengths = lengths_drawn(config, 100)
    assert 60 < len(set(lengths)) and set((lengths - 1) // 32) == {0, 1, 2, 3}


def test_configs_that_differ_in_bookkeeping_share_compiled_programs(monkeypatch):
    trained(TABLE, 20)
    monkeypatch.setattr(train, "forward", None)  # what tracing would call
    trained(replace(TABLE, steps=999, record_every=2, evaluate_every=4, checkpoint_every=8, first_seed=1), 20)


@pytest.mark.parametrize(
    "make",
    [
        lambda config: jax.eval_shape(lambda: train.init(config, 0)),
        lambda config: jax.eval_shape(lambda: parallel.init(config)),
        lambda config: trained(config, 20)[0],
    ],
    ids=["fresh", "population", "trained"],
)
@CONFIGS
def test_a_state_holds_no_keys_and_no_weak_types(config, make):
    state = make(config)
    assert state.step.dtype == jnp.int32 and state.step.shape == ()
    for leaf in jax.tree.leaves(state):
        assert not leaf.weak_type and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def test_the_step_counts_updates():
    assert trained(TABLE, 7, 20)[0].step == 20


@CONFIGS
def test_a_whole_run_uses_no_key_twice(config):
    config = replace(config, seeds=1, buckets=1, batch_size=3)  # in no other test, so that it is traced here
    with jax.debug_key_reuse(True):
        state, data, seeds = parallel.init(config), parallel.prepare(config), parallel.members(config)
        state, _ = parallel.chunk(config)(data, seeds, state, 3)
        for part, capacity, difficulties in evaluate.sweeps(config):
            parallel.sweep(config, part, capacity)(data, seeds, state.params, difficulties)


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 0, 7, 10**20], ids="groups_of_{}".format)
def test_a_rule_of_groups_takes_the_same_step_where_it_cuts_nothing(groups):
    """Also when the groups are not full, and when there are more groups than problems."""
    plain = trained(replace(TABLE, seeds=1), 10)
    grouped = trained(replace(TABLE, seeds=1, gradient=Winsorized(share=0.0, groups=groups)), 10)
    chex.assert_trees_all_close(plain, grouped, atol=1e-6, rtol=1e-6)


def test_gradients_of_groups_are_those_of_the_problems_alone():
    state = train.State(*seed_of(init(TABLE)[:2], 0), jnp.int32(0))
    data = seed_of(prepare(TABLE), 0)
    seen = []

    class Spy:
        def __call__(self, gradient_at, params):
            total, reads_G, gradient = gradient_at.of_groups(params, 0)
            seen.append((total, reads_G, gradient))
            return gradient_at(params)

    config = copy.copy(TABLE)
    object.__setattr__(config, "gradient", Spy())

    @jax.jit
    def both():
        _, batch = batches.train_batch(TABLE, data, 0, 0, jnp.arange(5), 1, 1)
        batch = batch._replace(weight_BxR=batch.weight_BxR.at[3].set(0))
        train.step(config, state, batch)
        one = lambda params, i: TABLE.loss(  # noqa: E731
            train.forward(TABLE, params, jax.tree.map(lambda a: a[i][None], batch)),
            batch.target_BxR[i][None], batch.weight_BxR[i][None],
        )[0]  # fmt: skip
        return seen.pop(), [jax.grad(one)(state.params, i) for i in range(5)]

    (total, reads_G, gradient), alone = both()
    assert reads_G.tolist() == [1, 1, 1, 0, 1] and int(total.problems) == 4
    for i in range(5):
        chex.assert_trees_all_close(seed_of(gradient, i), alone[i], atol=1e-7, rtol=1e-5)
