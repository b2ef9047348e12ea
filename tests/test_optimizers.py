"""What every optimizer holds, wrappers around every inner one, and the exact numbers of each."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from e2h import registry
from e2h.config import Config
from e2h.optimizers import Scheduled, Wrapper
from e2h.optimizers.adam_l2 import AdamL2
from e2h.optimizers.adamw import AdamW
from e2h.optimizers.adamw_two_rates import AdamWTwoRates
from e2h.optimizers.grokfast_ema import GrokfastEMA
from e2h.optimizers.grokfast_ma import GrokfastMA
from e2h.optimizers.lion import Lion
from e2h.optimizers.muon import Muon
from e2h.optimizers.orthogonal_gradient import OrthogonalGradient
from e2h.optimizers.sgd import SGD
from e2h.registry import Refused

TYPES = [registry.load("optimizer", name) for name in registry.names("optimizer")]
PLAIN = [t for t in TYPES if not issubclass(t, Wrapper)]
WRAPPERS = [t for t in TYPES if issubclass(t, Wrapper)]


def build(types, **settings):
    """The optimizer: (A, B) is a B inside an A. Settings go to the innermost that has them."""
    *outer, inner = types
    known = {f.name for f, _ in registry.fields(inner)}
    optimizer = inner(**{k: v for k, v in settings.items() if k in known})
    for wrapper in outer[::-1]:
        optimizer = wrapper(inner=optimizer)
    return optimizer


CHAINS = [(t,) for t in PLAIN] + list(itertools.product(WRAPPERS, PLAIN))
every = pytest.mark.parametrize("types", CHAINS, ids=lambda types: "+".join(t.__module__.split(".")[-1] for t in types))
scheduled = pytest.mark.parametrize(
    "types",
    [types for types in CHAINS if issubclass(types[-1], Scheduled)],
    ids=lambda types: "+".join(t.__module__.split(".")[-1] for t in types),
)
PARAMS = {"matrix": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "gain": jnp.array([1.0, 2.0])}


@pytest.fixture(autouse=True)
def as_in_training():
    with jax.numpy_dtype_promotion("standard"):  # Optax raises Python floats to the power of an int32 count
        yield


class Run:
    """An optimizer on some parameters."""

    def __init__(self, optimizer, params, steps=100):
        init, self.update = optimizer.transformation(steps)
        self.params, self.state = params, init(params)

    def step(self, gradient):
        """The update for a gradient, which is then applied."""
        update, self.state = self.update(gradient, self.state, self.params)
        self.params = optax.apply_updates(self.params, update)
        return update


def shapes(tree):
    return jax.tree.map(lambda a: (jnp.shape(a), jnp.asarray(a).dtype), tree)


def gradient(seed):
    draw = np.random.default_rng(seed).standard_normal
    return jax.tree.map(lambda w: jnp.asarray(draw(w.shape), jnp.float32), PARAMS)


@every
def test_state_and_types_are_stable_and_the_second_step_does_not_compile(types):
    run, traces = Run(build(types, weight_decay=0.1), PARAMS), []
    update_once = run.update
    run.update = jax.jit(lambda *args: (traces.append(0), update_once(*args))[1])
    before = shapes((run.state, run.params))
    for seed in range(3):
        update = run.step(gradient(seed))
        assert shapes(update) == shapes(PARAMS) and shapes((run.state, run.params)) == before
    assert len(traces) == 1 and all(jnp.isfinite(u).all() for u in jax.tree.leaves(update))


@every
def test_a_small_quadratic_is_minimised(types):
    """sum h (w - w*)^2 / 2 over tensors of one element, along which every wrapper lets the gradient pass."""
    h, best = {"a": 1.0, "b": 0.3}, {"a": 2.0, "b": 8.0}
    transformation = build(types, learning_rate=0.003).transformation(3000)

    def step(carry, _):
        params, state = carry
        update, state = transformation.update(jax.tree.map(lambda w, h, b: h * (w - b), params, h, best), state, params)
        return (optax.apply_updates(params, update), state), None

    start = {"a": jnp.full(1, 1.5), "b": jnp.full((1, 1), 8.5)}
    (end, _), _ = jax.lax.scan(step, (start, transformation.init(start)), length=3000)
    for name, w in end.items():  # each began at 0.5 from it; the moving average makes Adam swing
        assert abs(w - best[name]).max() < 0.1


DECAYED = {AdamW: [-2e-3, -1e-3], AdamL2: [-1e-3, -1e-3], SGD: [-2e-3, -1e-3]}  # decoupled, by the moments, decoupled


@every
def test_decay_of_two_weights_under_no_gradient(types):
    params = jnp.array([2.0, 1.0])
    update = Run(build(types, learning_rate=1e-3, weight_decay=1.0), params).step(jnp.zeros(2))
    assert (update < 0).all()
    np.testing.assert_allclose(update, DECAYED.get(types[-1], update), rtol=1e-5)


@every
@pytest.mark.parametrize("mask, decayed", [("all", {"matrix", "gain"}), ("matrices", {"matrix"})])
def test_decay_mask_matches_every_parameter(types, mask, decayed):
    optimizer = build(types, weight_decay=1.0, decay_mask=mask)
    update = Run(optimizer, PARAMS).step(jax.tree.map(jnp.zeros_like, PARAMS))
    assert {name for name, u in update.items() if (u != 0).any()} == decayed


@scheduled
def test_warm_up_starts_at_zero_and_rises_linearly(types):
    warm, cold = (Run(build(types, warmup_steps=steps), PARAMS) for steps in (4, 0))
    for t in range(6):
        cold.params = warm.params
        expected = jax.tree.map(lambda u, t=t: u * min(t / 4, 1), cold.step(gradient(t)))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), warm.step(gradient(t)), expected)


@every
def test_a_constant_schedule_does_not_depend_on_the_budget(types):
    optimizer = build(types)
    assert not optimizer.uses_budget
    few, many = Run(optimizer, PARAMS, steps=2), Run(optimizer, PARAMS, steps=1000)
    for seed in range(3):
        jax.tree.map(np.testing.assert_array_equal, few.step(gradient(seed)), many.step(gradient(seed)))


@scheduled
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_falling_schedule_ends_at_zero(types, schedule):
    optimizer = build(types, schedule=schedule)
    assert optimizer.uses_budget
    run = Run(optimizer, PARAMS, steps=3)
    sizes = [float(optax.tree.norm(run.step(gradient(0)))) for _ in range(4)]
    assert min(sizes[:3]) > 1e-5 and sizes[3] < 1e-6 * sizes[0]


@pytest.mark.parametrize("schedule, half", [("constant", 1), ("cosine", 0.5), ("linear", 0.5)])
def test_rate_after_a_warm_up(schedule, half):
    rate = SGD(learning_rate=2.0, schedule=schedule, warmup_steps=10).rate(110)
    np.testing.assert_allclose([rate(t) for t in (0, 5, 10, 60)], [0, 1, 2, 2 * half], atol=1e-6)


@scheduled
def test_a_warm_up_as_long_as_the_budget_is_refused(types):
    with pytest.raises(Refused, match="warmup_steps"):
        build(types, schedule="cosine", warmup_steps=100).check(Config(steps=100))
    build(types, warmup_steps=100).check(Config(steps=100))


def test_clipping_keeps_the_direction():
    update = Run(SGD(learning_rate=1.0, clip_norm=1.0), jnp.zeros(2)).step(jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(update, [-0.6, -0.8], rtol=1e-6)


def numpy_adam(g, w, t, m, decay=0.1, coupled=False, b1=0.9, b2=0.999):
    g = g + decay * w * coupled
    m[0], m[1] = b1 * m[0] + (1 - b1) * g, b2 * m[1] + (1 - b2) * g**2
    step = m[0] / (1 - b1 ** (t + 1)) / (np.sqrt(m[1] / (1 - b2 ** (t + 1))) + 1e-8)
    return -0.01 * (step + decay * w * (not coupled))


def numpy_sgd(g, w, t, m, nesterov=False):
    m[0] = 0.9 * m[0] + g
    return -0.01 * ((0.9 * m[0] + g if nesterov else m[0]) + 0.1 * w)


@pytest.mark.parametrize(
    "optimizer, oracle",
    [
        (AdamW(weight_decay=0.1, learning_rate=0.01), numpy_adam),
        (AdamL2(weight_decay=0.1, learning_rate=0.01), lambda *a: numpy_adam(*a, coupled=True)),
        (SGD(weight_decay=0.1, learning_rate=0.01, momentum=0.9), numpy_sgd),
        (SGD(weight_decay=0.1, learning_rate=0.01, momentum=0.9, nesterov=True), lambda *a: numpy_sgd(*a, True)),
    ],
    ids=["adamw", "adam_l2", "sgd", "nesterov"],
)
def test_updates_equal_plain_numpy(optimizer, oracle):
    run, moments = Run(optimizer, PARAMS["matrix"]), [0.0, 0.0]
    w = np.asarray(PARAMS["matrix"], np.float64)
    for t in range(5):
        g = gradient(t)["matrix"]
        want = oracle(np.asarray(g, np.float64), w, t, moments)
        np.testing.assert_allclose(run.step(g), want, rtol=1e-4, atol=1e-7)
        w = w + want


def changed(wrapper, gradients):
    """What a wrapper makes of each of a sequence of gradients."""
    change = wrapper.change()
    params = jnp.zeros_like(gradients[0])
    _, outputs = jax.lax.scan(lambda s, g: change.update(g, s, params)[::-1], change.init(params), gradients)
    return np.asarray(outputs)


def numpy_ema(gradients, alpha, lam):
    mean, outputs = gradients[0], []
    for g in gradients:
        mean = alpha * mean + (1 - alpha) * g
        outputs.append(g + lam * mean)
    return np.array(outputs)


def numpy_ma(gradients, window, lam):
    means = [np.mean(gradients[max(0, t + 1 - window) : t + 1], 0) for t in range(len(gradients))]
    return np.array([g + lam * m * (t + 1 >= window) for t, (g, m) in enumerate(zip(gradients, means, strict=True))])


@pytest.mark.parametrize(
    "wrapper, oracle",
    [
        (GrokfastEMA(alpha=0.9, lam=2.0), lambda g: numpy_ema(g, 0.9, 2.0)),
        (GrokfastEMA(), lambda g: numpy_ema(g, 0.98, 2.0)),
        (GrokfastMA(window=7, lam=5.0), lambda g: numpy_ma(g, 7, 5.0)),
        (GrokfastMA(window=1, lam=5.0), lambda g: 6 * g),
    ],
    ids=["ema-0.9", "ema", "ma-7", "ma-1"],
)
def test_grokfast_equals_plain_numpy(wrapper, oracle):
    gradients = np.random.default_rng(0).standard_normal((30, 3))
    np.testing.assert_allclose(changed(wrapper, jnp.asarray(gradients, jnp.float32)), oracle(gradients), atol=1e-5)


def test_grokfast_amplifies_a_constant_gradient():
    gradients = jnp.ones((12, 2))
    np.testing.assert_allclose(changed(GrokfastEMA(lam=2.0), gradients), 3.0, rtol=1e-6)
    np.testing.assert_allclose(
        changed(GrokfastMA(window=5, lam=2.0), gradients), [[1] * 2] * 4 + [[3] * 2] * 8, rtol=1e-6
    )


def test_grokfast_ema_hardly_amplifies_an_alternating_gradient():
    alpha, lam = 0.9, 2.0
    gradients = jnp.array([[1.0], [-1.0]] * 200)
    gain = changed(GrokfastEMA(alpha=alpha, lam=lam), gradients)[-1] / gradients[-1]
    np.testing.assert_allclose(gain, 1 + lam * (1 - alpha) / (1 + alpha), rtol=1e-5)


def orthogonal(g, w, **settings):
    return OrthogonalGradient(**settings).change().update(g, optax.EmptyState(), w)[0]


@pytest.mark.parametrize("shape", [(4,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-4])  # share of the gradient that is not along the weights
def test_orthogonal_gradient_has_its_norm_and_no_part_along_the_weights(shape, apart):
    draw = np.random.default_rng(0).standard_normal
    w, noise = draw(shape), draw(shape)
    g = (1 - apart) * w + apart * noise
    perp = np.asarray(orthogonal(jnp.asarray(g, jnp.float32), jnp.asarray(w, jnp.float32)), np.float64)
    assert abs((w * perp).sum()) <= 1e-6 * np.linalg.norm(w) * np.linalg.norm(g)
    np.testing.assert_allclose(np.linalg.norm(perp), np.linalg.norm(g), rtol=1e-5)
    assert (noise * perp).sum() > 0


def test_orthogonal_gradient_of_small_cases():
    w, g = jnp.array([1.0, 0.0]), jnp.array([1.0, 1.0])
    np.testing.assert_allclose(orthogonal(g, w), [0, np.sqrt(2)], rtol=1e-6)
    np.testing.assert_allclose(orthogonal(g, w, rescale=False), [0, 1], rtol=1e-6)
    np.testing.assert_array_equal(orthogonal(g, jnp.zeros(2)), g)
    np.testing.assert_array_equal(orthogonal(jnp.zeros(2), w), jnp.zeros(2))
    for shape in ((), (1,), (1, 1)):
        np.testing.assert_array_equal(orthogonal(jnp.full(shape, 3.0), jnp.full(shape, 2.0)), jnp.full(shape, 3.0))


@pytest.mark.parametrize("inner", PLAIN, ids=lambda t: t.__module__.split(".")[-1])
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda t: t.__module__.split(".")[-1])
def test_a_wrapper_hands_the_changed_gradient_to_the_inner_optimizer(wrapper, inner):
    outer, alone = Run(wrapper(inner=inner()), PARAMS), Run(inner(), PARAMS)
    want = wrapper().change().update(gradient(0), wrapper().change().init(PARAMS), PARAMS)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), outer.step(gradient(0)), alone.step(want))


def test_two_rates_are_adamw_on_each_group_with_its_own_rate_and_decay():
    both = AdamWTwoRates(learning_rate=0.01, weight_decay=0.5, embedding_rate=0.03, embedding_decay=2.0, warmup_steps=3)
    embedding = AdamW(learning_rate=0.03, weight_decay=2.0, warmup_steps=3)
    others = AdamW(learning_rate=0.01, weight_decay=0.5, warmup_steps=3)
    params = {"embedding": PARAMS["matrix"], "Dense_0": {"kernel": PARAMS["matrix"] + 1}}
    runs = [Run(optimizer, params) for optimizer in (both, embedding, others)]
    for t in range(6):
        g = jax.tree.map(lambda w, t=t: jnp.sin(w + t), params)
        update, of_embedding, of_others = (run.step(g) for run in runs)
        np.testing.assert_allclose(update["embedding"], of_embedding["embedding"], rtol=1e-5)
        np.testing.assert_allclose(update["Dense_0"]["kernel"], of_others["Dense_0"]["kernel"], rtol=1e-5)


def test_muon_takes_the_hidden_matrices_and_orthogonalises_their_steps():
    rng = np.random.default_rng(0)
    shapes = {
        "tokens": (9, 8), "places": {"table": (5, 8)}, "readout": {"kernel": (8, 9)}, "recurrent": (8, 8),
        "blocks_0": {
            "query": {"kernel": (8, 2, 4), "bias": (2, 4)}, "out": {"kernel": (2, 4, 8)}, "up": {"kernel": (8, 16)},
        },
        "Dense_0": {"kernel": (8, 6)}, "Dense_1": {"kernel": (6, 9)},
    }  # fmt: skip
    draw = lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    params = jax.tree.map(draw, shapes, is_leaf=lambda s: isinstance(s, tuple))
    update = Run(Muon(learning_rate=0.5, adam_rate=1e-3), params).step(jax.tree.map(lambda w: draw(w.shape), params))
    sizes = {jax.tree_util.keystr(k): float(jnp.abs(u).max()) for k, u in jax.tree_util.tree_leaves_with_path(update)}
    hidden = {name for name, size in sizes.items() if size > 0.01}
    of_blocks = {f"['blocks_0']['{name}']['kernel']" for name in ("query", "out", "up")}
    assert hidden == of_blocks | {"['recurrent']", "['Dense_0']['kernel']"}
    for w, into, out in (
        (update["blocks_0"]["query"]["kernel"], 8, 8), (update["blocks_0"]["out"]["kernel"], 8, 8),
        (update["blocks_0"]["up"]["kernel"], 8, 16), (update["Dense_0"]["kernel"], 8, 6),
    ):  # fmt: skip
        values = np.linalg.svd(np.asarray(w).reshape(into, out), compute_uv=False) / 0.5 / max(1, out / into) ** 0.5
        assert 0.66 < values.min() and values.max() < 1.14


def test_muon_decays_both_groups_by_their_own_rates():
    params = {"blocks_0": {"up": {"kernel": jnp.ones((2, 2))}}, "tokens": jnp.ones((2, 2))}
    update = Run(Muon(learning_rate=0.02, adam_rate=1e-3, weight_decay=0.5), params).step(
        jax.tree.map(jnp.zeros_like, params)
    )
    np.testing.assert_allclose(update["blocks_0"]["up"]["kernel"], -0.01, rtol=1e-5)
    np.testing.assert_allclose(update["tokens"], -5e-4, rtol=1e-5)


def test_lion_moves_every_weight_by_its_rate():
    optimizer = Lion(learning_rate=0.1, b1=0.9, b2=0.99, weight_decay=0.5)
    run, m, w = Run(optimizer, PARAMS["matrix"]), 0.0, np.asarray(PARAMS["matrix"], np.float64)
    for t in range(4):
        g = np.asarray(gradient(t)["matrix"], np.float64)
        want = -0.1 * (np.sign(0.9 * m + 0.1 * g) + 0.5 * w)
        np.testing.assert_allclose(run.step(gradient(t)["matrix"]), want, rtol=1e-5)
        m, w = 0.99 * m + 0.01 * g, w + want


@pytest.mark.parametrize("mask", ["all", "matrices"])
def test_decay_towards_the_start_is_decay_of_what_has_been_moved(mask):
    """Of parameters that start at 0 it is plain decay; shifted by where they start, the same path."""
    pull = jax.tree.map(lambda w: jnp.linspace(-1, 1, w.size).reshape(w.shape), PARAMS)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    common = dict(learning_rate=0.1, weight_decay=0.7, decay_mask=mask)
    origin, start = AdamW(**common), AdamW(**common, decay_towards="start")
    paths = []
    for optimizer, params in ((origin, zeros), (start, PARAMS)):
        init, update = optimizer.transformation(100)
        first, state = params, init(params)
        for _ in range(7):
            updates, state = update(pull, state, params)
            params = optax.apply_updates(params, updates)
        paths.append(jax.tree.map(lambda w, w0: np.asarray(w - w0), params, first))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *paths)
