"""What every position encoding holds at places far beyond training, and each formula in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from e2h import registry
from e2h.config import Config
from e2h.layouts.query import Query
from e2h.models.transformer import Transformer
from e2h.positions import Position
from e2h.positions.alibi import Alibi
from e2h.positions.learned import Learned
from e2h.positions.none import NoPosition
from e2h.positions.rope import Rope
from e2h.positions.sinusoidal import Sinusoidal
from e2h.registry import Refused
from e2h.splits.length import Length
from e2h.tasks import NO_PLACE
from e2h.tasks.parity import Parity

POSITIONS = [registry.load("position", name)() for name in registry.names("position")]
WIDTH, HEADS, K = 16, 2, 8
TRAINED, FAR = 100, 400

every = pytest.mark.parametrize("position", POSITIONS, ids=lambda p: p.name)


def config(position, longest=FAR, **model):
    split = Length(train_max=TRAINED, test_max=longest)
    model = Transformer(**{"width": WIDTH, "heads": HEADS} | model)
    return Config(task=Parity(), split=split, layout=Query(), position=position, model=model)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def features(position, params, place_L):
    """What each hook makes of each place, [L, ...], of one token's embedding, query and attention logits."""
    place_1xL, count = place_L[None], len(place_L)
    same = jnp.broadcast_to(normal(K), (1, count, HEADS, K))
    middle, last = place_1xL[:, count // 2, None], place_1xL[:, -1:]
    return {
        "embed": position.embed(params, jnp.ones((1, count, WIDTH)), place_1xL)[0],
        "rotate": position.rotate(params, same, place_1xL)[0],
        "bias both ways": position.bias(params, middle, place_1xL, HEADS, causal=False)[0, :, 0].T,
        "bias back": position.bias(params, last, place_1xL, HEADS, causal=True)[0, :, 0].T,
    }


def nearest(rows) -> float:
    """The least distance between two rows."""
    rows = np.asarray(rows, np.float64).reshape(len(rows), -1)
    gap = np.abs(rows[:, None] - rows).max(-1)
    return gap[~np.eye(len(rows), dtype=bool)].min()


@every
@pytest.mark.parametrize("longest", [FAR, 25 * FAR])
def test_far_places_are_distinct_or_refused(position, longest, key):
    try:
        config(position, longest).check()
    except Refused:
        return
    found = features(position, position.init(key, WIDTH, HEADS), jnp.arange(longest - FAR, longest))
    distinct = {name for name, rows in found.items() if len(rows) == FAR and nearest(rows) > 1e-3}
    assert distinct or isinstance(position, NoPosition)
    assert ("bias both ways" in distinct) == ("bias back" in distinct)
    assert all(np.isfinite(rows).all() for rows in found.values())


@every
def test_tokens_without_a_place_are_left_alone(position, key):
    params, place_1xL = position.init(key, WIDTH, HEADS), jnp.array([[NO_PLACE, 3, NO_PLACE, 0]])
    x_BxLxD, x_BxLxHxK, outside = normal(1, 4, WIDTH), normal(1, 4, HEADS, K), np.array([0, 2])
    np.testing.assert_array_equal(position.embed(params, x_BxLxD, place_1xL)[:, outside], x_BxLxD[:, outside])
    np.testing.assert_array_equal(position.rotate(params, x_BxLxHxK, place_1xL)[:, outside], x_BxLxHxK[:, outside])
    assigned = position.assign(key, place_1xL[0])
    np.testing.assert_array_equal(assigned == NO_PLACE, place_1xL[0] == NO_PLACE)
    assert assigned.dtype == jnp.int32 and assigned[1] > assigned[3]
    for causal in (True, False):
        bias = jnp.broadcast_to(position.bias(params, place_1xL, place_1xL, HEADS, causal), (1, HEADS, 4, 4))
        assert (bias[:, :, outside] == 0).all() and (bias[..., outside] == 0).all()
    assert jnp.broadcast_to(position.mask(place_1xL, place_1xL, HEADS), (1, HEADS, 4, 4))[:, :, outside].all()


@every
def test_products_depend_only_on_the_difference_of_places(position, key):
    params = position.init(key, WIDTH, HEADS)

    def turned(seed, place):
        return position.rotate(params, normal(1, 1, 1, K, seed=seed), jnp.array([[place]])).ravel()

    products = np.array([[turned(1, p + d) @ turned(2, p) for p in (5, 12, FAR)] for d in (-5, 0, 1, 90)])
    np.testing.assert_allclose(products, products[:, :1].repeat(3, 1), atol=2e-4)


@every
def test_hooks_keep_the_compute_type(position, key):
    params, place_1xL = position.init(key, WIDTH, HEADS), jnp.arange(4)[None]
    assert position.embed(params, jnp.ones((1, 4, WIDTH), jnp.bfloat16), place_1xL).dtype == jnp.bfloat16
    assert position.rotate(params, jnp.ones((1, 4, HEADS, K), jnp.bfloat16), place_1xL).dtype == jnp.bfloat16
    assert position.bias(params, place_1xL, place_1xL, HEADS, True).dtype == jnp.float32  # bfloat16 ends at 256


PLACES = np.array([[0, 1, 2, 63, 700, 3999]])


def test_sinusoidal_formula():
    p, k = PLACES[0][:, None], np.arange(WIDTH // 2)
    want = np.zeros((PLACES.size, WIDTH))
    want[:, 0::2], want[:, 1::2] = np.sin(p / 10000 ** (2 * k / WIDTH)), np.cos(p / 10000 ** (2 * k / WIDTH))
    x_BxLxD = normal(1, PLACES.size, WIDTH)
    got = Sinusoidal().embed({}, x_BxLxD, jnp.asarray(PLACES)) - x_BxLxD
    np.testing.assert_allclose(got[0], want, atol=1e-3)
    np.testing.assert_allclose(got[0, :4], want[:4], atol=1e-5)


def test_rope_formula():
    x_BxLxHxK = normal(1, PLACES.size, HEADS, K)
    plane = np.asarray(x_BxLxHxK[..., : K // 2], np.complex128) + 1j * np.asarray(x_BxLxHxK[..., K // 2 :])
    turned = plane * np.exp(1j * PLACES[..., None, None] * 10000.0 ** (-2 * np.arange(K // 2) / K))
    got = Rope().rotate({}, x_BxLxHxK, jnp.asarray(PLACES))
    np.testing.assert_allclose(got, np.concatenate([turned.real, turned.imag], -1), atol=1e-3)
    np.testing.assert_allclose(got[:, :4], np.concatenate([turned.real, turned.imag], -1)[:, :4], atol=2e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [2, 8])
def test_alibi_formula(heads, causal):
    slopes = [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
    i, j = PLACES[0][:, None], PLACES[0]
    want = [-m * np.abs(i - j) + (0 if causal else m / 2) * (j < i) for m in slopes]
    got = Alibi().bias({}, jnp.asarray(PLACES), jnp.asarray(PLACES), heads, causal)
    np.testing.assert_allclose(got[0], want, rtol=1e-6)


def test_learned_rows_and_nothing_beyond_the_table(key):
    position = Learned(max_length=5)
    params = position.init(key, 4, 1)
    got = position.embed(params, jnp.zeros((1, 4, 4)), jnp.array([[4, 0, 5, 600]]))[0]
    np.testing.assert_array_equal(got[:2], params["table"][jnp.array([4, 0])])
    assert jnp.isnan(got[2:]).all()


def test_none_adds_nothing():
    hooks = ("assign", "init", "embed", "rotate", "bias", "mask")
    assert all(getattr(NoPosition, hook) is getattr(Position, hook) for hook in hooks)
    found = features(NoPosition(), {}, jnp.arange(9))
    assert (found["embed"] == 1).all() and (found["rotate"] == normal(K)[None, None]).all()
    assert (found["bias back"] == 0).all() and (found["bias both ways"] == 0).all()


@pytest.mark.parametrize(
    "position, longest, model",
    [
        (Learned(max_length=FAR), FAR, {}),
        (Alibi(), FAR, {"width": 18, "heads": 3}),
        (Rope(), FAR, {"width": 6, "heads": 2}),
        (Sinusoidal(), FAR, {"width": 15, "heads": 1}),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_what_cannot_be_encoded_is_refused(position, longest, model):
    with pytest.raises(Refused, match=position.name):
        config(position, longest, **model).check()


def test_a_table_of_exactly_the_longest_sequence_is_accepted():
    config(Learned(max_length=FAR + 1)).check()


@every
def test_gradients_are_finite(position, key):
    params, place_1xL = position.init(key, WIDTH, HEADS), jnp.array([[NO_PLACE, 0, 5]])

    def total(params, x_BxLxD):
        x_BxLxHxK = x_BxLxD.reshape(1, 3, HEADS, K)
        bias = position.bias(params, place_1xL, place_1xL, HEADS, True)
        return (
            position.embed(params, x_BxLxD, place_1xL).sum()
            + position.rotate(params, x_BxLxHxK, place_1xL).sum()
            + bias.sum()
        )

    gradient = jax.grad(total, argnums=(0, 1))(params, normal(1, 3, WIDTH))
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(gradient))
