"""Tickets: which weights are kept, what they start from, and that nothing moves the others."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _tiny import TABLE, prepare, replace, seed_of

from e2h import parallel, registry, train
from e2h.checkpoint import Checkpoints
from e2h.config import Config, identity
from e2h.optimizers.adamw import AdamW
from e2h.registry import Refused
from e2h.run import run
from e2h.splits.fraction import Fraction
from e2h.starts.fresh import Fresh
from e2h.starts.ticket import Ticket, hold_zeros, largest, norm, shuffled

DENSE = replace(TABLE, optimizer=AdamW(learning_rate=0.01, weight_decay=1.0), batch_size=2**20)
STEPS = 7  # of the dense run
TICKETS = replace(DENSE, start=Ticket(steps=STEPS, keep=0.4))


def tree(seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return {"a": jnp.float32(draw((5, 7))), "b": {"w": jnp.float32(3 * draw((4, 3))), "bias": jnp.zeros(3)}}


def entries(params):
    """Of all matrices, one after the other; NumPy."""
    return np.concatenate([np.ravel(w) for w in jax.tree.leaves(params) if w.ndim >= 2])


@pytest.fixture(scope="module")
def fresh():
    return parallel.init(DENSE)


@pytest.fixture(scope="module")
def start():
    return parallel.init(TICKETS)


@pytest.fixture(scope="module")
def dense(fresh):
    """The dense run's parameters at the step that the ticket names, from the usual loop."""
    return parallel.chunk(DENSE)(prepare(DENSE), parallel.members(DENSE), fresh, STEPS)[0].params


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.4, 0.5, 1.0])
def test_the_kept_are_those_that_numpy_sorts_to_the_top_of_all_matrices(keep):
    params = tree()
    kept = largest(params, keep)
    count = round(keep * 47)
    wanted = np.zeros(47, bool)
    wanted[np.argsort(-np.abs(entries(params)), kind="stable")[:count]] = True
    np.testing.assert_array_equal(entries(kept), wanted)
    assert kept["b"]["bias"].all() and kept["a"].shape == (5, 7)
    chex.assert_trees_all_equal(jax.jit(largest)(params, jnp.float32(keep)), kept)


def test_of_equal_magnitudes_as_many_are_kept_as_were_asked_for():
    kept = largest({"a": jnp.array([[1.0, -1.0, 1.0], [0.5, -1.0, 2.0]])}, 0.5)
    np.testing.assert_array_equal(kept["a"], [[True, True, False], [False, False, True]])


def test_a_random_mask_keeps_as_many_of_each_matrix_elsewhere():
    kept = largest(tree(), 0.4)
    masks = [shuffled(kept, seed) for seed in range(5)]
    for mask in masks:
        chex.assert_trees_all_equal(jax.tree.map(jnp.sum, mask), jax.tree.map(jnp.sum, kept))
    assert len({entries(mask).tobytes() for mask in (kept, *masks)}) == 6


def test_what_is_kept_starts_as_the_dense_run_does_and_the_rest_at_zero(fresh, start, dense):
    for seed in range(2):
        kept = largest(seed_of(dense, seed), 0.4)
        wanted = jax.tree.map(lambda w, k: jnp.where(k, w, 0), seed_of(fresh.params, seed), kept)
        chex.assert_trees_all_equal(seed_of(start.params, seed), wanted)
        chex.assert_trees_all_equal(seed_of(start.opt_state.kept, seed), kept)
        assert np.count_nonzero(entries(wanted)) == round(0.4 * entries(wanted).size)
    assert (entries(seed_of(start.params, 0)) != 0).tolist() != (entries(seed_of(start.params, 1)) != 0).tolist()
    assert start.step == 0


def test_the_dense_run_moves_the_ranks(fresh, dense):
    """Else the tests above would not tell the step at which weights are ranked."""
    assert (entries(largest(seed_of(fresh.params, 0), 0.4)) != entries(largest(seed_of(dense, 0), 0.4))).any()


def test_pruned_weights_stay_exactly_zero_in_training_and_no_others(start):
    end, _ = parallel.chunk(TICKETS)(prepare(TICKETS), parallel.members(TICKETS), start, 20)
    np.testing.assert_array_equal(entries(end.params) == 0, entries(start.params) == 0)
    moved = entries(end.params) != entries(start.params)
    assert moved[entries(start.params) != 0].mean() > 0.9


@pytest.mark.parametrize("name", registry.names("optimizer"))
def test_no_optimizer_moves_what_is_held(name):
    known = registry.load("optimizer", name)
    decay = {"weight_decay": 0.1} if "weight_decay" in {f.name for f, _ in registry.fields(known)} else {}
    optimizer = hold_zeros(known(**decay).transformation(10))
    first, last = tree()["a"], tree()["b"]
    hidden = jnp.where(largest(first, 0.4), first, 0)  # of such a name Muon makes an orthogonal update
    params = {"embedding": jnp.ones((2, 2)), "Dense_0": {"kernel": hidden}, "Dense_1": last}

    @jax.jit
    def stepped(params, state, gradient):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    after, state = params, optimizer.init(params)
    for seed in (1, 2, 3):
        after, state = stepped(
            after, state, jax.tree.map(jnp.ones_like, params) if seed == 1 else tree_like(params, seed)
        )
    assert np.count_nonzero(hidden) == 14
    np.testing.assert_array_equal(after["Dense_0"]["kernel"] == 0, hidden == 0)
    assert (after["Dense_1"]["bias"] != 0).all()  # a bias that starts at 0 is no pruned weight


def tree_like(params, seed):
    draw = np.random.default_rng(seed).standard_normal
    return jax.tree.map(lambda w: jnp.float32(draw(w.shape)), params)


def test_a_kept_weight_that_comes_to_be_zero_may_leave_it():
    optimizer, w = hold_zeros(optax.sgd(1.0)), {"w": jnp.array([[1.0, 0.0]])}
    state = optimizer.init(w)
    for gradient, wanted in ((1.0, 0.0), (-2.0, 2.0)):
        updates, state = optimizer.update({"w": jnp.full((1, 2), gradient)}, state, w)
        w = optax.apply_updates(w, updates)
        np.testing.assert_array_equal(w["w"], [[wanted, 0.0]])


def test_the_gradient_of_pruned_weights_enters_no_norm():
    optimizer = hold_zeros(optax.clip_by_global_norm(1.0))
    state = optimizer.init({"w": jnp.array([[1.0, 0.0]])})
    updates, _ = optimizer.update({"w": jnp.array([[0.5, 100.0]])}, state)
    np.testing.assert_array_equal(updates["w"], [[0.5, 0.0]])


@pytest.mark.parametrize("control, power", [("l1", 1), ("l2", 2)])
def test_the_dense_control_has_the_norm_of_the_ticket(fresh, start, control, power):
    found = parallel.init(replace(TICKETS, start=Ticket(steps=STEPS, keep=0.4, control=control)))
    for seed in range(2):
        got, ticket, whole = (entries(seed_of(s.params, seed)).astype(np.float64) for s in (found, start, fresh))
        np.testing.assert_allclose((np.abs(got) ** power).sum(), (np.abs(ticket) ** power).sum(), rtol=2e-6)
        np.testing.assert_allclose(got / whole, got[0] / whole[0], rtol=1e-6)
    assert jax.tree.structure(found.opt_state) == jax.tree.structure(fresh.opt_state)  # nothing is held


def test_norms_are_of_all_matrices_together_and_of_no_vector():
    params = {"a": jnp.array([[3.0, 0.0]]), "b": jnp.array([[-4.0]]), "bias": jnp.full(3, 9.0)}
    assert (norm(params, 1), norm(params, 2)) == (7.0, 5.0)


def test_a_random_control_has_the_densities_of_the_ticket(start):
    found = parallel.init(replace(TICKETS, start=Ticket(steps=STEPS, keep=0.4, control="random")))
    count = lambda state: jax.tree.map(lambda w: (w != 0).sum((1, 2)), state.params)  # noqa: E731
    chex.assert_trees_all_equal(count(found), count(start))
    assert (entries(found.params) != entries(start.params)).any()
    np.testing.assert_array_equal(entries(found.opt_state.kept), entries(found.params) != 0)


def test_a_grid_of_shares_and_splits_equals_each_alone():
    grid = ("start.keep=0.2:0.4", "split.train_fraction=0.3:0.6")
    together = parallel.init(replace(TICKETS, grid=grid, seeds=1))
    for k, keep, fraction in ((0, 0.2, 0.3), (3, 0.4, 0.6)):
        one = replace(
            TICKETS, seeds=1, start=Ticket(steps=STEPS, keep=keep), split=Fraction(train_fraction=fraction)
        )  # fmt: skip
        chex.assert_trees_all_close(seed_of(together.params, k), seed_of(parallel.init(one).params, 0), atol=1e-7)


def test_a_run_that_is_continued_ends_as_one_that_was_not_and_draws_no_start_again(tmp_path, monkeypatch, start):
    drawn, init = [], parallel.init

    def noted(config):
        if isinstance(jnp.zeros(()), jax.core.Tracer):  # only its shapes are asked for
            return init(config)
        drawn.append(config)
        return start

    monkeypatch.setattr(parallel, "init", noted)
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run(TICKETS, straight, progress=False)
    run(replace(TICKETS, steps=10), stopped, progress=False)
    assert len(drawn) == 2
    run(TICKETS, stopped, progress=False)
    assert len(drawn) == 2
    ends = []
    for directory in (straight, stopped):
        with Checkpoints(directory / "checkpoints") as checkpoints:
            ends.append(checkpoints.restore(start)[0])
    chex.assert_trees_all_equal(*ends, strict=True)
    assert ends[0].step == 20 and not entries(ends[0].opt_state.kept).all()


def test_the_usual_start_leaves_parameters_optimizer_and_digest_as_they_were():
    assert "start" not in identity(Config()) and "start" in identity(replace(Config(), start=Ticket()))
    optimizer = optax.sgd(1.0)
    assert Fresh().hold(optimizer) is optimizer and Ticket(control="l2").hold(optimizer) is optimizer
    assert Fresh()(0, "drawn", None) == "drawn"


def test_a_gradient_rule_that_looks_elsewhere_is_refused_where_weights_are_held():
    for name in set(registry.names("gradient")) - {"plain"}:
        config = replace(TICKETS, gradient=registry.load("gradient", name)())
        with pytest.raises(Refused, match=f"--gradient={name}"):
            config.start.check(config)
        dataclasses.replace(config.start, control="l1").check(config)


def test_init_alone_takes_the_splits_own_data(start):
    alone = jax.jit(lambda: train.init(TICKETS, 1).params)()
    chex.assert_trees_all_equal(alone, seed_of(start.params, 1))
