"""nDCG, MRR, MAP and recall by hand and by their definitions, with queries without answers and empty runs."""

from __future__ import annotations

import builtins
import math
import sys

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DataError, UserError
from bertkit.evaluation import ranking
from bertkit.evaluation.ranking import measures, scored

NAMES = ["ndcg@10", "mrr@10", "map", "recall@1", "recall@5", "recall@10", "recall@100"]


def test_scores_by_hand():
    qrels = {"q": {"a": 3, "b": 2, "c": 1, "d": 0, "e": 1}}
    found = measures({"q": ["x", "b", "d", "a", "c"]}, qrels)
    gained = 2 / math.log2(3) + 3 / math.log2(5) + 1 / math.log2(6)
    best = 3 + 2 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)
    assert list(found) == NAMES
    assert found["ndcg@10"]["q"] == pytest.approx(gained / best, abs=1e-12)
    assert found["mrr@10"] == {"q": 1 / 2}
    assert found["map"]["q"] == pytest.approx((1 / 2 + 2 / 4 + 3 / 5) / 4, abs=1e-12)  # e is not found
    assert [found[f"recall@{k}"]["q"] for k in (1, 5)] == [0, 3 / 4]


def test_queries_with_nothing_found_or_nothing_to_find_count_as_0():
    qrels = {"right": {"a": 1}, "not asked": {"a": 1}, "found nothing": {"a": 1}, "nothing to find": {"a": 0}}
    run = {"right": ["a"], "found nothing": [], "nothing to find": ["a"]}
    found = measures(run, qrels)
    assert list(found) == NAMES
    assert all(values == {**dict.fromkeys(qrels, 0.0), "right": 1.0} for values in found.values())
    assert all(list(values) == list(qrels) for values in found.values())
    assert scored(found).scores == dict.fromkeys(NAMES, 0.25)
    assert scored(measures({}, {"q": {"a": 1}})).scores == dict.fromkeys(NAMES, 0.0)


def test_rows_without_a_query_are_an_error():
    rows = Dataset.from_list([{"query": "", "document": "a", "grade": 1.0}])
    with pytest.raises(DataError, match="no judgements"):
        ranking.GradedSearches([{}], rows).scores  # noqa: B018


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
FOUND = st.lists(st.sampled_from(DOCUMENTS), unique=True)


def by_definition(order: list[str], grades: dict[str, int]) -> dict[str, float]:
    """Each score as its definition has it, one rank at a time."""
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
