"""text-ranking: the scores of CrossEncoder both ways, measures against scikit-learn and trec_eval, losses by
hand.
"""

import json
import math
import sys
from itertools import permutations

import numpy as np
import pytest
import torch
from cases import RANKING, SETTINGS, encoder
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sentence_transformers import CrossEncoder
from sklearn.metrics import average_precision_score, ndcg_score
from small import raises, read_as, write_rows
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline, set_seed
from transformers.modeling_outputs import SequenceClassifierOutput

import bertkit
from bertkit.encoding.padding import Collator
from bertkit.errors import DataError, ModelError, UserError
from bertkit.evaluation import ranking, similarity
from bertkit.evaluation.metrics import regression
from bertkit.evaluation.ranking import measures, scored
from bertkit.evaluation.reranking import RankedRows, query_numbers
from bertkit.inference.predictor import Predictor
from bertkit.models.encoder import load_tokenizer
from bertkit.models.heads.vector_head import read_limits
from bertkit.tasks.base import prepare
from bertkit.tasks.text_ranking import TextRanking, TextRankingOptions
from bertkit.training.seed import save

CPU = torch.device("cpu")
LONG = "the cat sat on the mat and the dog was good . " * 9
PAIRS = [
    ("the cat ?", "a dog was awful"),
    ("", "yes"),
    ("the cat ?", ""),
    ("two bad dog s", LONG),
    (LONG, "no"),
    (LONG, LONG[:-40]),
    ("🙂 good", "の猫 cat"),
]
SHORT = [("the cat ?", "a dog was awful"), ("one mat", "yes"), ("🙂 good", "の猫 cat")]
QUERIES = ["the cat ?"] * 3 + ["a dog ?"] * 3
DOCUMENTS = ["the cat sat", "a dog ran", "it was red", "the dog is bad", "good cat", "one mat"]


def rows(targets, column="label", **more):
    count = len(targets)
    return Dataset.from_dict(
        {"query": QUERIES[:count], "document": DOCUMENTS[:count], column: targets, **more}
    )


def task(folder, data, max_length=32, **options):
    options = {"name": "text-ranking", **options}
    return prepare(
        TextRanking, TextRankingOptions.model_validate(options), load_tokenizer(folder), max_length, data, []
    )


def spread(model):
    """The model with weights so large that texts get scores far from each other."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


def fresh(made, folder):
    set_seed(1)
    return Predictor(made, spread(made.model(encoder(folder))), CPU, "fp32", 4, {})


def scores(predictor, pairs):
    return [answer["score"] for answer in predictor([{"query": q, "document": d} for q, d in pairs])]


def features_batch(made, features):
    return Collator.of(made.tokenizer, made.padding)(features[:])


# --- the same scores as CrossEncoder


@pytest.mark.parametrize("options", [{}, {"loss": "listwise"}, {"loss": "mse", "activation": "identity"}])
def test_cross_encoder_gives_the_same_scores(options, tiny_encoder, tmp_path):
    """Also of texts that are cut: it is told where."""
    made = task(tiny_encoder, rows([1, 0, 0, 1, 0, 0]), max_length=24, **options)
    predictor = fresh(made, tiny_encoder)
    save(predictor.model, made, tmp_path / "model", SETTINGS)
    ours = scores(bertkit.load(tmp_path / "model", precision="fp32"), PAIRS)
    theirs = CrossEncoder(f"{tmp_path}/model", device="cpu")
    assert_allclose(ours, theirs.predict(PAIRS), rtol=0, atol=1e-5)
    assert ours == pytest.approx(scores(predictor, PAIRS), abs=1e-6)
    assert np.ptp(ours) > 0.2
    assert theirs.max_seq_length == 24
    assert (min(ours) > 0 and max(ours) < 1) is (options == {})


@pytest.mark.parametrize("activation", ["sigmoid", "identity"])
def test_the_pipeline_of_transformers_gives_the_same_scores(activation, tiny_encoder, tmp_path):
    made = task(tiny_encoder, rows([1, 0, 0]), activation=activation)
    predictor = fresh(made, tiny_encoder)
    save(predictor.model, made, tmp_path / "model", SETTINGS)
    classify = pipeline("text-classification", model=f"{tmp_path}/model", device="cpu")
    answers = [classify({"text": q, "text_pair": d}) for q, d in SHORT]
    flat = [answer[0] if isinstance(answer, list) else answer for answer in answers]
    assert_allclose(scores(predictor, SHORT), [answer["score"] for answer in flat], atol=1e-5)


RECORDED = [
    (where, name) for where in ("config", "old config", "own file") for name in ("Sigmoid", "Identity")
]


@pytest.mark.parametrize(("where", "activation"), [("nowhere", "Sigmoid"), *RECORDED])
def test_a_stock_cross_encoder_answers_as_it_did(where, activation, tiny_encoder, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_encoder, num_labels=1)
    kind = getattr(torch.nn, activation)
    path = f"{kind.__module__}.{activation}"
    if where == "config":
        model.config.sentence_transformers = {"activation_fn": path, "version": "4.0.1"}
    elif where == "old config":
        model.config.sbert_ce_default_activation_function = path
    spread(model).save_pretrained(tmp_path / "stock")
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path / "stock")
    theirs = CrossEncoder(f"{tmp_path}/stock", device="cpu")
    if where == "own file":
        theirs.activation_fn = kind()
        theirs.max_seq_length = 20
        theirs.save(f"{tmp_path}/stock")
        theirs = CrossEncoder(f"{tmp_path}/stock", device="cpu")
    ours = bertkit.load(tmp_path / "stock", task="text-ranking", precision="fp32")
    assert_allclose(scores(ours, PAIRS), theirs.predict(PAIRS), rtol=0, atol=1e-5)
    assert ours.task.max_length == theirs.max_seq_length == (20 if where == "own file" else 64)


def test_foreign_models_that_give_no_score_are_refused(tiny_encoder, tmp_path):
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_encoder, num_labels=3)
    model.save_pretrained(tmp_path)
    raises(ModelError, r"3 outputs.*\n?.*text-classification", bertkit.load, tmp_path, task="text-ranking")
    model = AutoModelForSequenceClassification.from_pretrained(tiny_encoder, num_labels=1)
    model.config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    model.save_pretrained(tmp_path)
    raises(ModelError, "Tanh", bertkit.load, tmp_path, task="text-ranking")
    (tmp_path / "modules.json").write_text("[]")
    for length in (-1, 3, "long", True, 1.5):
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
        raises(ModelError, r"max_seq_length: expected a whole number from 8 on, found", read_limits, tmp_path)


# --- measures


queries_of_rows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-20, 20)), min_size=2, max_size=40
)


def ranked(data, grouped=None, graded=True):
    groups, grades, given_scores = (np.asarray(column) for column in zip(*data, strict=True))
    numbers = query_numbers([str(group) for group in groups], None)
    return RankedRows(grades.astype(np.float64), (given_scores / 7).tolist(), numbers, grouped, graded)


@settings(max_examples=60)
@given(queries_of_rows)
def test_measures_are_those_of_scikit_learn_and_trec_eval(data):
    # no ties
    distinct = [(group, grade, score * 100 + place) for place, (group, grade, score) in enumerate(data)]
    found = ranked(distinct, grouped=True)
    per_query, first, sizes = found.per_query
    judged = {}
    run = {}
    for place, (group, grade, score) in enumerate(distinct):
        judged.setdefault(str(group), {})[f"d{place}"] = grade
        run.setdefault(str(group), {})[f"d{place}"] = score / 7
    order = {query: sorted(scores, key=lambda name: -scores[name]) for query, scores in run.items()}
    measured = ranking.measures(order, judged)
    assert sizes.tolist() == [len(documents) for documents in judged.values()]
    counted = []
    for number, query in enumerate(judged):
        grades = list(judged[query].values())
        if len(grades) > 1 and any(grades):
            counted.append(query)
            assert per_query[number] == pytest.approx(measured["ndcg@10"][query])
            assert per_query[number] == pytest.approx(ndcg_score([grades], [list(run[query].values())], k=10))
        else:
            assert math.isnan(per_query[number])
        reciprocal = 1 / first[number] if first[number] <= 10 else 0
        assert reciprocal == pytest.approx(measured["mrr@10"][query])
    means = found.scores
    for name in ("ndcg@10", "mrr@10"):
        if counted:
            assert means[name] == pytest.approx(np.mean([measured[name][query] for query in counted]))
        else:
            assert means[name] is None


def test_average_precision_is_that_of_scikit_learn_over_all_pairs():
    """Of queries with several documents, with one, and without a relevant one."""
    data = [(0, 0, 9), (0, 1, 5), (0, 1, 4), (1, 1, 9), (2, 0, 1), (2, 0, 2)]
    found = ranked(data, graded=False)
    assert found.grouped
    expected = average_precision_score([g for _, g, _ in data], [s for _, _, s in data])
    assert found.scores["average_precision"] == pytest.approx(expected)


def test_pairs_that_stand_alone_are_correlated():
    data = [(0, 0, 1), (0, 3, 2), (1, 2, 2), (2, 1, 5), (2, 2, 9)]
    assert ranked(data, grouped=False).pairs() == ([1 / 7, 2 / 7, 2 / 7, 5 / 7, 9 / 7], [0, 3, 2, 1, 2])
    found = ranked(data, grouped=False).scores
    expected = regression([g for _, g, _ in data], [s / 7 for _, _, s in data]).scores
    assert found == pytest.approx({"spearman": expected["spearman"], "pearson": expected["pearson"]})


def test_intervals_are_over_queries():
    """Half of 20 queries have their relevant document first, half second: each weighs as one."""
    data = [row for n in range(20) for row in ((n, 1, 5 if n % 2 else 1), (n, 0, 3))]
    scored = ranked(data, graded=False).scored
    assert scored.rows == 20
    low, high = scored.intervals()["mrr@10"] or (0, 0)
    assert scored.scores["mrr@10"] == 0.75
    assert low < 0.75 < high
    weights = np.zeros((20, 1))
    weights[1] = 20
    assert scored.weighted(weights)["mrr@10"] == [1.0]


def test_names_part_queries_of_one_text():
    assert query_numbers("a b a a".split(), None).tolist() == [0, 1, 0, 0]
    assert query_numbers("a b a a".split(), "1 1 2 a".split()).tolist() == [0, 0, 1, 2]
    assert query_numbers("a b a a".split(), ["1", None, "", "a"]).tolist() == [0, 1, 2, 3]
    assert query_numbers("a b a".split(), ["", "", ""]).tolist() == [0, 1, 0]


# --- what the data settle


@pytest.mark.parametrize(
    ("data", "options", "settled", "headline"),
    [
        (rows([1, 0, 0]), {}, ("binary", "sigmoid", [0, 1], False, True), "ndcg@10"),
        (rows([1, 0, 0], "score"), {}, ("binary", "sigmoid", [0, 1], False, True), "ndcg@10"),
        (rows([2, 0, 5], "score"), {}, ("mse", "sigmoid", [0, 5], True, True), "ndcg@10"),
        (rows([2, 0, 5], "score"), {"grouped": False}, ("mse", "sigmoid", [0, 5], True, False), "spearman"),
        (rows([2, 0], "score", group=["1", "2"]), {}, ("mse", "sigmoid", [0, 2], True, False), "spearman"),
        (
            rows([1, 0], group=["1", "2"]),
            {},
            ("binary", "sigmoid", [0, 1], False, False),
            "average_precision",
        ),
        (rows([1, 0, 0]), {"loss": "listwise"}, ("listwise", "identity", [0, 1], False, True), "ndcg@10"),
        (
            rows([1, 2], "score"),
            {"loss": "binary", "score_range": [0.0, 5.0], "activation": "identity"},
            ("binary", "identity", [0, 5], True, True),
            "ndcg@10",
        ),
    ],
)
def test_what_is_left_open_is_settled_by_train(data, options, settled, headline, tiny_encoder):
    made = task(tiny_encoder, data, **options)
    found = made.options
    assert (found.loss, found.activation, found.score_range, found.graded, found.grouped) == settled
    assert made.metrics[0] == headline
    assert set(made.metrics) <= made.options.metrics
    again = TextRanking(
        TextRankingOptions.model_validate(json.loads(made.options.model_dump_json())), made.tokenizer, 32
    )
    assert again.options == made.options
    assert all(str(word) in made.describe() for word in settled[:2])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (rows([1, 1, 1]), {}, "every row of train has the target 1"),
        (rows([3, 3], "score"), {"loss": "listwise"}, "nothing to learn"),
        (
            rows([1, 9], "score"),
            {"score_range": [0.0, 5.0]},
            r"score_range: \[0, 5\], but targets of train go from 1 to 9",
        ),
        (rows([1, 9], "score"), {"score_range": [9.0, 1.0]}, "score_range"),
        (rows([1, 0], group=["1", "2"]), {"grouped": True}, "every query of train has one document"),
        (
            rows([1, 0], group=["1", "2"]),
            {"loss": "listwise"},
            "none of train has two with different targets",
        ),
        (rows([1, 1, 0, 0], group=list("1122")), {"loss": "listwise"}, "none of train has two"),
    ],
)
def test_contradictions_are_said_before_training(data, options, message, tiny_encoder):
    raises(DataError, message, task, tiny_encoder, data, **options)


def read(folder, lines, splits=("train",), **spec):
    source = {split: write_rows(folder / f"{split}.jsonl", lines) for split in splits}
    return read_as(RANKING, source, **spec)


def test_bad_rows_are_all_named(tmp_path):
    line = {"query": "a", "document": "b"}
    given = [{**line, "label": label} for label in (1, 2, 0.5)]
    error = raises(DataError, r"columns: \{score", read, tmp_path, given)
    places = [problem.where.rpartition("/")[2] for problem in error.problems]
    assert places == ["train.jsonl:2", "train.jsonl:3"]
    raises(
        DataError,
        r"train\.jsonl:2.*not a finite number",
        read,
        tmp_path,
        [{**line, "score": 1}, {**line, "score": math.nan}],
    )
    raises(
        DataError,
        "1 of 2 rows of train has no `label`",
        read,
        tmp_path,
        [{**line, "label": 1}, {**line, "label": None}],
    )
    raises(DataError, "`document`", read, tmp_path, [{"query": "a", "text": "b", "label": 1}])
    file = write_rows(tmp_path / "test.jsonl", [{**line, "label": -1}] * 2)
    data = read_as(RANKING, {"test": file}, splits={"test"})  # labels of a test split may be secret
    assert data.rows["test"].column_names == ["query", "document"]


def test_findings_count_queries(tmp_path):
    lines = [
        {"query": q, "document": d, "label": n} for q, d, n in (("a", "1", 1), ("a", "2", 0), ("b", "3", 1))
    ]
    found = [finding.what for finding in read(tmp_path, lines).findings]
    assert found == [
        "train: 3 documents for 2 queries",
        "train: 1 of 2 queries have one document, or equal targets: nothing to order",
    ]
    alone = [finding.what for finding in read(tmp_path, lines[1:]).findings]
    assert alone == ["train: every query has one document; pairs are scored individually"]
    drawn = read(tmp_path, [*lines, *lines[::-1]], validation=0.4)
    assert any("queries lose documents" in finding.what for finding in drawn.findings)


# --- losses, windows, groups


def logits_of(values):
    return SequenceClassifierOutput(logits=torch.tensor(values, dtype=torch.float64)[:, None])


def test_losses_are_those_of_their_formulas(tiny_encoder):
    z = np.array([0.3, -1.2, 2.0])
    targets = np.array([0.0, 1.5, 5.0])
    data = rows(targets.tolist(), "score")
    scaled = targets / 5
    p = 1 / (1 + np.exp(-z))
    expected = {
        ("mse", "sigmoid"): ((p - scaled) ** 2).sum(),
        ("mse", "identity"): ((z - scaled) ** 2).sum(),
        ("binary", "sigmoid"): -(scaled * np.log(p) + (1 - scaled) * np.log(1 - p)).sum(),
    }
    for (loss, activation), value in expected.items():
        made = task(tiny_encoder, data, loss=loss, activation=activation)
        batch = features_batch(made, made.encode(data))
        assert float(made.loss(logits_of(z.tolist()), batch)) == pytest.approx(value, rel=1e-6)
        assert made.count(batch) == 3


def test_listwise_is_listnet_over_each_query(tiny_encoder):
    """Rows of three queries, mixed; the third has one row, which is neither a loss nor counted."""
    group = "x y x x y z".split()
    targets = [2.0, 0.0, 1.0, 0.0, 3.0, 1.0]
    data = rows(targets, "score", group=group)
    made = task(tiny_encoder, data, loss="listwise")
    features = made.features(data)
    assert features["row"][:] == [0, 2, 3, 1, 4, 5]
    assert list(made.units(features)) == [0, 0, 0, 1, 1, 2]
    z = np.array([0.5, -1.0, 0.2, 1.0, 0.4, 3.0])  # by row
    expected = 0.0
    for name in "xy":
        own = [row for row in range(6) if group[row] == name]
        truth = np.exp([targets[row] for row in own])
        expected -= ((truth / truth.sum()) * (z[own] - np.log(np.exp(z[own]).sum()))).sum()
    batch = features_batch(made, features)
    assert float(made.loss(logits_of(z[features["row"][:]].tolist()), batch)) == pytest.approx(
        expected, rel=1e-6
    )
    assert made.count(batch) == 2


def test_the_best_window_counts(tiny_encoder):
    data = rows([1, 0, 0])
    made = task(tiny_encoder, data, max_length=16, overflow="window", stride=4)
    predictor = fresh(made, tiny_encoder)
    long = "one two three four five . yes , awful mat up down " + LONG
    pair = Dataset.from_dict({"query": ["the cat ?", "yes"], "document": [long, "no"]})
    features = made.encode(pair)
    assert len(features) > 10
    by_window = np.asarray(predictor.predict_features(features), dtype=np.float64)
    best = [by_window[:-1].max(), by_window[-1]]
    assert by_window[0] < best[0] - 0.1
    answers = predictor(
        [{"query": q, "document": d} for q, d in zip(pair["query"], pair["document"], strict=True)]
    )
    assert [a["score"] for a in answers] == pytest.approx((1 / (1 + np.exp(-np.array(best)))).tolist())
    assert [a["truncated"] for a in answers] == [False, False]
    labelled = pair.add_column("label", [1.0, 0.0])
    batch = features_batch(made, made.encode(labelled))
    loss = made.loss(logits_of(by_window.tolist()), batch)
    assert float(loss) == pytest.approx(np.log1p(np.exp(-best[0])) + np.log1p(np.exp(best[1])), rel=1e-6)
    assert made.count(batch) == 2


def test_too_long_a_document_is_cut_and_said_or_refused(tiny_encoder):
    huge = {"query": "the cat ?", "document": "cat " * 25_000}
    cut = fresh(task(tiny_encoder, rows([1, 0, 0])), tiny_encoder)
    assert [a["truncated"] for a in cut([huge, {"query": "the cat ?", "document": "yes"}])] == [True, False]
    findings = list(cut.task.check(cut.task.encode(Dataset.from_list([huge])), "train"))
    assert any(
        "1 of 1 row (100.0%) is truncated at" in finding.what and finding.level == "warn"
        for finding in findings
    )
    strict = fresh(task(tiny_encoder, rows([1, 0, 0]), overflow="error"), tiny_encoder)
    raises(DataError, r"row 1.*25006 tokens", strict, [huge])


def test_damaged_outputs_are_said(tiny_encoder):
    made = task(tiny_encoder, rows([1, 0, 0]))
    data = rows([1, 0, 0])
    raises(
        ModelError,
        "NaN or infinite for 1 of 3 rows",
        made.decode,
        [np.float32(0), np.float32("nan"), np.float32(1)],
        made.encode(data),
        data,
    )


# --- all of it


def test_word_overlap_is_a_baseline_and_chance_another(tiny_encoder):
    data = Dataset.from_dict(
        {
            "query": [f"about {word}" for word in ("cats", "dogs", "birds") for _ in range(2)],
            "document": ["cats sleep", "rain falls", "snow falls", "dogs bark", "birds sing", "mats lie"],
            "label": [1.0, 0.0, 0.0, 1.0, 1.0, 0.0],
        }
    )
    made = task(tiny_encoder, data)
    found = made.baselines(data, data)
    assert found["tf-idf cosine"] == {"ndcg@10": 1.0, "mrr@10": 1.0, "average_precision": 1.0}
    assert found["random"] == made.baselines(data, data)["random"]
    assert found["random"]["ndcg@10"] != 1.0
    wordless = data.map(lambda row: {"query": "?", "document": "!"})
    assert list(made.baselines(wordless, data)) == ["random"]


# --- measures of searches

NAMES = "ndcg@10 mrr@10 map recall@1 recall@5 recall@10 recall@100".split()


def test_queries_with_nothing_found_or_nothing_to_find_count_as_0():
    qrels = {"right": {"a": 1}, "not asked": {"a": 1}, "found nothing": {"a": 1}, "nothing to find": {"a": 0}}
    run = {"right": ["a"], "found nothing": [], "nothing to find": ["a"]}
    found = measures(run, qrels)
    assert list(found) == NAMES
    assert all(values == {**dict.fromkeys(qrels, 0.0), "right": 1.0} for values in found.values())
    assert all(list(values) == list(qrels) for values in found.values())
    assert scored(found).scores == dict.fromkeys(NAMES, 0.25)
    assert scored(measures({}, {"q": {"a": 1}})).scores == dict.fromkeys(NAMES, 0.0)
    rows = Dataset.from_list([{"query": "", "document": "a", "grade": 1.0}])
    with pytest.raises(DataError, match="no row has a query"):
        ranking.GradedSearches([{}], rows).scores  # noqa: B018


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    raises(
        UserError,
        r"ir_measures is not installed\s+pip install \"bertkit\[retrieval\]",
        ranking.measures,
        {},
        {"q": {"a": 1}},
    )


NAMED = [f"d{number}" for number in range(14)]
GRADES = st.dictionaries(st.sampled_from(NAMED), st.integers(0, 4), min_size=1)
FOUND = st.lists(st.sampled_from(NAMED), unique=True)


def by_definition(order, grades):
    """Each score as its definition has it, one rank at a time."""
    relevant = [document for document, grade in grades.items() if grade]
    hits = [document in relevant for document in order]

    def discounted(gains):
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:10], 1))

    best = discounted(sorted(grades.values(), reverse=True))
    first = next((rank for rank, hit in enumerate(hits, 1) if hit), None)
    precisions = [sum(hits[:rank]) / rank for rank, hit in enumerate(hits, 1) if hit]
    return {
        "ndcg@10": discounted([grades.get(document, 0) for document in order]) / best if best else 0,
        "mrr@10": 1 / first if first is not None and first <= 10 else 0,
        "map": sum(precisions) / len(relevant) if relevant else 0,
        **{f"recall@{k}": sum(hits[:k]) / len(relevant) if relevant else 0 for k in (1, 5, 10, 100)},
    }


@given(st.lists(st.tuples(FOUND, GRADES), min_size=1, max_size=4))
def test_scores_are_those_of_the_definitions(queries):
    run = {f"q{number}": order for number, (order, _) in enumerate(queries)}
    qrels = {f"q{number}": grades for number, (_, grades) in enumerate(queries)}
    found = measures(run, qrels)
    for query in qrels:
        expected = by_definition(run[query], qrels[query])
        assert {name: values[query] for name, values in found.items()} == pytest.approx(expected, abs=1e-12)
    average = {name: np.mean(list(values.values())) for name, values in found.items()}
    assert scored(found).scores == pytest.approx(average, abs=1e-12)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 2))
def test_of_equal_scores_the_worst_order_counts_in_searches_rankings_and_pairs(documents, unjudged):
    """By brute force over the orders that the scores allow. documents: score and grade; the last are not
    judged.
    """
    names = [f"d{9 - number}" for number in range(len(documents))]
    scores, grades = zip(*documents, strict=True)
    judged = dict(zip(names[: len(names) - unjudged], grades, strict=False))
    allowed = [
        order
        for order in permutations(range(len(names)))
        if sorted(order, key=lambda d: -scores[d]) == [*order]
    ]

    def worst(graded):
        every = [by_definition([names[d] for d in order], graded) for order in allowed]
        return {name: min(each[name] for each in every) for name in every[0]}

    columns = {
        "query": ["q" if name in judged else "" for name in names],
        "document": names,
        "grade": [float(judged.get(name, 0)) for name in names],
    }
    if judged:
        rows = Dataset.from_dict(columns)
        answers = list(ranking.searched(rows, ["q"], names, np.ones((1, 1)), np.array(scores)[:, None]))
        found = ranking.GradedSearches(answers, rows).scores
        assert found == pytest.approx(worst(judged), abs=1e-12)
        expected = sorted(zip(scores, names, strict=True), key=lambda pair: (-pair[0], pair[1]))
        # whatever the order of rows
        assert [(hit["score"], hit["id"]) for hit in answers[0]["found"]] == expected
    per_query, first, _ = ranked([(0, grade, score) for score, grade in documents], grouped=True).per_query
    expected = worst(dict(zip(names, grades, strict=True)))
    if any(grades) and len(grades) > 1:
        assert (per_query[0], 1 / first[0]) == pytest.approx((expected["ndcg@10"], expected["mrr@10"]))
    alone = [worst({name: 1})["mrr@10"] for name in names]
    table = np.tile(np.array(scores), (len(names), 1))
    assert [1 / place for place in similarity.places(table, np.arange(len(names)))] == pytest.approx(alone)


def test_queries_without_an_order_are_not_counted():
    data = [(0, 1, 2), (0, 0, 1), *((number, 1, 1) for number in range(1, 25))]
    assert ranked(data, grouped=True, graded=False).details() == {"queries": 1}
    assert ranked(data, grouped=False, graded=False).details() == {}
