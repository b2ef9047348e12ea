"""Every task that is installed, with its defaults and with the settings of its examples."""

import functools

import jax
import numpy as np

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


# Integers come out the same; most of these programs run once, so that compiling is all they cost.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
BLOCK = 1000  # problems that a compiled program draws


@functools.cache
def sampler(task, capacity: int):
    """A compiled function from a seed, the first row, and difficulties to problems."""

    def problems(seed, start, difficulty_N):
        keys = rng.rows(rng.stream(seed, "tests"), start, BLOCK)
        return jax.vmap(lambda key, difficulty: task.sample(key, difficulty, capacity))(keys, difficulty_N)

    return quick_jit(problems)


def draw(task, difficulty_N, capacity: int, seed: int = 0):
    """One problem of each difficulty, on the host; problem i is the same at every capacity."""
    difficulty_N = np.asarray(difficulty_N, np.int32)
    capacity = next((c for c in (task.highest,) if task.shape(c) == task.shape(capacity)), capacity)
    blocks = [
        sampler(task, capacity)(seed, start, np.resize(difficulty_N[start : start + BLOCK], BLOCK))
        for start in range(0, len(difficulty_N), BLOCK)
    ]
    return jax.tree.map(lambda *a: np.concatenate(a)[: len(difficulty_N)], *jax.device_get(blocks))


def take(problems, index):
    return jax.tree.map(lambda a: a[index], problems)


def cut(task, x, capacity: int):
    """The same problems in the arrays of a smaller capacity that holds them."""
    p, a = task.shape(capacity)
    return x._replace(
        prompt_PxC=x.prompt_PxC[:, :p], place_P=x.place_P[:, :p], answer_A=x.answer_A[:, :a], at_A=x.at_A[:, :a]
    )
