"""Gromov's analytic solution (arXiv 2301.02679, claim I), put into the network that the experiment trains."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2h import train
from e2h.layouts import Batch
from e2h.measures import Reading, fourier_ipr
from experiments import gromov

P = 97


def solution(width: int, seed: int) -> dict:
    """Every neuron a wave of one frequency in x, y and the answer, whose phases add up; amplitude (4p)^(1/3)."""
    random = np.random.default_rng(seed)
    frequency_N = 1 + np.arange(width) % (P // 2)
    x_phase_N, y_phase_N = random.uniform(0, 2 * np.pi, (2, width))

    def wave(sign, phase_N):
        angle_PxN = sign * 2 * np.pi * np.outer(np.arange(P), frequency_N) / P
        return (4 * P) ** (1 / 3) * np.cos(angle_PxN + phase_N)

    into_IxN = np.concatenate([wave(1, x_phase_N), wave(1, y_phase_N)])
    out_NxP = wave(-1, -x_phase_N - y_phase_N).T
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), {"input": into_IxN, "Dense_0": {"kernel": out_NxP}})


def network(width: int):
    config = gromov.base("cpu", [])
    return dataclasses.replace(config, model=dataclasses.replace(config.model, hidden=(width,)))


@pytest.mark.parametrize(
    "width, accuracy, error",
    [(50, (0.86, 0.92), (0.077, 0.082)), (100, (0.996, 1), (0.037, 0.043)), (500, (1, 1), (0.0075, 0.0095))],
)
def test_the_analytic_solution_has_the_published_accuracy_and_error(width, accuracy, error):
    config, params = network(width), solution(width, 0)
    table = config.task.table()
    batch = Batch(jnp.asarray(table.prompt_PxC), *[jnp.zeros((config.task.size, 1), jnp.int32)] * 5)
    logits_NxP = np.asarray(jax.jit(lambda: train.forward(config, params, batch))()[:, 0])
    answer_N = table.answer_A[:, 0]
    assert accuracy[0] <= np.mean(logits_NxP.argmax(1) == answer_N) <= accuracy[1]
    assert error[0] <= np.mean(np.square(logits_NxP - np.eye(P)[answer_N])) <= error[1]
    assert abs(logits_NxP[np.arange(len(answer_N)), answer_N].mean() - 1) < 0.01


def test_its_neurons_are_of_one_frequency():
    total, count = fourier_ipr.FourierIPR()(Reading(solution(100, 1), None, None, None), network(100))
    assert count == 300 and abs(total / count - 1) < 1e-5


def test_rates_grow_as_the_cube_of_the_modulus_and_the_width():
    config = network(250)
    config = dataclasses.replace(config, task=dataclasses.replace(config.task, p=194))
    rate = gromov.at_size(config, P, 500).optimizer.learning_rate
    assert rate == pytest.approx(config.optimizer.learning_rate * 8 / 2)
