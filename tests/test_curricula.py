"""A curriculum draws difficulties of the training range, and a mixed one draws one for each problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _instances import instances, label, quick_jit

from e2h import rng
from e2h.config import Config
from e2h.curricula.fixed import Fixed
from e2h.curricula.growing import Growing
from e2h.curricula.uniform import Uniform
from e2h.layouts.tagging import Tagging
from e2h.registry import Refused
from e2h.splits.length import Length
from e2h.tasks.parity import Parity

LOW, HIGH, STEPS = 1, 6, 3000
every_curriculum = pytest.mark.parametrize("curriculum", list(instances("curriculum")), ids=label)


def draws(curriculum, shape=(), low=LOW, high=HIGH):
    """int32 [STEPS, *shape]: the difficulties of the first steps."""
    at = lambda step: curriculum.draw(rng.stream(0, "difficulty", step), step, low, high, shape)  # noqa: E731
    return jax.device_get(quick_jit(jax.vmap(at))(jnp.arange(STEPS)))


@every_curriculum
@pytest.mark.parametrize("shape", [(), (5,)])
def test_difficulties_lie_in_the_training_range(curriculum, shape):
    found = draws(curriculum, shape)
    assert found.shape == (STEPS, *shape) and found.dtype == np.int32
    assert found.min() >= LOW and found.max() <= HIGH


@every_curriculum
def test_a_range_of_one_difficulty_gives_it(curriculum):
    assert (draws(curriculum, (2,), LOW, LOW) == LOW).all()


def test_uniform_draws_every_difficulty_equally_often_at_every_step():
    found = draws(Uniform(), (7,))
    for some in (found[:500], found[-500:]):
        counts = np.bincount(some.ravel(), minlength=HIGH + 1)[LOW:]
        assert abs(counts / counts.sum() - 1 / 6).max() < 5 * np.sqrt(5 / 36 / counts.sum())
    assert len(set(map(tuple, found))) > STEPS * 0.9


def test_growing_starts_at_the_easiest_and_rises_to_the_whole_range():
    found = draws(Growing(every=200), (20,), low=2, high=6)
    for level in range(6):
        assert set(found[200 * level : 200 * (level + 1)].ravel()) == set(range(2, min(2 + level, 6) + 1))
    counts = np.bincount(found[2000:].ravel(), minlength=7)[2:]
    assert abs(counts / counts.sum() - 1 / 5).max() < 0.02


def test_fixed_is_fixed():
    assert (draws(Fixed(difficulty=4), (3,)) == 4).all()


@pytest.mark.parametrize("difficulty, fits", [(0, False), (1, False), (2, True), (6, True), (7, False)])
def test_fixed_refuses_a_difficulty_outside_the_training_range(difficulty, fits):
    split, curriculum = Length(train_min=2, train_max=6, test_max=9), Fixed(difficulty=difficulty)
    config = Config(task=Parity(), split=split, layout=Tagging(), curriculum=curriculum)
    if fits:
        curriculum.check(config)
    else:
        with pytest.raises(Refused, match=f"curriculum.difficulty={difficulty} is outside the training range 2..6"):
            curriculum.check(config)
