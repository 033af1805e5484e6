"""nDCG, MRR, MAP and recall by hand and by their definitions, with ties, queries without answers and empty runs."""

from __future__ import annotations

import builtins
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DataError, ModelError, UserError
from bertkit.evaluation import ranking
from bertkit.evaluation.ranking import measures, scored

NAMES = ["ndcg@10", "mrr@10", "map", "recall@1", "recall@5", "recall@10", "recall@100"]


def in_order(*documents: str) -> dict[str, float]:
    """A run of one query: these documents, best first, with scores below zero as well as above."""
    return {document: 1.5 - rank for rank, document in enumerate(documents)}


def test_scores_by_hand():
    qrels = {"q": {"a": 3, "b": 2, "c": 1, "d": 0, "e": 1}}
    found = measures({"q": in_order("x", "b", "d", "a", "c")}, qrels, ks=(1, 2, 4))
    gained = 2 / math.log2(3) + 3 / math.log2(5) + 1 / math.log2(6)
    best = 3 + 2 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)
    assert list(found) == ["ndcg@10", "mrr@10", "map", "recall@1", "recall@2", "recall@4"]
    assert found["ndcg@10"]["q"] == pytest.approx(gained / best, abs=1e-12)
    assert found["mrr@10"] == {"q": 1 / 2}
    assert found["map"]["q"] == pytest.approx((1 / 2 + 2 / 4 + 3 / 5) / 4, abs=1e-12)  # e is not found
    assert [found[f"recall@{k}"]["q"] for k in (1, 2, 4)] == [0, 1 / 4, 2 / 4]


def test_nothing_counts_after_rank_ten_but_in_map_and_recall():
    run = {"q": in_order(*(f"x{rank:02}" for rank in range(10)), "a")}
    found = {name: values["q"] for name, values in measures(run, {"q": {"a": 1}}).items()}
    assert found == {**dict.fromkeys(NAMES, 0.0), "map": pytest.approx(1 / 11), "recall@100": 1.0}


def test_the_best_order_has_all_judged_documents_not_only_those_found():
    found = measures({"q": {"a": 1.0}}, {"q": {"a": 1, "b": 3}})
    assert found["ndcg@10"]["q"] == pytest.approx(1 / (3 + 1 / math.log2(3)), abs=1e-12)


def test_ties_go_by_document_id_in_any_order_of_the_run():
    qrels = {"q": {"b": 1}}
    for documents in (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")):
        assert measures({"q": dict.fromkeys(documents, 0.25)}, qrels)["mrr@10"] == {"q": 1 / 2}


def test_scores_that_differ_in_the_last_bit_of_64_are_no_tie():
    above = math.nextafter(0.5, 1)
    assert measures({"q": {"a": 0.5, "b": above}}, {"q": {"b": 1}})["mrr@10"] == {"q": 1.0}
    assert measures({"q": {"a": above, "b": 0.5}}, {"q": {"a": 1}})["mrr@10"] == {"q": 1.0}


def test_infinite_scores_have_a_rank():
    run = {"q": {"a": -math.inf, "b": 0.0, "c": math.inf}}
    assert measures(run, {"q": {"a": 1}})["mrr@10"] == {"q": 1 / 3}


def test_queries_with_nothing_found_or_nothing_to_find_count_as_0():
    qrels = {"right": {"a": 1}, "not asked": {"a": 1}, "found nothing": {"a": 1}, "nothing to find": {"a": 0}}
    run = {"right": {"a": 1.0}, "found nothing": {}, "nothing to find": {"a": 1.0}}
    found = measures(run, qrels)
    assert list(found) == NAMES
    assert all(values == {**dict.fromkeys(qrels, 0.0), "right": 1.0} for values in found.values())
    assert all(list(values) == list(qrels) for values in found.values())
    assert scored(found).scores == dict.fromkeys(NAMES, 0.25)


def test_queries_without_judgements_are_left_out():
    assert list(measures({"q": {"a": 1.0}, "other": {"a": 1.0}}, {"q": {"a": 1}})["map"]) == ["q"]


def test_an_empty_run_scores_0():
    assert scored(measures({}, {"q": {"a": 1}})).scores == dict.fromkeys(NAMES, 0.0)


def test_judgements_for_other_queries_are_an_error():
    with pytest.raises(
        DataError, match="no query of the run has judgements: the run has '1', the judgements have 'q1'"
    ):
        measures({"1": {"a": 1.0}}, {"q1": {"a": 1}})
    with pytest.raises(DataError, match="no judgements"):
        measures({"1": {"a": 1.0}}, {})


def test_a_score_that_is_not_a_number_is_an_error():
    with pytest.raises(ModelError, match="document 'b' for query 'q' is not a number"):
        measures({"q": {"a": 1.0, "b": math.nan}}, {"q": {"a": 1}})


def test_ks_are_positive():
    with pytest.raises(ValueError, match="positive"):
        measures({}, {"q": {"a": 1}}, ks=(0, 5))


def test_without_the_library_the_extra_is_named(monkeypatch):
    import_module = builtins.__import__

    def absent(name, *arguments):
        if name == "ir_measures":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return import_module(name, *arguments)

    monkeypatch.delitem(sys.modules, "ir_measures", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(
        UserError, match=r"needs ir_measures, which is not installed\s+pip install \"bertkit\[retrieval\]"
    ):
        ranking.measures({}, {"q": {"a": 1}})


DOCUMENTS = [f"d{number}" for number in range(14)]
GRADES = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 4), min_size=1)
SCORES = st.dictionaries(st.sampled_from(DOCUMENTS), st.sampled_from([-1.0, -0.5, 0.0, 1e-9, 0.5, 2.0, 1e30]))


def by_definition(scores: dict[str, float], grades: dict[str, int], k: int) -> dict[str, float]:
    """Each score as its definition has it, one rank at a time."""
    order = sorted(sorted(scores), key=scores.__getitem__, reverse=True)  # reverse keeps the order of equal scores
    relevant = [document for document, grade in grades.items() if grade]
    hits = [document in relevant for document in order]

    def discounted(gains: list[int]) -> float:
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:10], 1))

    best = discounted(sorted(grades.values(), reverse=True))
    first = next((rank for rank, hit in enumerate(hits, 1) if hit), None)
    precisions = [sum(hits[:rank]) / rank for rank, hit in enumerate(hits, 1) if hit]
    return {
        "ndcg@10": discounted([grades.get(document, 0) for document in order]) / best if best else 0,
        "mrr@10": 1 / first if first is not None and first <= 10 else 0,
        "map": sum(precisions) / len(relevant) if relevant else 0,
        f"recall@{k}": sum(hits[:k]) / len(relevant) if relevant else 0,
    }


@given(st.lists(st.tuples(SCORES, GRADES), min_size=1, max_size=4), st.integers(1, 20))
def test_scores_are_those_of_the_definitions(queries, k):
    run = {f"q{number}": scores for number, (scores, _) in enumerate(queries)}
    qrels = {f"q{number}": grades for number, (_, grades) in enumerate(queries)}
    found = measures(run, qrels, ks=(k,))
    for query in qrels:
        expected = by_definition(run[query], qrels[query], k)
        assert {name: values[query] for name, values in found.items()} == pytest.approx(expected, abs=1e-12)
    average = {name: np.mean(list(values.values())) for name, values in found.items()}
    assert scored(found).scores == pytest.approx(average, abs=1e-12)


def test_intervals_are_those_of_resampled_queries():
    rng = np.random.default_rng(3)
    queries = [f"q{number}" for number in range(60)]
    run = {query: {document: float(rng.normal()) for document in DOCUMENTS} for query in queries}
    qrels = {query: {str(rng.choice(DOCUMENTS)): 1} for query in queries}
    found = measures(run, qrels)
    given_intervals = scored(found).intervals(resamples=400, seed=7)
    assert list(given_intervals) == NAMES
    draw = np.random.default_rng(7)
    resampled = np.array([draw.integers(0, 60, 60) for _ in range(400)])
    for name, values in found.items():
        low, high = np.quantile(np.array(list(values.values()))[resampled].mean(axis=1), [0.025, 0.975])
        assert given_intervals[name] == pytest.approx((low, high), abs=1e-12)
    assert given_intervals["ndcg@10"][0] < scored(found).scores["ndcg@10"] < given_intervals["ndcg@10"][1]
