"""Inductive-bias complexity: the published data sets' constants, and clouds whose dimension is known."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import quick_jit

from e2h import batches
from e2h.config import Config
from e2h.layouts.table import Table
from e2h.measures import Reading
from e2h.measures.inductive_bias import InductiveBias, intrinsic_dimension, log10_bits
from e2h.tasks.digits import Digits
from e2h.tasks.modular import Modular

SETS = {  # the constants of the authors' script -> bits
    "MNIST": (dict(count=60_000, radius=17.1790, dimension=14, margin=2.3987, classes=10, error=0.001), 1.48e16),
    "SVHN": (dict(count=73_257, radius=53.8693, dimension=19, margin=1.5767, classes=10, error=0.01), 1.21e31),
    "CIFAR-10": (dict(count=50_000, radius=54.9157, dimension=27, margin=2.7506, classes=10, error=0.01), 3.44e32),
    "ImageNet": (dict(count=1_280_901, radius=943.5923, dimension=48, margin=65, classes=1000, error=0.1), 3.58e41),
}


def traced(numbers):
    static = {k: numbers[k] for k in ("classes", "error")}
    moving = {k: jnp.float32(v) for k, v in numbers.items() if k not in static}
    return float(quick_jit(lambda moving: log10_bits(**moving, **static))(moving))


def in_floats(count, radius, dimension, margin, classes, error):
    """The formula as it is printed, in plain Python floats."""
    m, d, n = dimension, classes - 1, count
    K = (math.sqrt((m - 1) ** 2 + 4 * (2 * math.pi * radius / margin) ** 2) - (m - 1)) / 2
    choose = lambda a, b: math.exp(math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(a - b + 1))  # noqa: E731
    free = 2 * d * classes * (choose(m + K, m) + choose(m + K - 1, m)) - n * d
    W = math.sqrt(m / 6) * (2 * math.pi ** ((m + 1) / 2) * classes / math.gamma((m + 1) / 2) / n) ** (1 / m) * radius
    terms = (0.5 * math.log2(d), 0.5 * math.log2(classes), -math.log2(error), math.log2(K * math.sqrt(d) / radius))
    return free * (sum(terms) + math.log2(W))


@pytest.mark.parametrize("name", SETS)
def test_the_published_data_sets_have_the_published_orders_of_magnitude(name):
    numbers, bits = SETS[name]
    assert in_floats(**numbers) == pytest.approx(bits, rel=0.01)
    assert traced(numbers) == pytest.approx(math.log10(bits), abs=0.005)


def test_it_grows_with_the_dimension_and_hardly_with_the_number_of_problems():
    numbers = SETS["MNIST"][0]
    found = [traced(numbers | {"dimension": m}) for m in (4, 8, 12, 16)]
    assert found == sorted(found) and found[-1] - found[0] > 8
    more = [traced(numbers | {"count": n}) for n in (1e4, 1e5, 1e6)]
    assert max(more) - min(more) < 0.2


def test_a_training_set_that_decides_everything_leaves_no_value():
    small = dict(radius=1.0, dimension=1.0, margin=2.0, classes=2, error=0.1)
    assert math.isfinite(traced(small | {"count": 3.0})) and not math.isfinite(traced(small | {"count": 1e4}))


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_dimension_of_a_cloud_in_more_dimensions(m):
    draw = np.random.default_rng(m)
    turned_MxD = np.linalg.qr(draw.normal(size=(20, 20)))[0][:m]
    point_NxD = draw.normal(size=(800, m)) @ turned_MxD
    distance_NxN = np.linalg.norm(point_NxD[:, None] - point_NxD[None], axis=-1)
    np.fill_diagonal(distance_NxN, np.inf)
    found = intrinsic_dimension(jnp.asarray(distance_NxN, jnp.float32), jnp.ones(800, bool), 10)
    assert found == pytest.approx(m, rel=0.15)
    # What is padding stands in no pair.
    padded = np.full((900, 900), np.inf)
    padded[:800, :800] = distance_NxN
    again = intrinsic_dimension(jnp.asarray(padded, jnp.float32), jnp.arange(900) < 800, 10)
    assert again == pytest.approx(float(found), rel=1e-5)


def measured(config, rows):
    @quick_jit
    def read(seed):
        data = config.split.prepare(config.task, seed)
        difficulty, capacity = (
            config.split.difficulties(config.task, "train")[-1],
            batches.capacities(config, "train")[-1],
        )
        _, batch = batches.train_batch(config, data, seed, 0, jnp.arange(rows), difficulty, capacity)
        return batch, InductiveBias()(Reading(None, batch, None, None), config)

    batch, (total, count) = jax.device_get(read(0))
    return batch, float(total), float(count)


def test_of_a_task_it_is_that_of_its_points():
    config = Config(task=Digits(), layout=Table(), batch_size=300)
    batch, total, count = measured(config, 300)
    point_NxP = batch.tokens_BxLxC[:, :, 0].astype(np.float64) / 16
    distance_NxN = np.linalg.norm(point_NxP[:, None] - point_NxP[None], axis=-1)
    other = batch.target_BxR != batch.target_BxR.T
    np.fill_diagonal(distance_NxN, np.inf)
    T_NxK = np.sort(distance_NxN, axis=1)[:, :5]
    numbers = dict(
        count=300,
        radius=np.linalg.norm(point_NxP - point_NxP.mean(0), axis=1).max(),
        dimension=1 / np.log(T_NxK[:, -1:] / T_NxK[:, :-1]).mean(),
        margin=distance_NxN[other].min(),
        classes=10,
        error=0.01,
    )
    assert count == 1 and total == pytest.approx(math.log10(in_floats(**numbers)), rel=1e-3)


def test_residues_have_a_value():
    assert measured(Config(task=Modular(p=7), batch_size=20), 20)[2] == 1


def test_corners_of_a_cube_have_no_dimension():
    corner_NxD = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T
    distance_NxN = np.sqrt((corner_NxD[:, None] != corner_NxD[None]).sum(-1))
    np.fill_diagonal(distance_NxN, np.inf)
    assert jnp.isinf(intrinsic_dimension(jnp.asarray(distance_NxN, jnp.float32), jnp.ones(64, bool), 5))


@pytest.mark.parametrize("problems", [1, 2])
def test_so_few_problems_have_no_dimension(problems):
    distance_NxN = jnp.where(jnp.eye(problems, dtype=bool), jnp.inf, 1.0)
    assert not math.isfinite(intrinsic_dimension(distance_NxN, jnp.ones(problems, bool), 5))
