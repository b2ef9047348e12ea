"""In every layout of every task the problem is all there, the answer is asked for once, and nothing gives it away."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from _instances import cut, draw, instances, label, quick_jit, take

from e2h import registry
from e2h.config import Config
from e2h.layouts import Batch, extend, score
from e2h.layouts.causal import Causal
from e2h.layouts.query import Query
from e2h.layouts.table import Table
from e2h.layouts.tagging import Tagging
from e2h.models import Network
from e2h.models.rnn import RNN
from e2h.registry import Refused
from e2h.splits.length import Length
from e2h.tasks import BLANK, NO_PLACE, answer_words, problem, prompt_words
from e2h.tasks.addition import Addition
from e2h.tasks.modular import Modular
from e2h.tasks.parity import Parity

ROWS = 20
LAYOUTS = [*instances("layout"), Table(equals=True)]
PAIRS = [(layout, task) for task in instances() for layout in LAYOUTS if layout.name in task.layouts]
every_pair = pytest.mark.parametrize("layout, task", PAIRS, ids=lambda c: label(c))


def capacities(task):
    """A small capacity and a larger one."""
    return tuple(min(task.lowest + more, task.highest) for more in (3, 7))


@functools.cache
def problems(task, large: bool):
    """Problems that fit the small capacity, in arrays of either."""
    small = capacities(task)[0]
    x = draw(task, task.lowest + np.arange(ROWS) % (small - task.lowest + 1), capacities(task)[1])
    return cut(task, x, capacities(task)[large])


@functools.cache
def arranged(layout, task, large: bool = False):
    """(problems, batch, batch of other padding, batch of other answers)."""
    x = problems(task, large)
    p, a = x.prompt_PxC.shape[1], x.answer_A.shape[1]
    inside_NxP, inside_NxA = (np.arange(n) < m[:, None] for n, m in ((p, x.prompt_length), (a, x.answer_length)))
    padded = x._replace(
        prompt_PxC=np.where(inside_NxP[..., None], x.prompt_PxC, 1),
        place_P=np.where(inside_NxP, x.place_P, 77),
        answer_A=np.where(inside_NxA, x.answer_A, 1),
    )
    answered = x._replace(answer_A=(x.answer_A + 1) % len(task.answer_vocabulary))
    arrange = quick_jit(jax.vmap(lambda x: layout.arrange(task, x)))
    return (x, *(jax.device_get(arrange(v)) for v in (x, padded, answered)))


def text(words, tokens_LxC):
    return ["".join(words[c] for c in token if c != BLANK) for token in tokens_LxC]


@every_pair
def test_the_prompt_is_read_back_from_the_tokens(layout, task):
    x, batch, *_ = arranged(layout, task)
    words = layout.vocabulary(task)
    assert len(set(words)) == len(words)
    for i in range(ROWS):
        n = x.prompt_length[i]
        assert text(words, batch.tokens_BxLxC[i, :n]) == prompt_words(task, take(x, i))
        if task.channels == 1:  # and the words lead back to the tokens
            assert [words.index(w) for w in prompt_words(task, take(x, i))] == batch.tokens_BxLxC[i, :n, 0].tolist()


@every_pair
def test_targets_at_the_reads_that_count_spell_the_answer(layout, task):
    x, batch, *_ = arranged(layout, task)
    words, end = layout.classes(task), ["<end>"] if layout.generates else []
    for i in range(ROWS):
        target, weight = batch.target_BxR[i], batch.weight_BxR[i]
        assert [words[t] for t in target[weight > 0]] == answer_words(task, take(x, i)) + end
        assert weight.tolist() == sorted(weight, reverse=True) and set(weight) <= {0.0, 1.0}
        assert weight.sum() == x.answer_length[i] + len(end)


@every_pair
def test_reads_that_count_lie_inside_and_the_others_beyond_the_answer_but_in_the_array(layout, task):
    x, batch, *_ = arranged(layout, task)
    counts = batch.weight_BxR > 0
    assert (batch.read_BxR[counts] < np.broadcast_to(batch.length_B[:, None], counts.shape)[counts]).all()
    assert batch.read_BxR.min() >= 0 and batch.read_BxR.max() < batch.tokens_BxLxC.shape[1]
    assert (batch.length_B <= batch.tokens_BxLxC.shape[1]).all()
    asks = np.where(counts, batch.read_BxR, batch.tokens_BxLxC.shape[1])
    if layout.name != "tagging":  # one token for each read, in order, the last one being the sequence's last
        assert (np.diff(np.sort(asks, 1), axis=1)[counts[:, 1:]] == 1).all()
        assert (np.where(counts, batch.read_BxR, 0).max(1) == batch.length_B - 1).all()
    else:
        np.testing.assert_array_equal(batch.read_BxR, x.at_A)


@every_pair
def test_no_token_up_to_a_read_depends_on_the_answer_there_or_later(layout, task):
    _, batch, _, other = arranged(layout, task)
    np.testing.assert_array_equal(batch.length_B, other.length_B)
    np.testing.assert_array_equal(batch.place_BxL, other.place_BxL)
    first = batch.read_BxR[:, :1]
    shown = np.arange(batch.tokens_BxLxC.shape[1]) <= (first if layout.generates else batch.length_B[:, None])
    np.testing.assert_array_equal(batch.tokens_BxLxC[shown], other.tokens_BxLxC[shown])
    assert (batch.target_BxR != other.target_BxR)[:, 0].all()


GENERATING = [(layout, task) for layout, task in PAIRS if layout.generates]


@pytest.mark.parametrize("layout, task", GENERATING, ids=lambda c: label(c))
def test_answer_tokens_are_fed_one_after_the_read_that_asks_for_them(layout, task):
    """So a model that does not look ahead sees the tokens before number k of the answer when asked for number k."""
    _, batch, *_ = arranged(layout, task)
    for tokens, length, reads, targets, weights in zip(
        batch.tokens_BxLxC[..., 0], batch.length_B, batch.read_BxR, batch.target_BxR, batch.weight_BxR, strict=True
    ):
        counted = int(weights.sum())
        fed = tokens[reads[0] + 1 : length]
        assert reads[:counted].tolist() == list(range(reads[0], length))
        assert fed.tolist() == targets[: counted - 1].tolist()
        assert layout.vocabulary(task)[tokens[reads[0]]] == "=" and targets[counted - 1] == layout.end(task)
        assert layout.end(task) not in tokens[:length]


@every_pair
def test_padding_is_blank_and_its_old_content_changes_nothing(layout, task):
    _, batch, other, _ = arranged(layout, task)
    padding = np.arange(batch.tokens_BxLxC.shape[1]) >= batch.length_B[:, None]
    assert (batch.tokens_BxLxC[padding] == BLANK).all()
    for field in ("tokens_BxLxC", "length_B", "place_BxL", "weight_BxR"):
        np.testing.assert_array_equal(getattr(batch, field), getattr(other, field))
    counts = batch.weight_BxR > 0
    np.testing.assert_array_equal(batch.read_BxR[counts], other.read_BxR[counts])
    np.testing.assert_array_equal(batch.target_BxR[counts], other.target_BxR[counts])


@every_pair
def test_arrays_have_the_promised_sizes(layout, task):
    _, batch, *_ = arranged(layout, task)
    capacity = capacities(task)[0]
    length, reads = layout.length(task, capacity), layout.reads(task, capacity)
    assert batch.tokens_BxLxC.shape == (ROWS, length, task.channels) and batch.place_BxL.shape == (ROWS, length)
    assert batch.read_BxR.shape == batch.target_BxR.shape == batch.weight_BxR.shape == (ROWS, reads)
    assert batch.length_B.max() == length  # no longer than need be
    inside = np.arange(length) < batch.length_B[:, None]
    assert batch.tokens_BxLxC[inside].max() < len(layout.vocabulary(task)) and batch.tokens_BxLxC.min() >= BLANK
    assert batch.target_BxR.max() < len(layout.classes(task)) and batch.target_BxR.min() >= 0


@every_pair
def test_places_are_the_tasks_and_then_count_on(layout, task):
    x, batch, *_ = arranged(layout, task)
    for i in range(ROWS):
        n = x.prompt_length[i]
        assert batch.place_BxL[i, :n].tolist() == x.place_P[i, :n].tolist()
        assert batch.place_BxL[i, n : batch.length_B[i]].tolist() == list(range(n, batch.length_B[i]))


GROWING = [(layout, task) for layout, task in PAIRS if len(set(map(task.shape, capacities(task)))) == 2]


@pytest.mark.parametrize("layout, task", GROWING, ids=lambda c: label(c))
def test_a_larger_capacity_only_adds_padding(layout, task):
    _, small, *_ = arranged(layout, task)
    _, large, *_ = arranged(layout, task, True)
    for field, ours in small._asdict().items():
        theirs = getattr(large, field)
        cut = theirs[:, : ours.shape[1]] if ours.ndim > 1 else theirs
        counts = small.weight_BxR > 0 if field in ("read_BxR", "target_BxR") else np.ones(ours.shape, bool)
        np.testing.assert_array_equal(ours[counts], cut[counts])
    reads = small.weight_BxR.shape[1]
    assert (large.weight_BxR[:, reads:] == 0).all()
    assert (large.tokens_BxLxC[:, small.tokens_BxLxC.shape[1] :] == BLANK).all()


@pytest.mark.parametrize(
    "name, task, tokens, targets",
    [
        ("causal", Addition(), "6 5 3 + 7 4 9 = 1 4 0 2", "1 4 0 2 <end>"),
        ("query", Addition(zero_pad=True), "0 5 + 4 0 <query> <query> <query>", "0 4 5"),
        ("tagging", Parity(), "1 0 1 1", "1"),
        ("table", Modular(p=7), "6 5", "4"),
        ("causal", Modular(p=7), "6 5 = 4", "4 <end>"),
    ],
)
def test_a_problem_written_by_hand_looks_as_documented(name, task, tokens, targets):
    layout = registry.load("layout", name)()
    words, classes = layout.vocabulary(task), task.answer_vocabulary
    prompt = [w for w in tokens.partition(" =")[0].split() if w != "<query>"]
    answer = [w for w in targets.split() if w != "<end>"]
    x = problem(
        np.array([words.index(w) for w in prompt]),
        len(prompt),
        np.array([classes.index(w) for w in answer]),
        len(answer),
    )
    batch = jax.device_get(quick_jit(functools.partial(layout.arrange, task))(x))
    assert text(words, batch.tokens_BxLxC[: batch.length_B]) == tokens.split()
    assert [layout.classes(task)[t] for t in batch.target_BxR[batch.weight_BxR > 0]] == targets.split()


def test_an_equals_sign_moves_the_read_of_a_table():
    assert arranged(Table(), Modular())[1].read_BxR.tolist() == [[1]] * ROWS
    with_equals = arranged(Table(equals=True), Modular())[1]
    assert with_equals.read_BxR.tolist() == [[2]] * ROWS
    assert {Table(equals=True).vocabulary(Modular())[t] for t in with_equals.tokens_BxLxC[:, 2, 0]} == {"="}


def test_slots_follow_the_prompt_and_not_its_padding():
    x = problem(np.array([4, 5, 9, 9]), 2, 0, place=np.array([NO_PLACE, 8, 9, 9]))
    tokens, place = extend(x, 2)
    assert tokens[:, 0].tolist() == [4, 5] + [BLANK] * 4 and place.tolist() == [NO_PLACE, 8, 2, 3, 4, 5]


@pytest.mark.parametrize("layout, task", [(Query(), Addition()), (Table(), Parity()), (Tagging(), Modular())], ids=str)
def test_a_layout_that_the_task_does_not_have_is_refused(layout, task):
    with pytest.raises(Refused, match=f"task {task.name} has no layout {layout.name}"):
        layout.check(Config(task=task, layout=layout))


# ---- scores


def scored(logits_BxRxV, target_BxR, weight_BxR):
    batch = Batch(None, None, None, None, np.array(target_BxR, np.int32), np.array(weight_BxR, np.float32))
    total, exact_B = score(batch, jax.numpy.array(logits_BxRxV, np.float32), np.float32(3.5))
    return [float(v) for v in total], exact_B.tolist()


def test_a_problem_is_exact_if_all_its_reads_are_right_and_reads_of_weight_0_do_not_count():
    says = np.eye(3)[[[0, 1], [0, 2], [2, 2], [1, 1]]]  # the arg max of each read
    total, exact = scored(says, [[0, 1], [0, 1], [2, 0], [1, 1]], [[1, 1], [1, 1], [1, 0], [0, 0]])
    assert exact == [True, False, True, False]
    assert total == [3.0, 2.0, 5.0, 4.0, 3.5]  # problems, exact, reads, right, loss


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_read_that_is_not_finite_is_wrong(broken):
    assert scored([[[9.0, broken]], [[9.0, 1.0]]], [[0], [0]], [[1], [1]])[1] == [False, True]


@dataclasses.dataclass(frozen=True)
class Silent(RNN):
    def network(self, **_):
        return Network()


def test_generating_needs_a_network_that_can():
    config = Config(task=Addition(), split=Length(), layout=Causal(), model=RNN())
    config.check()
    with pytest.raises(Refused, match=r"layout causal scores what is generated, .* has no prefill\."):
        dataclasses.replace(config, model=Silent()).check()
