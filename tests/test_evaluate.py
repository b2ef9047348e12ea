import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _tiny import LENGTH, TABLE, init, prepare, replace, seed_of, trained

from e2h import batches, decode, evaluate, layouts, parallel, train
from e2h.config import Config
from e2h.layouts.causal import Causal
from e2h.layouts.tagging import Tagging
from e2h.models.transformer import Transformer
from e2h.splits import TEST
from e2h.splits.complexity import Complexity
from e2h.splits.length import Length
from e2h.tasks import answer_words, prompt_words
from e2h.tasks.pointer_chasing import PointerChasing

POINTERS = Config(task=PointerChasing(), split=Complexity(test_max=9), layout=Tagging(), model=Transformer())


def swept(config, state, parts=None):
    """{part: [(difficulties, Cell [S, N]) of each program]}"""
    found = {}
    for part, capacity, difficulties in (s for s in evaluate.sweeps(config) if s[0] in (parts or config.split.parts)):
        run = parallel.sweep(config, part, capacity)
        cells = run(prepare(config), parallel.members(config), state.params, difficulties)
        found.setdefault(part, []).append((difficulties, jax.device_get(cells)))
    return found


@pytest.fixture(scope="module")
def scores():
    """Of fresh and of trained states."""
    return {c: [swept(c, s) for s in (init(c), trained(c, 20)[0])] for c in (TABLE, LENGTH)}


@pytest.mark.parametrize(
    "config",
    [
        TABLE,
        LENGTH,
        POINTERS,
        replace(LENGTH, split=Length(train_min=3, train_max=40, test_max=500, test_every=10), buckets=7),
        replace(LENGTH, split=Length(train_max=1, test_max=2)),
    ],
)
def test_sweeps_cover_every_difficulty_once_in_few_shapes(config):
    found = {}
    for part, capacity, difficulties in evaluate.sweeps(config):
        assert max(difficulties) <= capacity
        found.setdefault(part, []).append(difficulties)
    assert list(found) == list(config.split.parts)
    for part, groups in found.items():
        assert sorted(sum(groups, ())) == list(config.split.difficulties(config.task, part))
        assert len(groups) <= 1 + np.log2(config.longest)


@pytest.mark.parametrize("config", [TABLE, LENGTH], ids=["table", "length"])
def test_the_same_problems_are_scored_at_every_step(config, scores):
    fresh, late = scores[config]
    again = swept(config, init(config))
    for part in config.split.parts:
        for (_, a), (_, b), (_, c) in zip(fresh[part], again[part], late[part], strict=True):
            jax.tree.map(np.testing.assert_array_equal, a, b)
            jax.tree.map(np.testing.assert_array_equal, (a.complexity, a.commonest), (c.complexity, c.commonest))
            np.testing.assert_array_equal(a.score.problems, c.score.problems)
            assert (a.score.loss != c.score.loss).any()


def test_a_table_is_scored_as_a_whole(scores):
    parts = scores[TABLE][0]
    counts = [parts[part][0][1].score.problems.sum(1) for part in TABLE.split.parts]
    np.testing.assert_array_equal(sum(counts), [TABLE.task.size] * 2)


def test_problems_that_come_up_twice_are_counted_once(scores):
    for part, programs in scores[LENGTH][0].items():
        for difficulties, cell in programs:
            for difficulty, problems_S in zip(difficulties, cell.score.problems.T, strict=True):
                assert (problems_S <= min(LENGTH.test_size, LENGTH.task.distinct(difficulty))).all()
                if part == "test_length":  # 32 draws of 128 or more mostly differ
                    assert (problems_S > LENGTH.test_size / 2).all()


@pytest.mark.parametrize("config", [TABLE, LENGTH], ids=["table", "length"])
def test_sums_and_counts_equal_a_recount_with_the_oracle(config, scores):
    state = trained(config, 20)[0]
    part, seed = config.split.parts[-1], 1
    params, data = seed_of(state.params, seed), seed_of(prepare(config), seed)
    for difficulties, cell in scores[config][1][part]:
        capacity, difficulty = max(difficulties), difficulties[0]
        make = jax.jit(lambda d, c=capacity: batches.test_batch(config, data, seed, part, 0, d, c))
        problems, batch = jax.device_get(make(difficulty))
        logits = np.asarray(train.forward(config, params, batch))[:, 0]
        counts, right, length, answers = 0, 0, 0, []
        for i in np.flatnonzero(batch.weight_BxR[:, 0]):
            problem = jax.tree.map(lambda a, i=i: a[i], problems)
            words = prompt_words(config.task, problem)
            assert config.task.oracle(words) == answer_words(config.task, problem)
            said = config.layout.classes(config.task)[logits[i].argmax()]
            answers += config.task.oracle(words)
            counts, right, length = counts + 1, right + (answers[-1] == said), length + len(words)
        score = jax.tree.map(lambda a: a[seed, 0], cell.score)
        assert (score.problems, score.exact, score.reads, score.right) == (counts, right, counts, right)
        assert cell.complexity.length[seed, 0] == length
        assert cell.commonest[seed, 0] == max(answers.count(a) for a in answers)


@pytest.fixture
def scored_as(monkeypatch):
    """Scores of the table's tests when the network is replaced by `logits(params, batch)`; one for each of params."""

    def score(config, logits, params_S):
        monkeypatch.setattr(train, "forward", lambda config, params, batch: logits(params, batch))
        data = seed_of(prepare(config), 0)
        sweep = jax.vmap(lambda params: evaluate.sweep(config, TEST, 1, data, 0, params, jnp.ones(1, int)))
        return jax.device_get(jax.jit(sweep)(params_S))

    return score


def test_the_right_answer_scores_1_and_its_shift_0(scored_as):
    def say(shift, batch):
        return jax.nn.one_hot((batch.target_BxR + shift) % 5, 5) * 9

    score = scored_as(TABLE, say, jnp.arange(2)).score
    np.testing.assert_array_equal(score.exact[:, 0], score.problems[:, 0] * [1, 0])
    np.testing.assert_array_equal(score.right, score.exact)
    assert score.loss[0, 0] < 0.01 * score.problems[0, 0] < score.loss[1, 0]


def test_a_constant_answer_scores_its_rate_and_the_best_of_them_the_commonest(scored_as):
    def say(c, batch):
        return jnp.broadcast_to(jax.nn.one_hot(c, 5), (*batch.target_BxR.shape, 5))

    cell = scored_as(replace(TABLE, test_size=4), say, jnp.arange(5))  # in several blocks
    assert cell.score.exact.sum() == cell.score.problems[0, 0]
    assert cell.score.exact.max() == cell.commonest[0, 0] > cell.score.exact.min()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_logits_that_are_not_finite_never_score(scored_as, bad):
    def say(c, batch):
        return jax.nn.one_hot(batch.target_BxR, 5) + jnp.where(jnp.arange(5) == c, bad, 0.0)[None, None]

    score = scored_as(TABLE, say, jnp.arange(5)).score
    assert (score.problems > 0).all() and not score.exact.any() and not score.right.any()


def test_an_answer_is_exact_if_the_model_says_all_of_it_by_itself():
    """A network that answers 1 after the separator, and then <end>, or after the 1 of every second seed a 0."""
    config = replace(LENGTH, layout=Causal(), test_size=16)
    assert config.layout.vocabulary(config.task) == ("0", "1", "=", "<end>")
    state = init(config)
    says = np.zeros((2, 4, 4), np.float32)  # after each token (rows), for each seed
    says[:, [0, 1, 2], [3, 3, 1]] = 1
    says[1, 1] = [1, 0, 0, 0]
    eyes, zeros = jnp.broadcast_to(jnp.eye(4), (2, 4, 4)), jax.tree.map(jnp.zeros_like, state.params)
    params = {**zeros, "input": eyes, "readout": {**zeros["readout"], "kernel": jnp.array(says)}}

    def forced(difficulty):
        """Problems that are odd; those that are right at every read, each with the true earlier tokens given."""
        _, batch = batches.test_batch(config, (), 0, TEST, 0, difficulty, 6)
        _, exact_B = layouts.score(batch, train.forward(config, seed_of(params, 0), batch), jnp.float32(0))
        return ((batch.target_BxR[:, 0] == 1) & (batch.weight_BxR[:, 0] > 0)).sum(), exact_B.sum()

    for difficulties, cell in swept(config, state._replace(params=params), [TEST])[TEST]:
        odd_N, exact_N = jax.jit(jax.vmap(forced))(jnp.array(difficulties))
        np.testing.assert_array_equal(cell.score.exact, [odd_N, np.zeros(len(difficulties))])
        np.testing.assert_array_equal(odd_N, exact_N)
        assert odd_N.sum() > 0


def test_the_exact_score_of_a_generating_layout_is_of_what_was_generated(monkeypatch):
    config, generated = replace(LENGTH, layout=Causal()), []
    monkeypatch.setattr(decode, "generate", lambda config, params, batch: generated.append(batch) or batch.target_BxR)
    params = seed_of(init(config).params, 0)
    jax.eval_shape(lambda: evaluate.sweep(config, TEST, 6, (), 0, params, jnp.ones(1, int)))
    assert generated


@pytest.mark.parametrize("config", [TABLE, LENGTH], ids=["table", "length"])
def test_an_untrained_model_scores_chance(config):
    config, part = replace(config, seeds=8), config.split.parts[-1]
    ((difficulties, cell),) = swept(config, init(config), [part])[part]
    score_S = cell.score.exact.sum(1) / cell.score.problems.sum(1)
    error = score_S.std(ddof=1) / np.sqrt(8)
    assert abs(score_S.mean() - config.task.chance(difficulties[0])) < 3 * error < 0.2


def test_measures_are_sums_and_counts_over_training_problems():
    config = replace(TABLE, measures=("weight_norm", "zero_loss", "softmax_collapse"))
    state = init(config)
    found = parallel.measure(config)(prepare(config), parallel.members(config), state.params, 0)
    assert set(found) == set(config.measures)
    total, count = found["weight_norm"]
    squares = sum(np.square(np.float64(w)).sum((1, 2)) for w in jax.tree.leaves(state.params))
    np.testing.assert_allclose(total, np.sqrt(squares), rtol=1e-6)
    np.testing.assert_array_equal(count, [1, 1])
    for name in ("zero_loss", "softmax_collapse"):
        np.testing.assert_array_equal(found[name], [[0, 0], [TABLE.batch_size] * 2])
