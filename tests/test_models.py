"""What every model holds, with every position that it accepts; then oracles for the ones that we wrote."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _networks import BASES, LENGTH, batch, configs, drawn, params, scrambled, shapes, small, stack

from e2h import registry, train
from e2h.config import Config
from e2h.layouts import score
from e2h.models import embed
from e2h.models._initialisers import KERNELS
from e2h.models.mlp import MLP
from e2h.models.transformer import Transformer
from e2h.positions.learned import Learned
from e2h.registry import Refused
from e2h.tasks import BLANK
from e2h.tasks.modular import Modular

QUERY = configs("query")
TABLE = [c for c in configs("table") if c.values[0].model not in {q.values[0].model for q in QUERY}]  # takes no other
TAGGING = [c for c in configs("tagging") if not c.values[0].model.causal]  # the flags stand after the read
GENERATING = [c for c in QUERY if c.values[0].model.causal and hasattr(train.network(c.values[0]), "prefill")]
every = functools.partial(pytest.mark.parametrize, "config")


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Nearly all the time goes into compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@functools.cache
def run(function, config):
    """The function for a config: by operations, which all positions share; compiled for what would repeat a scan."""
    function = functools.partial(function, config)
    return function if config.model.uses_position else jax.jit(function)


def forward(config, weights, x):
    return run(train.forward, config)(weights, x)


@functools.cache
def case(config, seed=0):
    """(parameters, batch) of one config."""
    return params(config, batch(config), seed), batch(config, seed)


def read_everywhere(x):
    """The batch with all tokens read, at weight 0 where it was not, so that every block has one shape."""
    index_BxL = jnp.broadcast_to(jnp.arange(x.place_BxL.shape[1]), x.place_BxL.shape)
    rows_Bx1 = jnp.arange(len(x.length_B))[:, None]
    target_BxL = jnp.zeros_like(index_BxL).at[rows_Bx1, x.read_BxR].set(x.target_BxR)
    weight_BxL = jnp.zeros(index_BxL.shape).at[rows_Bx1, x.read_BxR].set(x.weight_BxR)
    return x._replace(read_BxR=index_BxL, target_BxR=target_BxL, weight_BxR=weight_BxL)


def at_reads(logits_BxRxV, x):
    return np.asarray(logits_BxRxV)[np.asarray(x.weight_BxR) > 0]


def close(got, want, tolerance=1e-6):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and np.isfinite(want).all()
    assert np.abs(got - want).max() <= tolerance * max(1.0, np.abs(want).max())


@every(QUERY + TABLE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_and_parameters_are_float32(config, dtype):
    config, x = dataclasses.replace(config, compute_dtype=dtype), batch(config)
    with jax.numpy_dtype_promotion("standard" if dtype == "bfloat16" else "strict"):  # Flax mixes types in a layer norm
        weights = shapes(config, x)
        logits = jax.eval_shape(lambda p: train.forward(config, p, x), weights)
    classes = len(config.layout.classes(config.task))
    assert (logits.shape, logits.dtype) == ((*x.read_BxR.shape, classes), jnp.float32)
    assert {w.dtype for w in jax.tree.leaves(weights)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", registry.names("model"))
def test_bfloat16_is_near_float32_but_not_equal(name):
    config = next(c.values[0] for c in QUERY + TABLE if c.values[0].model.name == name)
    weights, x = case(config)
    with jax.numpy_dtype_promotion("standard"):
        got = jax.jit(functools.partial(train.forward, dataclasses.replace(config, compute_dtype="bfloat16")))(
            weights, x
        )
    want = forward(config, weights, x)
    assert 0 < jnp.abs(got - want).max() < 0.1 * jnp.abs(want).max()


@pytest.mark.parametrize("name", registry.names("model"))
def test_vmap_over_seeds_equals_the_seeds_alone(name):
    config = next(c.values[0] for c in QUERY + TABLE if c.values[0].model.name == name)
    params_S, batch_S = zip(*[case(config, seed) for seed in (0, 1)], strict=True)
    together = jax.jit(jax.vmap(functools.partial(train.forward, config)))(stack(*params_S), stack(*batch_S))
    for seed in (0, 1):
        close(together[seed], forward(config, params_S[seed], batch_S[seed]))


def outputs(config, weights, x):
    """Logits, Score and gradient of the summed loss."""

    def loss_at(weights):
        logits = train.forward(config, weights, x)
        loss, _ = config.loss(logits, x.target_BxR, x.weight_BxR)
        return loss, (logits, score(x, logits, loss)[0])

    gradient, aux = jax.grad(loss_at, has_aux=True)(weights)
    return *aux, gradient


@every(QUERY)
def test_what_stands_in_the_padding_moves_nothing(config):
    weights, x = case(config)
    beyond_BxL = jnp.arange(LENGTH)[None] >= x.length_B[:, None]
    x, other = read_everywhere(x), read_everywhere(scrambled(config, x, beyond_BxL))
    assert (other.tokens_BxLxC != x.tokens_BxLxC).any()
    logits, total, gradient = run(outputs, config)(weights, x)
    logits_2, total_2, gradient_2 = run(outputs, config)(weights, other)
    inside = ~np.asarray(beyond_BxL)
    np.testing.assert_array_equal(np.asarray(logits_2)[inside], np.asarray(logits)[inside])
    jax.tree.map(np.testing.assert_array_equal, total_2, total)
    jax.tree.map(close, gradient_2, gradient)
    assert all(jnp.abs(g).max() > 0 for g in jax.tree.leaves(gradient) if g.ndim > 1)


@every(QUERY)
def test_twice_the_padding_changes_nothing(config):
    weights, x = case(config)
    x = read_everywhere(x)
    places = jnp.broadcast_to(jnp.arange(LENGTH, 2 * LENGTH), x.place_BxL.shape)
    tokens_BxLxC = jnp.concatenate([x.tokens_BxLxC, jnp.zeros_like(x.tokens_BxLxC)], 1)
    longer = x._replace(tokens_BxLxC=tokens_BxLxC, place_BxL=jnp.concatenate([x.place_BxL, places], 1))
    close(forward(config, weights, longer), forward(config, weights, x))


@every(QUERY)
def test_reading_some_tokens_equals_reading_all(config):
    weights, x = case(config)
    every_logit = forward(config, weights, read_everywhere(x))
    close(forward(config, weights, x), jnp.take_along_axis(every_logit, x.read_BxR[..., None], 1))


@every(QUERY + TAGGING)
def test_causal_models_are_blind_to_later_tokens_and_no_others(config):
    weights, x = case(config)
    x = read_everywhere(x)
    logits = forward(config, weights, x)
    for index in (0, 4, 12):
        later_BxL = jnp.broadcast_to(jnp.arange(LENGTH) > index, x.place_BxL.shape)
        changed = forward(config, weights, scrambled(config, x, later_BxL))
        same_B = np.asarray((changed == logits)[:, : index + 1].all((1, 2)))
        seen_B = np.asarray(x.length_B) > index + 1
        assert same_B.all() if config.model.causal else not same_B[seen_B].any()


READS = np.array([0, 4, 12])  # row b is read at READS[b]


def gradient_by_token(config, x):
    """[B, L]: the largest derivative of the logits at a row's read by the embedding of each token of the row.

    No token comes twice in the batch, so the gradient of a token's row of the table is that of its embedding.
    """
    count, (rows, length) = x.place_BxL.size, x.place_BxL.shape
    x = read_everywhere(x)._replace(
        tokens_BxLxC=jnp.arange(count).reshape(rows, length, 1), length_B=jnp.full(rows, length)
    )
    classes = len(config.layout.classes(config.task))
    network = config.model.network(
        position=config.position, vocabulary=count, classes=classes, length=length, dtype=jnp.dtype("float32")
    )
    weights = drawn(jax.eval_shape(lambda key: network.init(key, x)["params"], jax.random.key(0)))

    def read_once(weights):
        return network.apply({"params": weights}, x)[np.arange(rows), READS].sum()

    by_weight = (jax.grad if config.model.uses_position else lambda f: jax.jit(jax.grad(f)))(read_once)(weights)
    (table_VxD,) = [g for g in jax.tree.leaves(by_weight) if g.shape[0] == count]
    return np.abs(table_VxD).max(-1).reshape(rows, length)


@every(QUERY + TAGGING)
def test_no_gradient_comes_from_later_tokens_unless_the_model_looks_ahead(config):
    gradient_BxL = gradient_by_token(config, batch(config))
    index_L, read_Bx1 = np.arange(LENGTH), READS[:, None]
    earlier_B = gradient_BxL.max(1, where=index_L < read_Bx1, initial=0)
    later_B = gradient_BxL.max(1, where=index_L > read_Bx1, initial=0)
    assert np.isfinite(gradient_BxL).all() and (gradient_BxL[np.arange(3), READS] > 0).all()
    assert (earlier_B[1:] > 0).all()
    assert (later_B == 0).all() if config.model.causal else (later_B > 0).all()


@every(QUERY + TABLE + TAGGING)
def test_the_first_token_is_seen(config):
    weights, x = case(config)
    x = read_everywhere(x) if config in [c.values[0] for c in QUERY + TAGGING] else x
    first_BxL = jnp.broadcast_to(jnp.arange(x.place_BxL.shape[1]) == 0, x.place_BxL.shape)
    other = scrambled(config, x, first_BxL)._replace(place_BxL=x.place_BxL)
    changed = forward(config, weights, other) != forward(config, weights, x)
    assert (changed.any(-1) & (x.weight_BxR > 0)).any(1).all()


@every(TAGGING)
def test_tokens_without_a_place_have_no_order(config):
    weights, x = case(config)
    logits, names = forward(config, weights, x), config.task.names
    turned = x.tokens_BxLxC.at[:, :names].set(jnp.roll(x.tokens_BxLxC[:, :names], 1, 1))
    close(forward(config, weights, x._replace(tokens_BxLxC=turned)), logits)


@every(GENERATING)
def test_cached_decoding_equals_the_full_forward(config):
    network, variables = train.network(config), {"params": case(config)[0]}
    tokens = np.random.default_rng(0).integers(0, len(config.layout.vocabulary(config.task)), (3, LENGTH, 1))
    x = read_everywhere(batch(config))._replace(
        tokens_BxLxC=jnp.asarray(tokens, jnp.int32), length_B=jnp.full(3, LENGTH)
    )
    want, rows, start_B = forward(config, variables["params"], x), jnp.arange(3), jnp.array([1, 2, 7])
    got, cache = network.apply(variables, x._replace(length_B=start_B), method="prefill")
    close(got, want[rows, start_B - 1], 1e-5)
    for k in range(LENGTH - 7):
        at_B = start_B + k
        got, cache = network.apply(variables, cache, x.tokens_BxLxC[rows, at_B, 0], at_B, x.place_BxL, method="decode")
        close(got, want[rows, at_B], 1e-5)


@every([c for c in QUERY if c.values[0].position.name == "none"])
def test_a_blank_channel_adds_nothing(config):
    weights, x = case(config)
    blank = x._replace(tokens_BxLxC=jnp.concatenate([x.tokens_BxLxC, jnp.full_like(x.tokens_BxLxC, BLANK)], -1))
    close(forward(config, weights, blank), forward(config, weights, x))


def test_channels_are_summed():
    table = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    tokens = jnp.array([[[0, 4], [BLANK, 2], [BLANK, BLANK]]])
    np.testing.assert_allclose(embed(jnp.asarray(table), tokens)[0], [table[0] + table[4], table[2], np.zeros(3)], 1e-6)


class TwoChannels(Modular):
    channels = 2


def test_an_mlp_refuses_tokens_of_several_channels():
    Config().check()
    with pytest.raises(Refused, match=r"model mlp reads one channel of a token, and those of task .* have 2"):
        Config(task=TwoChannels()).check()


STD = {  # of a matrix, from its inputs and outputs
    "lecun_normal": lambda i, o: i**-0.5,
    "torch_uniform": lambda i, o: (3 * i) ** -0.5,
    "xavier_uniform": lambda i, o: (2 / (i + o)) ** 0.5,
    "normal_0.02": lambda i, o: 0.02,
    "normal_1": lambda i, o: 1.0,
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
VECTORS = {"scale": 1, "bias": 0}
INITIAL = [(name, "lecun_normal") for name in MATRICES] + [("mlp", k) for k in KERNELS if k != "lecun_normal"]


@pytest.mark.parametrize("name, kernel", INITIAL)
def test_initial_std_is_that_of_the_initialiser(name, kernel):
    settings = {"hidden": (D, D)} if name == "mlp" else {"width": D}
    settings |= {"embed_std": 0.5} if name == "transformer" else {}
    model = small(registry.load("model", name), kernel_init=kernel, **settings)
    position = dict(position=Learned(std=0.25)) if name == "transformer" else {}
    config = Config(**BASES["table" if name == "mlp" else "query"], model=model, **position)
    x = batch(config)
    init = jax.jit(lambda key: train.network(config).init(key, x)["params"])
    seen = set()
    for path, w in jax.tree_util.tree_leaves_with_path(init(jax.random.key(2))):
        words = [k.key for k in path]
        matrix = next((word for word in words if word in MATRICES[name]), None)
        if words[-1] in VECTORS:
            want = [0, 0, 1, 0] if words == ["bias"] and name == "lstm" else VECTORS[words[-1]]  # 1 for the forget gate
            np.testing.assert_array_equal(w, np.repeat(want, w.size // np.size(want)).reshape(w.shape))
        else:
            want = MATRICES[name][matrix]
            want = want if isinstance(want, float) else STD[kernel](*want)
            assert abs(np.sqrt(np.mean(np.square(w))) - want) < 3 * want / np.sqrt(2 * w.size), words
            seen.add(matrix)
    assert seen == set(MATRICES[name])


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def affine(x, w):
    return np.tensordot(x, w["kernel"], w["kernel"].ndim - w.get("bias", np.zeros(1)).ndim) + w.get("bias", 0)


def numpy_mlp(config, w, x):
    """On the concatenated one-hot tokens."""
    words = len(config.layout.vocabulary(config.task))
    h = np.eye(words)[x.tokens_BxLxC[:, :, 0]].reshape(len(x.length_B), -1) @ w["input"]
    for layer in (w["Dense_0"], w["Dense_1"]):
        h = np.maximum(h, 0) @ layer["kernel"]
    return h[:, None]


def numpy_rnn(config, w, x):
    h, outputs = np.zeros((len(x.length_B), config.model.width)), []
    for token_B in x.tokens_BxLxC[:, :, 0].T:
        h = np.maximum(h @ w["recurrent"] + w["input"][token_B] + w["bias"], 0)
        outputs.append(affine(h, w["readout"]))
    return np.stack(outputs, 1)


def numpy_lstm(config, w, x):
    h = c = np.zeros((len(x.length_B), config.model.width))
    outputs = []
    for token_B in x.tokens_BxLxC[:, :, 0].T:
        i, g, f, o = np.split(h @ w["recurrent"] + w["input"][token_B] + w["bias"], 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(affine(np.maximum(h, 0), w["readout"]))
    return np.stack(outputs, 1)


def numpy_transformer(config, w, x):
    """With ALiBi or no positions."""
    model, index = config.model, np.arange(x.place_BxL.shape[1])
    ahead = index[:, None] - index  # places are indices here
    fall = -np.abs(ahead) + (0 if model.causal else 0.5) * (ahead > 0)
    slopes = 2.0 ** (-8 * np.arange(1, model.heads + 1) / model.heads) * (config.position.name == "alibi")
    seen = (index < x.length_B[:, None])[:, None, None] & ((ahead >= 0) | (not model.causal))

    def norm(x, w):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w["scale"] + w["bias"]

    def around(sublayer, h, w):
        if model.norm == "pre":
            return h + sublayer(norm(h, w))
        return norm(h + sublayer(h), w) if model.norm == "post" else h + sublayer(h)

    def attention(h):
        q, k, v = (affine(h, block[name]) for name in ("query", "key", "value"))
        logits = np.einsum("bqhk,blhk->bhql", q, k) / np.sqrt(q.shape[-1]) + slopes[:, None, None] * fall
        heads = np.einsum("bhql,blhk->bqhk", softmax(np.where(seen, logits, -np.inf)), v)
        return np.einsum("bqhk,hkd->bqd", heads, block["out"]["kernel"]) + block["out"]["bias"]

    def feed_forward(h):
        u = affine(h, block["up"])
        return affine(u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3))) / 2, block["down"])  # GELU

    h = w["tokens"][x.tokens_BxLxC[:, :, 0]]
    for block in (w["blocks_0"], w["blocks_1"]):
        h = around(feed_forward, around(attention, h, block.get("norm_1")), block.get("norm_2"))
    return affine(norm(h, w["final_norm"]) if model.norm == "pre" else h, w["readout"])


@every(
    [c for c in QUERY + TABLE if c.values[0].model.name in MATRICES and c.values[0].position.name in ("none", "alibi")]
)
def test_logits_equal_plain_numpy(config):
    weights, x = case(config)
    double = jax.tree.map(lambda w: np.asarray(w, np.float64), weights)
    want = globals()[f"numpy_{config.model.name}"](config, double, jax.tree.map(np.asarray, x))
    if config.layout.name == "query":
        want = np.take_along_axis(want, np.asarray(x.read_BxR)[..., None], 1)
    close(at_reads(forward(config, weights, x), x), at_reads(want, x), 1e-5)


def test_an_mlp_of_numbers_reads_ids_as_shares_of_the_largest():
    config = Config(task=Modular(p=5), model=MLP(hidden=(4, 6), numbers=True))
    weights, x = case(config)
    w = jax.tree.map(lambda a: np.asarray(a, np.float64), weights)
    assert w["input"].shape == (2, 4)
    h = np.asarray(x.tokens_BxLxC[:, :, 0]) / 4 @ w["input"]
    for layer in (w["Dense_0"], w["Dense_1"]):
        h = np.maximum(h, 0) @ layer["kernel"]
    close(forward(config, weights, x), h[:, None], 1e-5)


@pytest.mark.parametrize(
    "settings, biased",
    [
        ({}, {"query", "key", "value", "out", "up", "down", "readout"}),
        ({"bias_in": "feed_forward"}, {"up", "down"}),
        ({"bias": False}, set()),
        ({"bias": False, "bias_in": "feed_forward"}, set()),
    ],
    ids=["everywhere", "feed_forward", "none", "none_at_all"],
)
def test_where_a_transformer_has_biases(settings, biased):
    config = Config(**BASES["query"], model=small(Transformer, norm="none", **settings))
    paths = [[k.key for k in path] for path, _ in jax.tree_util.tree_leaves_with_path(shapes(config, batch(config)))]
    assert {path[-2] for path in paths if path[-1] == "bias"} == biased
    assert not [path for path in paths if any("norm" in part for part in path)]
