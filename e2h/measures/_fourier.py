"""Weights as functions on the residues 0..p-1, and their spectra."""

import jax
import jax.numpy as jnp

from e2h.registry import Refused

WEIGHTS = {  # model -> names of its first matrix, a row for each token (and position), and of its last
    "mlp": ("input", "Dense_"),
    "rnn": ("input", "readout"),
    "lstm": ("input", "readout"),
    "transformer": ("tokens", "readout"),
}


def check(measure, config) -> None:
    """Raises `Refused` unless tokens and classes are residues and the model's matrices are known."""
    if config.task.name != "modular":
        raise Refused(
            f"measure {measure.name} is a spectrum over residues, which the tokens of task {config.task.name} are not."
        )
    if config.model.name == "mlp" and config.model.numbers:
        raise Refused(f"measure {measure.name} needs a row of weights for each residue: leave out --model.numbers.")
    if config.model.name not in WEIGHTS:
        raise Refused(
            f"measure {measure.name} reads the first and last matrix of {', '.join(WEIGHTS)}, not of model "
            f"{config.model.name}."
        )


def inputs(params, config) -> jax.Array:
    """[K, D, p]: each unit of the first matrix as a function of the residue at operand k; K = 1 if they share it."""
    p, words = config.task.p, len(config.layout.vocabulary(config.task))
    table_IxD = params[WEIGHTS[config.model.name][0]]
    table_KxVxD = table_IxD.reshape(-1, words, table_IxD.shape[-1])
    operands = config.task.shape(1)[0]
    return table_KxVxD[:operands, :p].swapaxes(1, 2)  # ids beyond p are no residues; places beyond the operands no sum


def outputs(params, config) -> jax.Array:
    """[D, p]: each unit of the last matrix as a function of the residue that it speaks for."""
    stem = WEIGHTS[config.model.name][1]
    last = max((name for name in params if name.startswith(stem)), key=lambda name: (len(name), name))
    return params[last]["kernel"][:, : config.task.p]


def functions(params, config) -> jax.Array:
    """[N, p]: all of `inputs`, then all of `outputs`."""
    p = config.task.p
    return jnp.concatenate([inputs(params, config).reshape(-1, p), outputs(params, config).reshape(-1, p)])


def magnitudes(function_NxP: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(|rfft| [N, p // 2 + 1] of each function over its largest value, bool [N]: whether it is not 0 throughout).

    Only ratios within a spectrum have a meaning; without the division, fourth powers of small weights would be 0.
    """
    largest_N = jnp.abs(function_NxP).max(-1)
    live_N = largest_N > 0
    scaled_NxP = function_NxP / jnp.where(live_N, largest_N, 1.0)[:, None]
    return jnp.abs(jnp.fft.rfft(scaled_NxP, axis=-1)), live_N


def power(function_NxP: jax.Array) -> jax.Array:
    """[p // 2 + 1]: the squared length of all functions together along the cosine and sine of each frequency.

    In units of the largest value's square, so that the squares of small weights are not 0. The basis is orthonormal:
    the powers add up to the squared norm. Frequency 0, and at an even p also p / 2, has no sine.
    """
    p, largest = function_NxP.shape[-1], jnp.abs(function_NxP).max()
    F_NxK = jnp.abs(jnp.fft.rfft(function_NxP / jnp.where(largest > 0, largest, 1.0), axis=-1))
    k_K = jnp.arange(p // 2 + 1)
    waves_K = jnp.where((k_K == 0) | (2 * k_K == p), 1.0, 2.0)
    return jnp.square(F_NxK).sum(0) * waves_K / p


def mean_over_live(value_N: jax.Array, live_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum, count) over the functions that are not 0 throughout; a count of 0 if all are."""
    return jnp.where(live_N, value_N, 0.0).sum(), live_N.sum(dtype=jnp.float32)
