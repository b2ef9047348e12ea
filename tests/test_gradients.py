"""What every gradient rule holds on a quadratic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2h import registry
from e2h.gradients.plain import Plain

RULES = [registry.load("gradient", name)() for name in registry.names("gradient")]
every = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
H = jnp.array([[2.0, 1.0], [1.0, 3.0]])
BEST = {"w": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}
START = {"w": jnp.array([4.0, 1.0]), "b": jnp.array([-1.0])}


def loss(params):
    """Half of (w - w*) H (w - w*) + (b - b*)^2."""
    w, b = (params[name] - BEST[name] for name in ("w", "b"))
    return (w @ H @ w + b @ b) / 2


def gradient_at(params):
    return jax.value_and_grad(loss)(params)


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
