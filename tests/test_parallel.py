import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _tiny import LENGTH, TABLE, init, prepare, replace, seed_of, trained

from e2h import batches, evaluate, parallel, run
from e2h.gradients.winsorized import Winsorized
from e2h.registry import Refused

MAPPINGS = pytest.mark.parametrize("mapping", ["pmap", "shard_map"])
CONFIGS = pytest.mark.parametrize("config", [TABLE, LENGTH], ids=["table", "length"])


@MAPPINGS
@CONFIGS
def test_devices_that_share_the_seeds_train_as_one_does(config, mapping):
    config = replace(config, seeds=8)
    alone, (total,) = trained(config, 20)
    shared, (total_shared,) = trained(replace(config, mapping=mapping, devices=8), 20)
    chex.assert_trees_all_close(alone, shared, atol=1e-6, rtol=0)
    chex.assert_trees_all_close(total, total_shared, rtol=1e-5)


@MAPPINGS
@pytest.mark.parametrize(
    "config, devices", [(TABLE, 5), (TABLE, 2), (LENGTH, 3)], ids=["table-even", "table-uneven", "length-uneven"]
)
def test_devices_that_share_the_batch_train_as_one_does(config, devices, mapping):
    alone, (total,) = trained(config, 20)
    sharing = replace(config, mapping=mapping, shard="batch", devices=devices)
    shared, (total_shared,) = trained(sharing, 20)
    chex.assert_trees_all_close(alone, shared, atol=1e-5, rtol=0)
    chex.assert_trees_all_close(total, total_shared, rtol=1e-5)  # counts no row twice, and none too many


@MAPPINGS
@pytest.mark.parametrize("devices", [5, 2], ids=["even", "uneven"])
def test_devices_that_share_the_batch_clip_the_gradients_of_all_its_problems(devices, mapping):
    config = replace(TABLE, gradient=Winsorized(share=0.2))
    alone, _ = trained(config, 20)
    plain, _ = trained(TABLE, 20)
    shared, _ = trained(replace(config, mapping=mapping, shard="batch", devices=devices), 20)
    chex.assert_trees_all_close(alone, shared, atol=1e-5, rtol=0)
    assert max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (alone, plain)), strict=True)) > 0.01


@CONFIGS
@pytest.mark.parametrize("devices, batch_devices", [(8, 2), (6, 3)], ids=["4x2", "2x3"])
def test_devices_that_share_seeds_and_batch_train_as_one_does(config, devices, batch_devices):
    config = replace(config, seeds=4)
    alone, (total,) = trained(config, 20)
    sharing = replace(config, mapping="shard_map", shard="both", devices=devices, batch_devices=batch_devices)
    shared, (total_shared,) = trained(sharing, 20)
    chex.assert_trees_all_close(alone, shared, atol=1e-5, rtol=0)
    chex.assert_trees_all_close(total, total_shared, rtol=1e-5)


@CONFIGS
def test_the_rows_of_a_device_are_those_rows_of_the_whole_batch(config):
    data, size = seed_of(prepare(config), 1), batches.size(config)
    rows = jax.jit(lambda row_B: batches.train_batch(config, data, 1, 7, row_B, 5, 6))
    whole = rows(jnp.arange(size))
    for first in range(0, size, 3):
        own, inside = rows(first + jnp.arange(3)), min(3, size - first)
        for found, wanted in zip(jax.tree.leaves(own), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(found[:inside], wanted[first : first + inside])
        assert (own[1].weight_BxR[inside:] == 0).all()


@MAPPINGS
def test_devices_that_share_the_seeds_score_as_one_does(mapping):
    config = replace(TABLE, seeds=8, measures=("weight_norm", "zero_loss"))
    several = replace(config, mapping=mapping, devices=4)
    data, seeds, params = prepare(config), parallel.members(config), init(config).params
    part, capacity, difficulties = evaluate.sweeps(config)[0]
    scored, measured = [], []
    for c in (config, several):
        scored.append(jax.device_get(parallel.sweep(c, part, capacity)(data, seeds, params, difficulties)))
        measured.append(jax.device_get(parallel.measure(c)(data, seeds, params, 0)))
    assert scored[0].score.exact.shape == (8, 1)
    chex.assert_trees_all_close(*scored, rtol=1e-6)
    chex.assert_trees_all_close(*measured, rtol=1e-6)


def test_more_devices_than_there_are_is_refused_and_leaves_nothing(tmp_path):
    config = replace(TABLE, seeds=9, devices=9, mapping="pmap")
    with pytest.raises(Refused, match="--devices=9, but there are 8 of cpu"):
        run.run(config, tmp_path / "run", progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (dict(devices=2), "needs --mapping=pmap or --mapping=shard_map"),
        (dict(devices=2, mapping="pmap", seeds=3), "3 members do not divide among --devices=2"),
        (dict(devices=4, mapping="shard_map", shard="both", seeds=3), "among --devices=4, 2 to a member"),
        (dict(devices=5, mapping="shard_map", shard="both"), "--devices=5 to be a multiple of --batch_devices=2"),
        (dict(devices=4, mapping="pmap", shard="both"), "--shard=both needs --mapping=shard_map"),
    ],
)
def test_devices_that_cannot_share_are_refused(settings, sentence):
    with pytest.raises(Refused, match=sentence):
        replace(TABLE, **settings).check()


def test_a_population_comes_back_on_every_seed_in_order():
    config = replace(TABLE, seeds=8, mapping="pmap", devices=4)
    double = parallel.spread(lambda own, shared: own * 2 + shared, config)
    np.testing.assert_array_equal(double(jnp.arange(8), jnp.int32(1)), 2 * np.arange(8) + 1)
