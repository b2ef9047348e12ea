"""Sharpness: the largest eigenvalue of the Hessian of the mean training loss, by Lanczos iteration.

Plain gradient descent is stable up to 2 / learning rate (Cohen et al. 2021, arXiv 2103.00065). It is not invariant to
rescaling a layer of a ReLU network, and under cross-entropy it vanishes with the loss: read it beside both.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from e2h import rng
from e2h.measures import Measure
from e2h.measures._trees import norm, unit
from e2h.registry import setting

HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class Sharpness(Measure):
    """max eig H (not of largest |eig|), from below; the batch is the reading's, so the full one where training's is.

    H v is the derivative of the gradient along v, forward over reverse. That also holds for a softmax in float64: its
    custom reverse rule has been applied by then, and the derivative is taken where float64 is still on. In float32 a
    sharpness below about 1e-7 times the squared size of the features is rounding.
    """

    steps: int = setting(30, "Lanczos steps, each a Hessian-vector product", low=1)

    def __call__(self, reading, config):
        del config
        params_P, unravel = ravel_pytree(reading.params)
        gradient = jax.grad(lambda params_P: reading.mean_loss(unravel(params_P)))
        top = largest_eigenvalue(lambda v_P: jax.jvp(gradient, (params_P,), (v_P,))[1], params_P.size, self.steps)
        return top, jnp.ones(())


def largest_eigenvalue(product: Callable, size: int, steps: int) -> jax.Array:
    """Of the symmetric matrix whose `product(v_P)` is given: the largest Ritz value after `steps` steps of Lanczos.

    The basis is orthogonalized in full, twice. Where it cannot grow (the Krylov space is whole), the rest of the
    tridiagonal matrix repeats the first Rayleigh quotient, which is never above the largest Ritz value.
    """
    steps = min(steps, size)
    basis_KxP = jnp.zeros((steps, size)).at[0].set(unit(jax.random.normal(rng.stream(0, "lanczos"), (size,))))

    def step(k, carry):
        basis_KxP, diagonal_K, beside_K = carry
        w_P = product(basis_KxP[k])
        along = jnp.vdot(basis_KxP[k], w_P, precision=HIGHEST)
        scale = norm(w_P)
        for _ in range(2):
            inside_K = jnp.matmul(basis_KxP, w_P, precision=HIGHEST)
            w_P = w_P - jnp.matmul(inside_K, basis_KxP, precision=HIGHEST)
        grows = norm(w_P) > 1e-5 * scale
        basis_KxP = basis_KxP.at[k + 1].set(jnp.where(grows, unit(w_P), 0.0), mode="drop")
        diagonal = jnp.where(jnp.any(basis_KxP[k] != 0), along, diagonal_K[0])
        return basis_KxP, diagonal_K.at[k].set(diagonal), beside_K.at[k].set(jnp.where(grows, norm(w_P), 0.0))

    _, diagonal_K, beside_K = jax.lax.fori_loop(0, steps, step, (basis_KxP, jnp.zeros(steps), jnp.zeros(steps)))
    return jnp.linalg.eigvalsh(jnp.diag(diagonal_K) + jnp.diag(beside_K[:-1], 1) + jnp.diag(beside_K[:-1], -1))[-1]
