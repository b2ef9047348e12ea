"""What every model holds, with every position that it accepts; then oracles for the ones that we wrote."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _networks import BASES, FAST, LENGTH, batch, configs, params, scrambled, shapes, small, stack

from e2h import registry, train
from e2h.config import Config
from e2h.layouts import Batch, score
from e2h.layouts.query import Query
from e2h.models import embed
from e2h.models._initialisers import KERNELS
from e2h.positions.learned import Learned
from e2h.tasks import BLANK

QUERY = configs("query", "causal", "norm")  # the full product
OTHERS = [
    case
    for base in ("causal", "tagging", "table")
    for case in configs(base, "causal")
    if getattr(case.values[0].model, "causal", True) == BASES[base]["layout"].generates or base != "tagging"
    if base != "table" or case.values[0].position.name == "none"
]
PADDED = QUERY + [case for case in OTHERS if case.values[0].layout.name == "causal"]
CAUSAL = [case for case in QUERY if case.values[0].model.causal]
every = functools.partial(pytest.mark.parametrize, "config")


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Most of the time goes into compiling; operations run one by one, so that all cases share them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def close(got, want, tolerance=1e-6):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and np.isfinite(want).all()
    assert np.abs(got - want).max() <= tolerance * max(1.0, np.abs(want).max())


def population(config, params_S, batch_S):
    """Logits, Score and gradient of the summed loss of each of several seeds."""

    def alone(params, batch):
        def loss_at(params):
            logits = train.forward(config, params, batch)
            loss, _ = config.loss(logits, batch.target_BxR, batch.weight_BxR)
            return loss, (logits, score(batch, logits, loss))

        (_, aux), gradient = jax.value_and_grad(loss_at, has_aux=True)(params)
        return *aux, gradient

    return jax.vmap(alone)(params_S, batch_S)


@functools.cache
def two_seeds(config):
    """(parameters, batches, outputs) of two seeds together."""
    batch_S = [batch(config, 0), batch(config, 1)]
    params_S = [params(config, batch_S[0], seed) for seed in (0, 1)]
    return params_S, batch_S, population(config, stack(*params_S), stack(*batch_S))


def at_reads(logits_BxRxV, batch):
    return np.asarray(logits_BxRxV)[np.asarray(batch.weight_BxR) > 0]


@every(QUERY + OTHERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_float32_and_parameters_too(config, dtype):
    config, x = dataclasses.replace(config, compute_dtype=dtype), batch(config)
    weights = shapes(config, x)
    logits = jax.eval_shape(lambda p: train.forward(config, p, x), weights)
    classes = len(config.layout.classes(config.task))
    assert (logits.shape, logits.dtype) == ((*x.read_BxR.shape, classes), jnp.float32)
    assert {w.dtype for w in jax.tree.leaves(weights)} == {jnp.dtype("float32")}
    computed = str(jax.make_jaxpr(lambda p: train.forward(config, p, x))(weights))
    assert ("bf16" in computed) == (dtype == "bfloat16")


@every(QUERY + OTHERS)
def test_vmap_over_seeds_equals_the_seeds_alone(config):
    params_S, batch_S, (logits_SxBxRxV, _, _) = two_seeds(config)
    for seed in (0, 1):
        close(logits_SxBxRxV[seed], train.forward(config, params_S[seed], batch_S[seed]))


@every(PADDED)
def test_what_stands_in_the_padding_moves_nothing(config):
    params_S, batch_S, (logits, scores, gradient) = two_seeds(config)
    beyond = [jnp.arange(LENGTH)[None] >= x.length_B[:, None] for x in batch_S]
    assert any(b.any() for b in beyond)
    other_S = [scrambled(config, x, b) for x, b in zip(batch_S, beyond, strict=True)]
    others = population(config, stack(*params_S), stack(*other_S))
    for seed, x in enumerate(batch_S):
        np.testing.assert_array_equal(at_reads(others[0][seed], x), at_reads(logits[seed], x))
    jax.tree.map(np.testing.assert_array_equal, others[1], scores)
    jax.tree.map(close, others[2], gradient)
    assert max(jnp.abs(g).max() for g in jax.tree.leaves(gradient)) > 0


@every(PADDED)
def test_twice_the_padding_changes_nothing(config):
    params_S, batch_S, _ = two_seeds(config)
    x = batch_S[0]
    room = jnp.zeros_like(x.tokens_BxLxC)
    places = jnp.broadcast_to(jnp.arange(2 * LENGTH)[LENGTH:], x.place_BxL.shape)
    longer = x._replace(
        tokens_BxLxC=jnp.concatenate([x.tokens_BxLxC, room], 1), place_BxL=jnp.concatenate([x.place_BxL, places], 1)
    )
    close(
        at_reads(train.forward(config, params_S[0], longer), x),
        at_reads(train.forward(config, params_S[0], x), x),
    )


@every(QUERY + OTHERS)
def test_reading_some_tokens_equals_reading_all(config):
    params_S, batch_S, _ = two_seeds(config)
    x, p = batch_S[0], params_S[0]
    if config.layout.name == "table" and not config.model.uses_position and not config.model.causal:
        return  # a multilayer perceptron has nothing else to read
    everywhere_BxL = jnp.broadcast_to(jnp.arange(x.place_BxL.shape[1]), x.place_BxL.shape)
    every_logit = train.forward(config, p, x._replace(read_BxR=everywhere_BxL))
    close(jnp.take_along_axis(every_logit, x.read_BxR[..., None], 1), train.forward(config, p, x))


@every(QUERY + OTHERS)
def test_only_causal_models_are_blind_to_later_tokens(config):
    params_S, batch_S, _ = two_seeds(config)
    x, p = batch_S[0], params_S[0]
    logits = train.forward(config, p, x)
    index_L = jnp.arange(x.place_BxL.shape[1])
    for r in range(x.read_BxR.shape[1]):
        later_BxL = index_L[None] > x.read_BxR[:, r, None]
        changed = train.forward(config, p, scrambled(config, x, later_BxL))
        same_B = np.asarray((changed == logits).all(-1)[:, r])
        inside_B = np.asarray((later_BxL & (index_L[None] < x.length_B[:, None])).any(1))
        assert same_B.all() if config.model.causal else not same_B[inside_B].any()


@every(QUERY + OTHERS)
def test_the_first_token_is_seen(config):
    params_S, batch_S, _ = two_seeds(config)
    x = batch_S[0]
    first_BxL = jnp.broadcast_to(jnp.arange(x.place_BxL.shape[1]) == 0, x.place_BxL.shape)
    changed = train.forward(config, params_S[0], scrambled(config, x, first_BxL)._replace(place_BxL=x.place_BxL))
    assert (changed != train.forward(config, params_S[0], x)).any((1, 2)).all()


@every(CAUSAL)
def test_cached_decoding_equals_the_full_forward(config):
    network, variables = train.network(config), {"params": two_seeds(config)[0][0]}
    tokens = np.random.default_rng(0).integers(0, len(config.layout.vocabulary(config.task)), (3, LENGTH, 1))
    everywhere = jnp.broadcast_to(jnp.arange(LENGTH), (3, LENGTH))
    start_B = jnp.array([1, 2, 7])
    x = Batch(jnp.asarray(tokens, jnp.int32), start_B, everywhere, everywhere, everywhere, jnp.ones((3, LENGTH)))
    want = network.apply(variables, x._replace(length_B=jnp.full(3, LENGTH)))
    rows = jnp.arange(3)
    try:
        got, cache = network.apply(variables, x, method="prefill")
    except NotImplementedError:
        pytest.skip("this network does not generate")
    close(got, want[rows, start_B - 1], 1e-5)
    for k in range(LENGTH - 7):
        at_B = start_B + k
        got, cache = network.apply(variables, cache, x.tokens_BxLxC[rows, at_B, 0], at_B, everywhere, method="decode")
        close(got, want[rows, at_B], 1e-5)


@every([case for case in QUERY if case.values[0].position.name == "none"])
def test_a_blank_channel_adds_nothing(config):
    params_S, batch_S, _ = two_seeds(config)
    x = batch_S[0]
    blank = x._replace(tokens_BxLxC=jnp.concatenate([x.tokens_BxLxC, jnp.full_like(x.tokens_BxLxC, BLANK)], -1))
    logits = train.forward(config, params_S[0], x)
    np.testing.assert_array_equal(train.forward(config, params_S[0], blank), logits)


def test_channels_are_summed():
    table = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    tokens = jnp.array([[[0, 4], [BLANK, 2], [BLANK, BLANK]]])
    np.testing.assert_allclose(embed(jnp.asarray(table), tokens)[0], [table[0] + table[4], table[2], np.zeros(3)], 1e-6)


@pytest.mark.parametrize("name", registry.names("model"))
def test_bfloat16_is_near_float32(name):
    config = next(c.values[0] for c in QUERY[::-1] + OTHERS if c.values[0].model.name == name)
    x = batch(config)
    weights = params(config, x)
    full, half = (
        jax.jit(functools.partial(train.forward, dataclasses.replace(config, compute_dtype=t)), compiler_options=FAST)
        for t in ("float32", "bfloat16")
    )
    want, got = full(weights, x), half(weights, x)
    assert 0 < jnp.abs(got - want).max() < 0.1 * jnp.abs(want).max()


STD = {  # of a matrix, from its inputs and outputs
    "lecun_normal": lambda i, o: i**-0.5,
    "torch_uniform": lambda i, o: (3 * i) ** -0.5,
    "xavier_uniform": lambda i, o: (2 / (i + o)) ** 0.5,
    "normal_0.02": lambda i, o: 0.02,
}
D, V = 48, 12  # width; tokens that the query layout of addition shows
MATRICES = {  # parameter -> (inputs, outputs), or its standard deviation
    "rnn": {"input": (V, D), "recurrent": (D, D), "readout": (D, 10)},
    "lstm": {"input": (V, 4 * D), "recurrent": (D, 4 * D), "readout": (D, 10)},
    "mlp": {"input": (10, D), "Dense_0": (D, D), "Dense_1": (D, 5)},
    "transformer": {
        **{"tokens": 0.5, "places": 0.25, "readout": (D, 10), "up": (D, 2 * D), "down": (2 * D, D)},
        **{name: (D, D) for name in ("query", "key", "value", "out")},
    },
}
INITIAL = [(name, "lecun_normal") for name in MATRICES] + [("mlp", k) for k in KERNELS if k != "lecun_normal"]


@pytest.mark.parametrize("name, kernel", INITIAL)
def test_initial_std_is_that_of_the_initialiser(name, kernel):
    settings = {"hidden": (D, D)} if name == "mlp" else {"width": D}
    settings |= {"embed_std": 0.5} if name == "transformer" else {}
    model = small(registry.load("model", name), kernel_init=kernel, **settings)
    position = dict(position=Learned(std=0.25)) if name == "transformer" else {}
    config = Config(**BASES["table" if name == "mlp" else "query"], model=model, **position)
    init = jax.jit(lambda key: train.network(config).init(key, batch(config))["params"], compiler_options=FAST)
    seen = set()
    for path, w in jax.tree_util.tree_leaves_with_path(init(jax.random.key(2))):
        words = [k.key for k in path]
        known = seen_word = next((word for word in words if word in MATRICES[name]), None)
        w = np.asarray(w, np.float64)
        if known is None or words[-1] == "bias":  # gains start at 1, biases at 0, an LSTM's forget gate's at 1
            assert set(np.unique(w)) == ({1.0} if words[-1] == "scale" else {0.0, 1.0} if name == "lstm" and words[0] == "bias" else {0.0})
            continue
        seen.add(seen_word)
        want = MATRICES[name][known]
        want = want if isinstance(want, float) else STD[kernel](*want)
        assert abs(np.sqrt((w**2).mean()) - want) < 3 * want / np.sqrt(2 * w.size), words
    assert seen == set(MATRICES[name])
