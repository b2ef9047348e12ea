"""Every task that is installed, with its defaults and with the settings of its examples."""

import functools

import jax
import jax.numpy as jnp

from e2h import registry, rng


def examples(task_type):
    """(prompt text, answer text, settings) of each row."""
    return [(prompt, answer, dict(*settings)) for prompt, answer, *settings in task_type.EXAMPLES]


def instances(kind: str = "task"):
    for name in registry.names(kind):
        cls = registry.load(kind, name)
        chosen = [settings for *_, settings in examples(cls)] if kind == "task" else []
        yield from dict.fromkeys([cls(), *(cls(**settings) for settings in chosen)])


def label(component) -> str:
    """The name and what differs from the defaults."""
    changed = {f.name: getattr(component, f.name) for f, _ in registry.fields(type(component))}
    changed = {k: v for k, v in changed.items() if v != getattr(type(component)(), k)}
    return "-".join([component.name, *(f"{k}={v}" for k, v in changed.items())])


@functools.cache
def sampler(task, capacity: int):
    """A compiled function from keys and difficulties to problems."""
    return jax.jit(jax.vmap(lambda key, difficulty: task.sample(key, difficulty, capacity)))


def draw(task, difficulty_N, capacity: int, seed: int = 0):
    """One problem of each difficulty, on the host; problem i is the same at every capacity."""
    difficulty_N = jnp.asarray(difficulty_N, jnp.int32)
    return jax.device_get(sampler(task, capacity)(rng.rows(rng.stream(seed, "tests"), 0, len(difficulty_N)), difficulty_N))


def take(problems, index):
    return jax.tree.map(lambda a: a[index], problems)
