"""Sharpness and coherence: Hessians and gradients whose numbers are known, through every loss."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import quick_jit
from _tiny import TABLE

from e2h import batches, evaluate, registry, train
from e2h.losses.cross_entropy import CrossEntropy
from e2h.measures import Reading
from e2h.measures.gradient_coherence import GradientCoherence, coherence
from e2h.measures.sam_sharpness import SAMSharpness
from e2h.measures.sharpness import Sharpness, largest_eigenvalue
from e2h.models.mlp import MLP

SMOOTH = dataclasses.replace(TABLE, model=MLP(hidden=(4,), activation="tanh"), batch_size=12)


def value(measure, params, mean_loss):
    total, count = quick_jit(lambda params: measure(Reading(params, None, None, None, mean_loss), SMOOTH))(params)
    assert float(count) == 1
    return float(total)


def quadratic(eigenvalues, seed=0):
    """(parameters, 1/2 w H w, H) with H of these eigenvalues in a random basis, w in two arrays."""
    n, draw = len(eigenvalues), np.random.default_rng(seed)
    q_NxN = np.linalg.qr(draw.normal(size=(n, n)))[0]
    h_NxN = q_NxN @ np.diag(eigenvalues) @ q_NxN.T
    w_N = jnp.asarray(draw.normal(size=n), jnp.float32)

    def loss(params):
        w_N = jnp.concatenate([params["a"], params["b"].ravel()])
        return w_N @ jnp.asarray(h_NxN, jnp.float32) @ w_N / 2

    return {"a": w_N[: n - 2], "b": w_N[n - 2 :, None]}, loss, h_NxN


@pytest.mark.parametrize(
    "eigenvalues",
    [
        np.linspace(-3, 1.7, 50),  # the largest, not that of largest size
        np.repeat([-1.0, -2.0, -7.0], 20),  # all negative: a basis that is whole after three steps adds no zero
        np.r_[5.0, np.zeros(60)],
        [2.0, 2.0, 2.0],
        np.r_[1e-24, 1e-25 * np.arange(4)],
    ],
    ids=["indefinite", "negative", "rank_one", "multiple", "tiny"],
)
def test_sharpness_of_a_quadratic_is_the_largest_eigenvalue(eigenvalues):
    params, loss, h_NxN = quadratic(eigenvalues)
    expected = np.linalg.eigvalsh(h_NxN)[-1]
    assert value(Sharpness(), params, loss) == pytest.approx(expected, rel=1e-4)


def test_few_steps_give_a_value_from_below_that_rises():
    _, _, h_NxN = quadratic(np.linspace(0, 1, 80))
    product = lambda v_P: jnp.asarray(h_NxN, jnp.float32) @ v_P  # noqa: E731
    found = [float(quick_jit(largest_eigenvalue, static_argnums=(0, 1, 2))(product, 80, n)) for n in (2, 5, 20)]
    assert found == sorted(found) and found[0] < 0.9 < 0.99 < found[-1] <= 1 + 1e-6


def softmax_regression(dtype="float32", margin=0.0):
    """(parameters, mean loss, NumPy Hessian) of a linear classifier; a margin is added to the right logit."""
    draw = np.random.default_rng(1)
    x_NxI, w_IxV, target_N = draw.normal(size=(6, 5)), draw.normal(size=(5, 3)), draw.integers(0, 3, 6)
    lift_NxV = margin * np.eye(3)[target_N]

    def loss(params):
        z_NxV = jnp.asarray(x_NxI, jnp.float32) @ params + jnp.asarray(lift_NxV, jnp.float32)
        return CrossEntropy(dtype).per_read(z_NxV, jnp.asarray(target_N)).mean()

    e_NxV = np.exp(x_NxI @ w_IxV + lift_NxV)
    p_NxV = e_NxV / e_NxV.sum(1, keepdims=True)
    inner_NxVxV = [np.diag(p) - np.outer(p, p) for p in p_NxV]
    hessian = np.mean([np.kron(np.outer(x, x), h) for x, h in zip(x_NxI, inner_NxVxV, strict=True)], axis=0)
    return jnp.asarray(w_IxV, jnp.float32), loss, hessian


@pytest.mark.parametrize("dtype, margin", [("float32", 0.0), ("float64", 0.0), ("float64", 27.0)])
def test_sharpness_of_a_linear_classifier_is_that_of_the_closed_form(dtype, margin):
    params, loss, hessian = softmax_regression(dtype, margin)
    expected = np.linalg.eigvalsh(hessian)[-1]
    assert expected > 0.1 or (margin and expected < 1e-8)
    assert value(Sharpness(), params, loss) == pytest.approx(expected, rel=1e-4)


def test_where_the_softmax_has_collapsed_nothing_but_rounding_is_left():
    params, loss, _ = softmax_regression("float32", 200.0)
    assert value(Sharpness(), params, loss) < 1e-6 and value(SAMSharpness(), params, loss) == 0


@functools.cache
def problems():
    """(parameters, batch) of a small network on a table, by the real path; four rows of the batch are padding."""

    @quick_jit
    def make(seed):
        data, params = SMOOTH.split.prepare(SMOOTH.task, seed), train.init(SMOOTH, seed).params
        size = batches.size(SMOOTH)
        return params, batches.train_batch(SMOOTH, data, seed, 0, jnp.arange(size + 4), 1, 1)[1]

    return make(0)


def reading_of(config, params, batch):
    def mean_loss(params):
        total, count = config.loss(train.forward(config, params, batch), batch.target_BxR, batch.weight_BxR)
        return total / count

    return Reading(params, batch, None, None, mean_loss)


@pytest.mark.parametrize("name", ["cross_entropy", "mse", "stablemax"])
def test_sharpness_of_a_network_equals_a_dense_hessian_in_float64(name):
    params, batch = problems()
    config = dataclasses.replace(SMOOTH, loss=registry.load("loss", name)())
    params = jax.tree.map(lambda w: 3 * w, params)
    found = quick_jit(lambda params: Sharpness(60)(reading_of(config, params, batch), config)[0])(params)

    with jax.enable_x64(True):
        index_NxL = np.asarray(batch.tokens_BxLxC[:12, :, 0]) + np.array([0, 5])
        target_N = np.asarray(batch.target_BxR[:12, 0])

        def loss(flat):
            hidden_NxD = jnp.tanh(flat[:40].reshape(10, 4)[index_NxL].sum(1))
            z_NxV = hidden_NxD @ flat[40:].reshape(4, 5)
            return plain(name, z_NxV)[np.arange(12), target_N].mean()

        flat = jnp.concatenate([jnp.asarray(np.asarray(w, np.float64)).ravel() for w in
                                (params["input"], params["Dense_0"]["kernel"])])  # fmt: skip
        expected = np.linalg.eigvalsh(quick_jit(jax.hessian(loss))(flat))[-1]
    assert expected > 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def plain(name, z_NxV):
    """[N, V]: the loss of each read for every class as the answer, in the type of the logits."""
    if name == "mse":
        return jnp.square(z_NxV).mean(-1, keepdims=True) + (1 - 2 * z_NxV) / z_NxV.shape[-1]
    s_NxV = {"cross_entropy": jnp.exp, "stablemax": lambda z: jnp.where(z >= 0, z + 1, 1 / (1 - z))}[name](z_NxV)
    return -jnp.log(s_NxV / s_NxV.sum(-1, keepdims=True))


def test_sam_sharpness_of_quadratics():
    """1/2 a w^2 rises by a rho |w| + a rho^2 / 2 over a step of rho; in more directions the step is along H w."""
    for w in (2.0, -3.0):
        rise = value(SAMSharpness(0.1), {"w": jnp.array(w)}, lambda params: 1.5 * params["w"] ** 2)
        assert rise == pytest.approx(3 * 0.1 * abs(w) + 3 * 0.1**2 / 2, rel=1e-4)
    params, loss, h_NxN = quadratic(np.linspace(1, 4, 6))
    w_N = np.concatenate([params["a"], params["b"].ravel()]).astype(np.float64)
    up_N = w_N + 0.05 * h_NxN @ w_N / np.linalg.norm(h_NxN @ w_N)
    expected = (up_N @ h_NxN @ up_N - w_N @ h_NxN @ w_N) / 2
    assert value(SAMSharpness(), params, loss) == pytest.approx(expected, rel=1e-4)


def test_sam_sharpness_takes_a_whole_step_along_the_smallest_gradient_and_none_along_zero():
    small = {"w": jnp.array([1e-25, 0.0])}
    assert value(SAMSharpness(0.1), small, lambda p: (p["w"] ** 2).sum()) == pytest.approx(0.01, rel=1e-5)
    flat = {"w": jnp.zeros(2)}
    assert value(SAMSharpness(0.1), flat, lambda p: (p["w"] ** 2).sum()) == 0


def of_vectors(gradient_NxP):
    total, count = coherence(jnp.linalg.norm(gradient_NxP.sum(0)), jnp.linalg.norm(gradient_NxP, axis=1), 4.0)
    return float(total), float(count)


@pytest.mark.parametrize(
    "gradient_NxP, m",
    [
        (np.ones((4, 3)), 4),  # the same
        (np.diag([1.0, 2.0, 3.0, 4.0]), 1),  # orthogonal, of any length
        ([[1, 0], [-1, 0], [0, 2], [0, -2]], 0),  # they cancel
        ([[1, 0], [1, 0], [0, 1], [0, 1]], 2),  # two groups
        ([[3, 0], [1, 0], [0, 0], [0, 0]], 16 / 10),
    ],
)
def test_coherence_of_gradients_that_are_given(gradient_NxP, m):
    assert of_vectors(jnp.asarray(gradient_NxP, jnp.float32)) == pytest.approx((m, 4), rel=1e-6)


def test_coherence_of_no_gradient_has_no_value():
    assert of_vectors(jnp.zeros((4, 2))) == (0, 0)


@pytest.mark.parametrize("chunk", [5, 64])
def test_coherence_equals_a_loop_over_the_problems(chunk):
    params, batch = problems()
    reading = reading_of(SMOOTH, params, batch)
    found = quick_jit(lambda p: GradientCoherence(chunk)(reading_of(SMOOTH, p, batch), SMOOTH))(reading.params)
    gradient_of = quick_jit(lambda params, one: jax.grad(reading_of(SMOOTH, params, one).mean_loss)(params))
    rows = [jax.tree.map(lambda a, i=i: a[i : i + 1], batch) for i in range(12)]
    gradients = [jax.flatten_util.ravel_pytree(gradient_of(params, row))[0] for row in rows]
    g_NxP = np.asarray(gradients, np.float64)
    alpha = np.square(g_NxP.mean(0)).sum() / np.square(g_NxP).sum(1).mean()
    assert 0.02 < alpha < 0.9
    np.testing.assert_allclose(found, [12 * alpha, 12], rtol=1e-5)


def test_they_are_of_the_problems_of_the_step_by_the_real_path():
    """Also for two seeds at once, with the softmax in float64."""
    names = ("sharpness", "sam_sharpness", "gradient_coherence")
    config = dataclasses.replace(SMOOTH, measures=names, loss=CrossEntropy("float64"))

    @quick_jit
    @jax.vmap
    def of_seed(seed):
        data, params = config.split.prepare(config.task, seed), train.init(config, seed).params
        batch = batches.train_batch(config, data, seed, 0, jnp.arange(12), 1, 1)[1]
        reading = reading_of(config, params, batch)
        alone = {name: registry.load("measure", name)()(reading, config) for name in names}
        return evaluate.measure(config, data, seed, params, 0), alone

    found, alone = of_seed(jnp.arange(2))
    for name in names:
        np.testing.assert_allclose(found[name], alone[name], rtol=1e-4)
        assert found[name][0][0] != found[name][0][1]
