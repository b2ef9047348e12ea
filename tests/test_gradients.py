"""What every gradient rule holds on a quadratic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2h import registry
from e2h.gradients import Gradients
from e2h.gradients.entropy_sgd import EntropySGD
from e2h.gradients.finite_difference import FiniteDifference
from e2h.gradients.plain import Plain
from e2h.gradients.sam import SAM
from e2h.gradients.winsorized import Winsorized, nth_smallest

RULES = [registry.load("gradient", name)() for name in registry.names("gradient")]
every = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
H = jnp.array([[2.0, 1.0], [1.0, 3.0]])
BEST = {"w": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}
START = {"w": jnp.array([4.0, 1.0]), "b": jnp.array([-1.0])}


def loss(params):
    """Half of (w - w*) H (w - w*) + (b - b*)^2."""
    w, b = (params[name] - BEST[name] for name in ("w", "b"))
    return (w @ H @ w + b @ b) / 2


# What single problems ask for beside the common gradient: nothing together, and exactly so.
PULLS = np.array([[1, 2, 0], [-1, -2, 0], [2, 0, 1], [-2, 0, -1], [0, 1, 2], [0, -1, -2]], np.float32)


def of_groups(params, groups):
    """Six problems, each with a pull of its own beside the common gradient."""
    value, gradient = jax.value_and_grad(loss)(params)
    pull_Gx3 = jnp.asarray(PULLS).reshape(groups or 6, -1, 3).mean(1)
    reads_G = jnp.full(len(pull_Gx3), 6 // len(pull_Gx3))
    return value, reads_G, {"w": gradient["w"][None] + pull_Gx3[:, :2], "b": gradient["b"][None] + pull_Gx3[:, 2:]}


gradient_at = Gradients(jax.value_and_grad(loss), of_groups)


@every
def test_auxiliary_outputs_and_types_are_those_of_the_gradient(rule):
    auxiliary, gradient = jax.jit(lambda params: rule(gradient_at, params))(START)
    assert auxiliary.shape == () and jnp.isfinite(auxiliary)
    assert jax.tree.map(lambda g: (g.shape, g.dtype), gradient) == jax.tree.map(lambda w: (w.shape, w.dtype), START)


@every
def test_descent_along_it_minimises_a_quadratic(rule):
    step = jax.jit(lambda params: jax.tree.map(lambda w, g: w - 0.1 * g, params, rule(gradient_at, params)[1]))
    params = START
    for _ in range(100):
        params = step(params)
    assert loss(params) < 0.01 * loss(START)


@every
def test_vmap_equals_one_by_one(rule):
    starts = jax.tree.map(lambda w: jnp.stack([w, 2 * w]), START)
    together = jax.vmap(lambda params: rule(gradient_at, params))(starts)
    for i in (0, 1):
        alone = rule(gradient_at, jax.tree.map(lambda w, i=i: w[i], starts))
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6), together, alone)


def test_plain_is_the_analytic_gradient():
    auxiliary, gradient = Plain()(gradient_at, START)
    np.testing.assert_allclose(auxiliary, loss(START))
    np.testing.assert_allclose(gradient["w"], H @ (START["w"] - BEST["w"]))
    np.testing.assert_allclose(gradient["b"], START["b"] - BEST["b"])


def test_sam_of_one_weight_is_the_gradient_a_step_ahead():
    """f = a w^2 / 2: a (w + rho sign w)."""
    for w in (0.3, -2.0):
        _, g = SAM(rho=0.1)(jax.value_and_grad(lambda w: 1.5 * w**2 / 2), jnp.float32(w))
        np.testing.assert_allclose(g, 1.5 * (w + 0.1 * np.sign(w)), rtol=1e-6)


def test_sam_goes_along_the_gradient_of_all_parameters_together():
    g = jax.grad(loss)(START)
    norm = np.sqrt(sum(float((v**2).sum()) for v in g.values()))
    ahead = jax.tree.map(lambda w, g: w + 0.2 / norm * g, START, g)
    _, found = SAM(rho=0.2)(gradient_at, START)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, jax.grad(loss)(ahead))


@every
def test_a_gradient_of_zero_stays_zero(rule):
    _, g = rule(gradient_at, BEST)
    assert all((v == 0).all() for v in g.values())


@pytest.mark.parametrize("side", ["forward", "backward"])
@pytest.mark.parametrize("eps", [0.01, 1.0])
def test_finite_differences_are_exact_on_a_quadratic(side, eps):
    """(1 + gamma H) g."""
    _, found = FiniteDifference(gamma=0.3, eps=eps, side=side)(gradient_at, START)
    g = H @ (START["w"] - BEST["w"])
    np.testing.assert_allclose(found["w"], g + 0.3 * H @ g, rtol=1e-4)
    np.testing.assert_allclose(found["b"], 1.3 * (START["b"] - BEST["b"]), rtol=1e-4)


def test_the_sides_differ_where_the_curvature_changes():
    cubic = jax.value_and_grad(lambda w: w**3 / 3)  # g = w^2; at w +- eps g
    forward, backward = (FiniteDifference(gamma=0.1, eps=0.5, side=s)(cubic, jnp.float32(1.0))[1] for s in SIDES)
    np.testing.assert_allclose([forward, backward], [1 + 0.2 * (1.5**2 - 1), 1 + 0.2 * (1 - 0.5**2)], rtol=1e-6)


SIDES = ("forward", "backward")


def test_entropy_sgd_of_one_inner_step_is_the_gradient_times_its_rate():
    _, found = EntropySGD(inner=1, average=1.0, rate=0.1)(gradient_at, START)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 0.1 * b, rtol=1e-5), found, jax.grad(loss)(START))


def test_entropy_sgd_equals_plain_numpy():
    h, best = np.asarray(H, np.float64), np.asarray(BEST["w"], np.float64)
    start = np.asarray(START["w"], np.float64)
    walk, mean = start.copy(), start.copy()
    for _ in range(7):
        walk = walk - 0.05 * (h @ (walk - best) - 0.3 * (start - walk))
        mean = 0.75 * mean + 0.25 * walk
    _, found = EntropySGD(inner=7, rate=0.05, gamma=0.3)(gradient_at, START)
    np.testing.assert_allclose(found["w"], start - mean, rtol=1e-5)


def by_hand(gradient_GxP, reads_G, cut):
    """Plain Python: each coordinate's gradients, sorted, the ends replaced by their neighbours, then averaged."""
    kept = [g for g, reads in zip(gradient_GxP, reads_G, strict=True) if reads]
    found = []
    for column in zip(*kept, strict=True):
        ordered = sorted(column)
        low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
        found.append([min(max(g, low), high) for g in column])
    weight_G = np.array([reads for reads in reads_G if reads]) / sum(reads_G)
    return np.array(found) @ weight_G


def winsorized(rule, gradient_GxP, reads_G):
    given = Gradients(None, lambda params, groups: (0.0, jnp.array(reads_G), {"w": jnp.asarray(gradient_GxP)}))
    return jax.jit(lambda params: rule(given, params)[1]["w"])({"w": jnp.zeros(gradient_GxP.shape[1])})


@pytest.mark.parametrize("share, cut", [(0.0, 0), (0.1, 1), (0.19, 1), (0.2, 2), (0.3, 3), (0.5, 4)])
@pytest.mark.parametrize("padding", [0, 3])
def test_winsorized_equals_plain_python(share, cut, padding):
    """Ten groups of unequal size; a share of half leaves the two in the middle."""
    draw = np.random.default_rng(1)
    gradient_GxP, reads_G = draw.normal(size=(10, 4)).astype(np.float32), draw.integers(1, 4, 10).tolist()
    gradient_GxP = np.concatenate([gradient_GxP, np.zeros((padding, 4), np.float32)])
    found = winsorized(Winsorized(share=share), gradient_GxP, reads_G + [0] * padding)
    np.testing.assert_allclose(found, by_hand(gradient_GxP, reads_G + [0] * padding, cut), rtol=1e-5, atol=1e-6)


def test_one_loud_problem_is_cut_down_and_what_all_share_passes():
    loud = np.array([[-100.0, 1.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]], np.float32)
    np.testing.assert_allclose(winsorized(Winsorized(share=0.2), loud, [1] * 5), [(0 + 0 + 1 + 2 + 2) / 5, 1.0])


def test_three_groups_with_a_third_are_the_median():
    three = np.random.default_rng(2).normal(size=(3, 7)).astype(np.float32)
    found = winsorized(Winsorized(share=1 / 3, groups=3), three, [2, 2, 2])
    np.testing.assert_allclose(found, np.median(three, axis=0), rtol=1e-6)


def test_ranks_equal_a_sort_also_among_equals():
    x_GxP = np.random.default_rng(3).integers(-3, 4, (9, 40)).astype(np.float32)
    for n in range(9):
        np.testing.assert_array_equal(jax.jit(nth_smallest)(x_GxP, n), np.sort(x_GxP, axis=0)[n])
