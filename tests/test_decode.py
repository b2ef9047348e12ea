"""Greedy generation against the teacher-forced logits of the same model, and where it stops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _networks import FAST, batch, configs, params, stack

from e2h import decode, train
from e2h.layouts import score
from e2h.tasks import BLANK

SEEDS, ROWS = 32, 12
CASES = list({c.values[0].model.name: c for c in configs("causal")[::-1]}.values())  # one of each model
every = functools.partial(pytest.mark.parametrize, "config")


@functools.cache
def compiled(config):
    """For parameters and batches of many seeds: (generated ids, teacher-forced exact matches)."""

    def both(params, x):
        exact_B = score(x, train.forward(config, params, x), jnp.zeros(()))[1]
        return decode.generate(config, params, x), exact_B

    return jax.jit(jax.vmap(both), compiler_options=FAST)


@functools.cache
def generated(config):
    """(parameters, batches, generated ids, teacher-forced exact matches) of random models."""
    x = batch(config, rows=ROWS)
    params_S, batch_S = stack(*[params(config, x, seed) for seed in range(SEEDS)]), stack(*[x] * SEEDS)
    return params_S, batch_S, *map(np.asarray, compiled(config)(params_S, batch_S))


def answered(config, x, answer_SxBxR):
    """The batch with other answers: up to their end marks they are targets, and fed to the model."""
    tokens, length, weight = (np.array(a) for a in (x.tokens_BxLxC, x.length_B, x.weight_BxR))
    for s, b in np.ndindex(length.shape):
        answer, start = answer_SxBxR[s, b], int(x.read_BxR[s, b, 0])
        said = list(answer).index(config.layout.end(config.task)) if config.layout.end(config.task) in answer else None
        reads = len(answer) if said is None else said + 1
        tokens[s, b, start + 1 : start + reads, 0] = answer[: reads - 1]
        length[s, b], weight[s, b] = start + reads, np.arange(len(answer)) < reads
    fed = [jnp.asarray(a) for a in (tokens, length, answer_SxBxR, weight)]
    return x._replace(tokens_BxLxC=fed[0], length_B=fed[1], target_BxR=fed[2], weight_BxR=fed[3])


def exact(said, x):
    return ((said == np.asarray(x.target_BxR)) | (np.asarray(x.weight_BxR) == 0)).all(-1)


@every(CASES)
def test_generated_answers_are_exact_where_teacher_forced_ones_are(config):
    params_S, batch_S, said, forced = generated(config)
    np.testing.assert_array_equal(exact(said, batch_S), forced)
    # The targets become what the model says, then the same with one word of every other answer changed.
    right = answered(config, batch_S, said)
    wrong = said.copy()
    read = np.random.default_rng(0).integers(0, np.asarray(right.weight_BxR).sum(-1).astype(int))
    rows = np.arange(ROWS) % 2 == 1
    end = config.layout.end(config.task)
    for s, b in np.argwhere(np.broadcast_to(rows, read.shape)):
        wrong[s, b, read[s, b]] = (wrong[s, b, read[s, b]] + 1) % end  # any other word than the end mark
    mixed = answered(config, batch_S, wrong)
    said_again, forced = map(np.asarray, compiled(config)(params_S, mixed))
    np.testing.assert_array_equal(forced, np.broadcast_to(~rows, forced.shape))
    np.testing.assert_array_equal(exact(said_again, mixed), forced)
    np.testing.assert_array_equal(said_again, said)  # whatever answers stand in the batch


@every(CASES)
def test_after_its_end_mark_a_row_is_filled_with_end_marks(config):
    said = generated(config)[2]
    ended = said == config.layout.end(config.task)
    assert (ended == np.maximum.accumulate(ended, -1)).all()
    assert ended[..., -2].any() and not ended[..., -2].all()


class Script:
    """A network that says given words, one after another, and writes down what it is fed."""

    def __init__(self, words_BxR, classes):
        self.logits_BxRxV, self.fed = jax.nn.one_hot(jnp.array(words_BxR), classes), []

    def apply(self, variables, *args, method):
        if method == "prefill":
            return self.logits_BxRxV[:, 0], 0
        cache, token_B, index_B, _ = args
        self.fed.append((token_B.tolist(), index_B.tolist()))
        return self.logits_BxRxV[:, cache + 1], cache + 1


def three(config):
    return jax.tree.map(lambda a: a[:3], batch(config, rows=ROWS))


def test_generation_stops_when_every_row_has_ended(monkeypatch):
    config = CASES[0].values[0]
    end, x = config.layout.end(config.task), three(config)
    network = Script([[3, end, 5, 5, 5], [end, 7, 7, 7, 7], [1, 2, end, 8, 8]], end + 1)
    monkeypatch.setattr(train, "network", lambda config: network)
    with jax.disable_jit():
        said = decode.generate(config, {}, x)
    assert said.tolist() == [[3, *[end] * 4], [end] * 5, [1, 2, *[end] * 3]]
    start = np.asarray(x.read_BxR[:, 0])
    assert network.fed == [([3, end, 1], (start + 1).tolist()), ([end, end, 2], (start + 2).tolist())]


def test_logits_that_are_not_finite_say_nothing(monkeypatch):
    config = CASES[0].values[0]
    network = Script([[0, 1, 2, 3, 4]] * 3, config.layout.end(config.task) + 1)
    network.logits_BxRxV = network.logits_BxRxV.at[1, 0].set(jnp.nan).at[2, 3, 5].set(jnp.inf)
    monkeypatch.setattr(train, "network", lambda config: network)
    with jax.disable_jit():
        said = decode.generate(config, {}, three(config))
    assert said.tolist() == [[0, 1, 2, 3, 4], [BLANK, 1, 2, 3, 4], [0, 1, 2, BLANK, 4]]
