"""The answers that were wrong, the surest or the farthest off first, as a person would want to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2
from typing import Any

from bertkit.data import tagging
from bertkit.evaluation import squad
from bertkit.report.facts import Facts, Row, texts_of

MOST = 50
LONGEST = 1500  # characters of a text that are shown
NONE = "(none)"


@dataclass(frozen=True)
class Piece:
    """A stretch of text. mark: right, wrong or missed, of entities; gold, answer or both, of spans. label: its type."""

    text: str
    mark: str = ""
    label: str = ""


@dataclass(frozen=True)
class Mistake:
    """One wrong answer. row: from 1. lines: name -> the text in pieces, where parts of it are marked."""

    row: int
    gold: str
    answer: str
    measure: float
    texts: tuple[str, ...] = ()
    lines: tuple[tuple[str, tuple[Piece, ...]], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mistakes:
    """The first 50 of them by their measure. wrong, of: how many there are, of how many rows or queries."""

    wrong: int
    of: int
    unit: str
    measure: str  # what they are sorted by
    shown: tuple[Mistake, ...]


def mistakes(facts: Facts) -> Mistakes | None:
    """Those of the split that is looked at; None where the run folder does not tell."""
    found_by = MISTAKES.get(facts.task)
    if found_by is None or not facts.rows:
        return None
    unit, measure, found = found_by(facts)
    wrong = sorted(found, key=lambda each: -each.measure)
    of = len(facts.rows) if unit == "rows" else len(first_ranks(facts))
    shown = (replace(each, texts=tuple(shortened(text) for text in each.texts)) for each in wrong[:MOST])
    return Mistakes(len(wrong), of, unit, measure, tuple(shown))


def shortened(text: str, most: int = LONGEST) -> str:
    """At most so many characters, the middle left out."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def label_of(facts: Facts, value: Any) -> str:
    """The name of a label, by the value that the rows have for it."""
    names = facts.options.get("labels") or []
    known = dict(names) if isinstance(names, Mapping) or all(isinstance(name, list) for name in names) else {}
    return str(known.get(str(value), value))


Found = tuple[str, str, Iterable[Mistake]]  # rows or queries, what they are sorted by, and those that were wrong


def labels(facts: Facts) -> Found:
    """Wrong labels, or numbers by how far they are off."""
    if facts.options.get("kind") == "regression":
        return "rows", "off by", _distances(facts, [abs(row["answer"]["score"] - row["score"]) for row in facts.rows])
    find = _several if facts.options.get("kind") == "multi-label" else _one
    return "rows", "confidence", find(facts)


def _one(facts: Facts) -> Iterator[Mistake]:
    for number, row in enumerate(facts.rows, 1):
        gold, answer = label_of(facts, row["label"]), row["answer"]
        if answer["label"] != gold:
            yield Mistake(number, gold, answer["label"], answer["score"], texts_of(row))


def _several(facts: Facts) -> Iterator[Mistake]:
    """The surest wrong decision about one label is the row's measure."""
    for number, row in enumerate(facts.rows, 1):
        gold, given = {label_of(facts, value) for value in row["labels"]}, set(row["answer"]["labels"])
        if gold == given:
            continue
        scores = row["answer"]["scores"]
        surest = max(scores[name] if name in given else 1 - scores[name] for name in gold ^ given)
        yield Mistake(number, _listed(gold), _listed(given), surest, texts_of(row))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or NONE


def _distances(facts: Facts, distances: Sequence[float]) -> Iterator[Mistake]:
    for number, (row, distance) in enumerate(zip(facts.rows, distances, strict=True), 1):
        if distance:
            yield Mistake(number, f"{grade(row):g}", f"{row['answer']['score']:.3f}", distance, texts_of(row))


def grade(row: Row) -> float:
    """The number that a row has as its target."""
    return float(row["score"] if row.get("label") is None else row["label"])


def _ranks_apart(facts: Facts) -> Found:
    """Grades and scores are of different scales, so that their ranks are compared."""
    from scipy.stats import rankdata

    golds, given = rankdata([grade(r) for r in facts.rows]), rankdata([r["answer"]["score"] for r in facts.rows])
    return "rows", "ranks apart", _distances(facts, abs(golds - given).tolist())


def sentences(facts: Facts) -> Found:
    """Sentences whose entities are not all right."""
    return "rows", "confidence", (each for i, row in enumerate(facts.rows, 1) if (each := _sentence(i, row)))


def _sentence(number: int, row: Row) -> Mistake | None:
    words = row["answer"]["words"]
    gold, found = tagging.entities(row["tags"]), tagging.entities([word["tag"] for word in words])
    if gold == found:
        return None
    scores = [entity["score"] for entity in row["answer"]["entities"]]
    wrong = [score for entity, score in zip(found, scores, strict=True) if entity not in gold]
    missed = [words[first]["score"] for kind, first, end in gold if (kind, first, end) not in found]
    cut = [word["word"] for word in words]
    lines = (("gold", _tagged(cut, gold, found, "missed")), ("predicted", _tagged(cut, found, gold, "wrong")))
    names = [
        "; ".join(f"{kind} {' '.join(cut[first:end])}" for kind, first, end in own) or NONE for own in (gold, found)
    ]
    return Mistake(number, names[0], names[1], max(wrong or missed), lines=lines)


def _tagged(
    words: Sequence[str], own: Sequence[tagging.Entity], other: Sequence[tagging.Entity], mark: str
) -> tuple[Piece, ...]:
    pieces, done = [], 0
    for kind, first, end in own:
        pieces += [Piece(" ".join(words[done:first]))] if first > done else []
        pieces.append(Piece(" ".join(words[first:end]), "right" if (kind, first, end) in other else mark, kind))
        done = end
    return (*pieces, Piece(" ".join(words[done:])))


def questions(facts: Facts) -> Found:
    """Questions whose answer is no gold one, to the letter."""
    return "rows", "confidence", (each for i, row in enumerate(facts.rows, 1) if (each := _question(i, row)))


def _question(number: int, row: Row) -> Mistake | None:
    answer, gold = row["answer"], row["answers"]
    if squad.question_scores(answer["answer"], gold["text"])[0]:
        return None
    spans = {(start, start + len(text)) for text, start in zip(gold["text"], gold["answer_start"], strict=True)}
    own = {(answer["start"], answer["end"])} if answer["answer"] else set[tuple[int, int]]()
    best = [f"{shortened(each['answer'], 80)} {each['score']:.2f}" for each in answer["n_best"][:5]]
    best += [f"no answer {answer['null_score']:.2f}"] if answer["null_score"] else []
    return Mistake(
        number,
        " | ".join(dict.fromkeys(gold["text"])) or NONE,
        answer["answer"] or NONE,
        answer["score"],
        (row["question"],),
        (("context", _spans(row["context"], spans, own)),),
        (f"n-best: {'; '.join(best)}",) if best else (),
    )


def _spans(text: str, gold: Iterable[tuple[int, int]], own: Iterable[tuple[int, int]]) -> tuple[Piece, ...]:
    """The text, cut wherever a span begins or ends; what no span covers is shortened."""
    cuts = sorted({0, len(text), *(place for span in (*gold, *own) for place in span)})
    pieces = []
    for start, end in pairwise(cuts):
        in_gold, in_own = (any(a <= start and end <= b for a, b in spans) for spans in (gold, own))
        mark = {(True, True): "both", (True, False): "gold", (False, True): "answer"}.get((in_gold, in_own), "")
        pieces.append(Piece(text[start:end] if mark else shortened(text[start:end], 400), mark))
    return tuple(pieces)


def pairs(facts: Facts) -> Found:
    """Pairs: wrong labels, ranks that are apart, or positives that others outrank."""
    first = facts.rows[0]
    if "score" in first:
        return _ranks_apart(facts)
    if "positive" in first:
        return "rows", "rank of the positive", _outranked(facts)
    names = list(facts.options.get("labels") or ())
    numbered = {str(place): name for place, name in enumerate(names)}
    return (
        "rows",
        "score",
        (
            Mistake(number, gold, row["answer"]["label"], row["answer"]["score"], texts_of(row))
            for number, row in enumerate(facts.rows, 1)
            if (gold := row["label"] if row["label"] in names else numbered.get(str(row["label"]), str(row["label"])))
            != row["answer"].get("label", gold)
        ),
    )


def _outranked(facts: Facts) -> Iterator[Mistake]:
    for number, row in enumerate(facts.rows, 1):
        rank = row["answer"]["rank"]
        if rank > 1:
            yield Mistake(number, "rank 1", f"rank {rank}, cosine {row['answer']['score']:.3f}", rank, texts_of(row))


def named(row: Row, side: str) -> str:
    """What tells a query or a document from others: its id, or its text."""
    given = row.get(f"{side}_id", row.get("group") if side == "query" else None)
    return str(row[side] if given is None else given)


def asked(facts: Facts) -> list[list[tuple[int, Row]]]:
    """The rows of each query, with their numbers; documents that nobody asks for are left out."""
    queries: dict[str, list[tuple[int, Row]]] = {}
    for number, row in enumerate(facts.rows, 1):
        if row["query"]:
            queries.setdefault(named(row, "query"), []).append((number, row))
    return list(queries.values())


def ranked(own: Sequence[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """(rank, row) of a query's relevant documents, best first: among all documents, or among its own rows."""
    rows = [row for _, row in own]
    if "grade" in rows[0]:
        return sorted(((row["answer"]["rank"], row) for row in rows if row["grade"]), key=lambda pair: pair[0])
    order = sorted(rows, key=lambda row: (-row["answer"]["score"], grade(row)))  # a tie is no gain
    return [(rank, row) for rank, row in enumerate(order, 1) if grade(row) > 0]


def searched(facts: Facts) -> bool:
    """Does the order of a query's documents count? Not where text-ranking was told pairs that stand alone."""
    return facts.task == "retrieval" or (facts.task == "text-ranking" and bool(facts.options.get("grouped")))


def first_ranks(facts: Facts) -> list[int]:
    """The rank of each query's first relevant document, of the queries that have one."""
    return [relevant[0][0] for own in asked(facts) if (relevant := ranked(own))]


def ndcg(relevant: Sequence[tuple[int, Row]]) -> float:
    """nDCG@10 (Järvelin & Kekäläinen 2002) of a query, from its relevant documents as `ranked` gives them."""
    gains = [float(row["grade"]) if "grade" in row else grade(row) for _, row in relevant]
    best = sum(gain / log2(place + 1) for place, gain in enumerate(sorted(gains, reverse=True)[:10], 1))
    return sum(gain / log2(rank + 1) for gain, (rank, _) in zip(gains, relevant, strict=True) if rank <= 10) / best


def ndcgs(facts: Facts) -> list[float]:
    """nDCG@10 of each query that has a relevant document, and where only its own rows are ranked another one."""
    found = [ranked(own) for own in asked(facts) if len(own) > 1 or "grade" in own[0][1]]
    return [ndcg(relevant) for relevant in found if relevant]


def searches(facts: Facts) -> Found:
    """Queries whose first document is not relevant; of pairs that stand alone, ranks that are apart."""
    if not searched(facts):
        return _ranks_apart(facts)
    return "queries", "rank of the first relevant", _failed(facts)


def _failed(facts: Facts) -> Iterator[Mistake]:
    """Queries whose first hit is not relevant: what is, and what was found instead."""
    documents = {named(row, "document"): row["document"] for row in facts.rows}
    for own in asked(facts):
        relevant, (number, first) = ranked(own), own[0]
        if not relevant or relevant[0][0] == 1:
            continue
        found = [(documents[hit["id"]], hit["score"]) for _, row in own for hit in row["answer"].get("found", ())]
        if "grade" not in first:
            found = sorted(((r["document"], r["answer"]["score"]) for _, r in own), key=lambda pair: -pair[1])
        gold = [f"{shortened(row['document'], 300)} (rank {rank})" for rank, row in relevant[:3]]
        hits = [f"{shortened(text, 300)} ({score:.3f})" for text, score in found[:3]]
        notes = (f"nDCG@10 {ndcg(relevant):.3f}",)
        yield Mistake(number, "\n\n".join(gold), "\n\n".join(hits), relevant[0][0], (first["query"],), (), notes)


MISTAKES: Mapping[str, Callable[[Facts], Found]] = {
    "text-classification": labels,
    "token-classification": sentences,
    "question-answering": questions,
    "sentence-similarity": pairs,
    "retrieval": searches,
    "text-ranking": searches,
}
