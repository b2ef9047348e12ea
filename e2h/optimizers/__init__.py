"""Optimizers: Optax gradient transformations behind settings."""

import abc
import dataclasses
import math
from typing import ClassVar

import jax
import optax

from e2h.registry import Component, Refused, setting

DECAYS = ("all", "matrices")


@dataclasses.dataclass(frozen=True)
class Optimizer(Component):
    kind: ClassVar[str] = "optimizer"

    @abc.abstractmethod
    def transformation(self, steps: int) -> optax.GradientTransformation:
        """The (init, update) pair for a budget of `steps`; only a schedule that `uses_budget` may depend on it."""

    @property
    def uses_budget(self) -> bool:
        """Whether a step's update depends on the total number of steps."""
        return False


@dataclasses.dataclass(frozen=True)
class Scheduled(Optimizer):
    """An optimizer with a learning rate, its schedule, and clipping of the gradient's global norm."""

    learning_rate: float = setting(1e-3, "peak learning rate", low=0.0, high=1e38, varies=True)
    schedule: str = setting("constant", "after the warm-up", choices=("constant", "cosine", "linear"))
    warmup_steps: int = setting(
        0, "linear rise; the factor at step t is min(t / warmup_steps, 1), so 0 at first", low=0
    )
    clip_norm: float = setting(math.inf, "largest global norm of the gradient; inf does not clip", above=0.0)

    @property
    def uses_budget(self) -> bool:
        return self.schedule != "constant"

    def check(self, config) -> None:
        if self.uses_budget and config.steps <= self.warmup_steps:
            raise Refused(f"optimizer.warmup_steps={self.warmup_steps} leaves nothing of --steps={config.steps}.")

    def rate(self, steps: int) -> optax.Schedule:
        """Learning rate as a function of the step: warm-up, then constant or a fall to 0 at `steps`."""
        return self.schedule_to(self.learning_rate, steps)

    def schedule_to(self, peak, steps: int) -> optax.Schedule:
        """The schedule with a given peak."""
        rest = max(1, steps - self.warmup_steps)
        after = {
            "constant": lambda: optax.constant_schedule(peak),
            "cosine": lambda: optax.cosine_decay_schedule(peak, rest),
            "linear": lambda: optax.linear_schedule(peak, 0.0, rest),
        }[self.schedule]()
        if not self.warmup_steps:
            return after
        return optax.join_schedules([optax.linear_schedule(0.0, peak, self.warmup_steps), after], [self.warmup_steps])

    def clip(self) -> optax.GradientTransformation:
        return optax.identity() if math.isinf(self.clip_norm) else optax.clip_by_global_norm(self.clip_norm)


@dataclasses.dataclass(frozen=True)
class Wrapper(Optimizer):
    """Changes the gradient, then hands it to the `inner` optimizer, which adds its own decay afterwards."""

    inner: Optimizer = setting(None, "the optimizer that takes the changed gradient")

    @property
    def uses_budget(self) -> bool:
        return self.inner.uses_budget

    def check(self, config) -> None:
        self.inner.check(config)

    @abc.abstractmethod
    def change(self) -> optax.GradientTransformation:
        """What is done to the gradient."""

    def transformation(self, steps):
        return optax.chain(self.change(), self.inner.transformation(steps))


def decays(which: str):
    """A mask over parameters: every one, or those with two or more axes (no biases, gains or vectors)."""
    return lambda params: jax.tree.map(lambda w: which == "all" or w.ndim >= 2, params)
