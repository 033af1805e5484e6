"""Scores of generated texts against sacrebleu on the rows themselves, and the baselines."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from bertkit.errors import UserError
from bertkit.evaluation.translation import METRICS, Translations, baselines

WORDS = "the cat sat on a mat , and dogs ran out of it . Zwölf große Äpfel".split()


def corpus(rows: int, seed: int) -> tuple[list[str], list[str]]:
    """References, and texts that share some of their words, all of them, or none; a text may be empty."""
    rng = np.random.default_rng(seed)
    texts, references = [], []
    for _ in range(rows):
        reference = list(rng.choice(WORDS, rng.integers(1, 14)))
        kept = rng.random(len(reference)) < rng.choice([0.0, 0.6, 0.9, 1.0])
        texts.append(" ".join(np.where(kept, reference, rng.choice(WORDS, len(reference))) if kept.any() else []))
        references.append(" ".join(reference))
    return texts, references


def by_sacrebleu(texts: list[str], references: list[str]) -> dict[str, float]:
    return {
        "bleu": corpus_bleu(texts, [references]).score,
        "chrf": corpus_chrf(texts, [references]).score,
        "exact_match": sum(a == b for a, b in zip(texts, references, strict=True)) / len(texts),
    }


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_scores_are_sacrebleus(rows: int) -> None:
    texts, references = corpus(rows, seed=rows)
    scores = Translations(texts, references).scores
    assert tuple(scores) == METRICS
    assert scores == pytest.approx(by_sacrebleu(texts, references), rel=1e-12)
    assert rows < 40 or all(value > 0 for value in scores.values())


@pytest.mark.parametrize("seed", range(10))
def test_weights_are_repeated_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts, references = corpus(30, seed)
    weights = rng.integers(0, 3, (30, 4))
    values = Translations(texts, references).scored.weighted(weights.astype(float))
    for column in range(4):
        rows = np.repeat(np.arange(30), weights[:, column])
        wanted = by_sacrebleu([texts[row] for row in rows], [references[row] for row in rows])
        assert {name: value[column] for name, value in values.items()} == pytest.approx(wanted, rel=1e-12)


def test_an_exact_match_may_differ_in_whitespace_alone() -> None:
    graded = Translations(["a  cat ", "A cat", "a cat.", ""], ["a cat", "a cat", "a cat .", ""])
    assert graded.scores["exact_match"] == 0.5


def test_the_signatures_are_those_of_the_scores() -> None:
    texts, references = corpus(3, seed=0)
    told = Translations(texts, references).details()["signatures"]
    assert told["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert told["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_length_ratio_and_single_texts_are_sacrebleus() -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    texts, references = corpus(12, seed=4)
    graded = Translations(texts, references, unfinished=2)
    assert graded.details()["length_ratio"] == pytest.approx(BLEU().corpus_score(texts, [references]).ratio)
    assert graded.details()["unfinished"] == 2
    wanted = [CHRF().sentence_score(text, [other]).score for text, other in zip(texts, references, strict=True)]
    assert graded.chrf_of_rows() == pytest.approx(wanted)
    assert len({*wanted}) > 5
    assert Translations(["a"], [""]).details()["length_ratio"] == 0


def test_without_sacrebleu_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sacrebleu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r'pip install "bertkit\[translation\]"'):
        _ = Translations(["a"], ["a"]).scores


def test_baselines_copy_the_source_or_take_the_target_of_the_nearest() -> None:
    sources = ["the red cat sleeps", "two dogs bark loudly", "nothing in common"]
    train = (
        ["a dog barks", "two dogs bark", "the red cat"],
        ["ein Hund bellt", "zwei Hunde bellen laut", "die rote Katze"],
    )
    references = ["die rote Katze", "zwei Hunde bellen laut", "nothing in common"]
    found = baselines(*train, sources, references)
    assert found["copy"] == Translations(sources, references).scores
    answers = ["die rote Katze", "zwei Hunde bellen laut", "ein Hund bellt"]  # of equals, the first
    assert found["nearest"] == Translations(answers, references).scores
    assert found["nearest"]["exact_match"] == pytest.approx(2 / 3)
    assert list(baselines(["!"], ["."], sources, references)) == ["copy"]


def test_nearest_is_the_one_of_all_pairs_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    train, targets = corpus(60, seed=5)
    sources, references = corpus(23, seed=6)
    whole = baselines(train, targets, sources, references)
    monkeypatch.setattr("bertkit.evaluation.translation.CHUNK", 4)
    assert baselines(train, targets, sources, references) == whole
