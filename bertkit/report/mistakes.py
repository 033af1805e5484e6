"""Wrong answers, the most confident or the farthest off first, as a person would want to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from bertkit.data import tagging
from bertkit.data.units import text_of
from bertkit.data.word_spans import Places, gold_entities
from bertkit.evaluation.similarity import MIDDLE
from bertkit.evaluation.squad_metrics import Rule, rule_of
from bertkit.evaluation.translation import Translations
from bertkit.report.facts import Facts, Row
from bertkit.report.rankings import Query, is_ranked, queries, target
from bertkit.tasks import get_task
from bertkit.text import Record, character_start

MAX_MISTAKES = 50  # that a report lists, beside those of other confusions
MAX_CONFUSIONS = 150  # with more, gold and answer are texts rather than labels
MAX_CHARACTERS = 1500  # of a text
NONE = "(none)"
MISSING_CHRF = "100 - chrF"
DISTANCES = ("off by", "ranks apart", MISSING_CHRF)  # measures by which every row is more or less wrong
OUTRANKED = "rank of the positive"


class Span(NamedTuple):
    """A part of a text. mark: how it is drawn. label: its type. share: strength of its colour, in [0, 1]."""

    text: str
    mark: str = ""
    label: str = ""
    share: float = 0.0


class Mistake(NamedTuple):
    """One wrong answer. row: from 1; where: its id, file and line. lines: name -> the text in parts, some
    marked.
    """

    row: int
    gold: str
    answer: str
    measure: float
    texts: tuple[str, ...] = ()
    lines: tuple[tuple[str, tuple[Span, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    where: str = ""


class Mistakes(NamedTuple):
    """Wrong answers, the largest `measure` first.

    total: how many rows or queries (`unit`) there are.
    """

    unit: str
    measure: str
    total: int
    every: Sequence[Mistake]

    @property
    def top(self) -> Sequence[Mistake]:
        """Those that a report lists: the first 50, and the first of every other confusion, unless there are
        many.
        """
        firsts = {(mistake.gold, mistake.answer): mistake for mistake in reversed(self.every)}
        more = {mistake.row for mistake in firsts.values()} if len(firsts) <= MAX_CONFUSIONS else set[int]()
        return [
            mistake for place, mistake in enumerate(self.every) if place < MAX_MISTAKES or mistake.row in more
        ]


def mistakes(facts: Facts) -> Mistakes | None:
    """The mistakes on the reported split; None if the run folder has no answers, or the task no right
    ones.
    """
    find = MISTAKES.get(facts.task) or (_of_task if get_task(facts.task).mistake else None)
    return find(facts) if find and facts.rows else None


def _of_task(facts: Facts) -> Mistakes:
    """Those that another package's task tells, the farthest off first."""
    task = get_task(facts.task)
    options = task.Options.model_construct(**facts.options)

    def find(facts: Facts, number: int, row: Row) -> Mistake | None:
        wrong: tuple[str, str, float] | None = task.mistake(options, row)  # gold, answer, distance
        return None if wrong is None else Mistake(number, *wrong, texts=_texts(facts, row))

    return _by_row(facts, "off by", find)


def _sorted(unit: str, measure: str, total: int, mistakes: Iterable[Mistake | None]) -> Mistakes:
    every = sorted(filter(None, mistakes), key=lambda mistake: -mistake.measure)
    return Mistakes(unit, measure, total, every)


def shortened(text: str, most: int = MAX_CHARACTERS) -> str:
    """The text without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    return (
        f"{text[: character_start(text, most // 2)]} … {text[character_start(text, len(text) - most // 2) :]}"
    )


def _texts(facts: Facts, row: Row) -> tuple[str, ...]:
    return tuple(map(shortened, facts.schema.shown(row).values()))


def label_of(facts: Facts, value: Any) -> str:
    """The name of a label, from its value in the rows."""
    names = facts.options.get("labels")
    return str(names.get(str(value), value) if isinstance(names, Mapping) else value)


def _by_row(facts: Facts, measure: str, find: Callable[[Facts, int, Row], Mistake | None]) -> Mistakes:
    """The mistakes of single rows. find: row and its number from 1 -> its mistake, if it is one."""
    listed = (find(facts, number, row) for number, row in enumerate(facts.rows, 1))
    placed = (mistake and mistake._replace(where=place_of(facts.rows[mistake.row - 1])) for mistake in listed)
    return _sorted("rows", measure, len(facts.rows), placed)


def place_of(row: Row) -> str:
    """The id of a row, if it has one, and its file and line."""
    return ", ".join(str(row[name]) for name in ("id", "location") if row.get(name))


def _labels(facts: Facts) -> Mistakes:
    """Wrong labels, or numbers by how far they are off."""
    kind = facts.options.get("kind")
    if kind == "regression":
        return _off(facts, "off by", [abs(row["answer"]["score"] - row["score"]) for row in facts.rows])
    return _by_row(facts, "confidence", _label_set if kind == "multi-label" else _label)


def _label(facts: Facts, number: int, row: Row) -> Mistake | None:
    gold = label_of(facts, row["label"])
    answer = row["answer"]
    predicted = answer["label"] or NONE
    sure = confidence(facts, answer)
    return Mistake(number, gold, predicted, sure, _texts(facts, row)) if predicted != gold else None


def _label_set(facts: Facts, number: int, row: Row) -> Mistake | None:
    """Measured by the most confident wrong decision about one label."""
    gold = {label_of(facts, value) for value in row["labels"]}
    predicted = set(row["answer"]["labels"])
    if gold == predicted:
        return None
    scores = row["answer"]["scores"]
    confidence = max(scores[name] if name in predicted else 1 - scores[name] for name in gold ^ predicted)
    right, wrong = (", ".join(sorted(names)) or NONE for names in (gold, predicted))
    return Mistake(number, right, wrong, confidence, _texts(facts, row))


def _off(facts: Facts, measure: str, distances: Sequence[float]) -> Mistakes:
    """Every row that is any distance off."""

    def find(facts: Facts, number: int, row: Row) -> Mistake | None:
        gold = f"{target(row):.15g}"
        predicted = f"{row['answer']['score']:.3f}"
        distance = distances[number - 1]
        return Mistake(number, gold, predicted, distance, _texts(facts, row)) if distance else None

    return _by_row(facts, measure, find)


def _ranks_apart(facts: Facts) -> Mistakes:
    """Targets and scores have different scales, so their ranks are compared."""
    from scipy.stats import rankdata

    gold = rankdata([target(r) for r in facts.rows])
    predicted = rankdata([r["answer"]["score"] for r in facts.rows])
    return _off(facts, "ranks apart", abs(gold - predicted).tolist())


def sentence_mistake(facts: Facts, number: int, row: Row) -> Mistake | None:
    """Gold and predicted entities of a sentence, if they differ; measured by the most confident wrong one.

    Where tags are labels of words, the words that differ.
    """
    words = row["answer"]["words"]
    places = [(word["start"], word["end"]) for word in words]
    scheme = facts.options.get("scheme", "BIO")
    gold = tagging.labelled(row["tags"], scheme)
    predicted = tagging.labelled([word["tag"] for word in words], scheme)
    if row.get("spans") is not None:
        gold = gold_entities(places, row["spans"])
    scores = [decision["score"] for decision in row["answer"].get("entities", words)]
    if gold == predicted:
        return None
    right = set(gold).intersection(predicted)
    wrong = [score for entity, score in zip(predicted, scores, strict=True) if entity not in right]
    missed = [words[entity[1]]["score"] for entity in gold if entity not in right]
    if "entities" not in row["answer"]:
        gold = [label for label in gold if label not in right]
        predicted = [label for label in predicted if label not in right]
    text = text_of(row)
    lines = (
        ("gold", _tagged(text, places, gold, predicted, "missed")),
        ("predicted", _tagged(text, places, predicted, gold, "wrong")),
    )
    sides = [_line(entities, text, places) for entities in (gold, predicted)]
    return Mistake(number, sides[0], sides[1], max(wrong or missed), lines=lines)


def _line(entities: Sequence[tuple[Any, ...]], text: str, places: Places) -> str:
    """Type and text of each entity; of one that cuts a word, its own characters."""
    parts = []
    for entity in entities:
        start, stop = entity[3:] or _extent(entity, places)
        parts.append(f"{entity[0]} {text[start:stop]}")
    return "; ".join(parts) or NONE


def _extent(entity: tuple[Any, ...], places: Places) -> tuple[int, int]:
    """Start of an entity's first word, end of its last, in characters."""
    return places[entity[1]][0], places[entity[2] - 1][1]


def _tagged(
    text: str,
    places: Places,
    entities: Sequence[tuple[Any, ...]],
    others: Sequence[tuple[Any, ...]],
    mark: str,
) -> tuple[Span, ...]:
    """A sentence in parts: its entities are marked as right if the others have them too.

    One that cuts a word is drawn as the whole word, and one that shares a word with an earlier one is not
    drawn.
    """
    parts = list[Span]()
    done = 0
    for entity in entities:
        start, stop = _extent(entity, places)
        if start < done:
            continue
        parts += [Span(text[done:start])] if start > done else []
        parts.append(Span(text[start:stop], "right" if entity in others else mark, entity[0]))
        done = stop
    return (*parts, Span(text[done:]))


def _question(rule: Rule, facts: Facts, number: int, row: Row) -> Mistake | None:
    answer = row["answer"]
    gold = row["answers"]
    if rule.scores(answer["answer"], gold["text"])[0]:
        return None
    spans = {
        (start, start + len(text)) for text, start in zip(gold["text"], gold["answer_start"], strict=True)
    }
    predicted = {(answer["start"], answer["end"])} if answer["answer"] else set[tuple[int, int]]()
    best = [f"{shortened(hit['answer'], 80)} {hit['score']:.2f}" for hit in answer["n_best"][:5]]
    best += [f"no answer {answer['null_score']:.2f}"] if answer["null_score"] else []
    right = " | ".join(dict.fromkeys(gold["text"])) or NONE
    wrong = answer["answer"] or NONE
    lines = (("context", marked_spans(row["context"], spans, predicted)),)
    notes = (f"n-best: {'; '.join(best)}",) if best else ()
    return Mistake(number, right, wrong, answer["score"], (shortened(row["question"]),), lines, notes)


def marked_spans(
    text: str, gold: Iterable[tuple[int, int]], predicted: Iterable[tuple[int, int]]
) -> tuple[Span, ...]:
    """The text, split wherever a span begins or ends; parts outside of spans are shortened."""
    cuts = sorted({0, len(text), *(place for span in (*gold, *predicted) for place in span)})
    parts = []
    for start, end in pairwise(cuts):
        inside = (_covers(gold, start, end), _covers(predicted, start, end))
        mark = {(True, True): "both", (True, False): "gold", (False, True): "answer"}.get(inside, "")
        parts.append(Span(text[start:end] if mark else shortened(text[start:end], 400), mark))
    return tuple(parts)


def _covers(spans: Iterable[tuple[int, int]], start: int, end: int) -> bool:
    return any(first <= start and end <= last for first, last in spans)


def _pairs(facts: Facts) -> Mistakes:
    """Ranks that are apart, positives with a rank below 1, or wrong labels."""
    if "score" in facts.rows[0]:
        return _ranks_apart(facts)
    if "positive" in facts.rows[0]:
        return _by_row(facts, OUTRANKED, _outranked)
    return _by_row(facts, "distance from the threshold", _label)


def confidence(facts: Facts, answer: Record) -> float:
    """How confident the model was; of several decisions, in the least confident one."""
    if "labels" in answer:
        return float(min(max(score, 1 - score) for score in answer["scores"].values()))
    if "words" in answer:
        decisions = answer.get("entities", answer["words"])
        return float(min((decision["score"] for decision in decisions), default=0.0))
    if "threshold" in facts.options and "label" in answer:  # a cosine
        limit = facts.options["threshold"]
        return abs(float(answer["score"]) - (MIDDLE if limit is None else limit))
    return 0.0 if answer.get("answer") == "" else float(answer.get("score", 0.0))


def _outranked(facts: Facts, number: int, row: Row) -> Mistake | None:
    rank = row["answer"]["rank"]
    score = row["answer"]["score"]
    return (
        Mistake(number, "rank 1", f"rank {rank}, cosine {score:.3f}", rank, _texts(facts, row))
        if rank > 1
        else None
    )


def _rankings(facts: Facts) -> Mistakes:
    """Queries whose first document is not relevant; of independent pairs, ranks that are apart."""
    if not is_ranked(facts):
        return _ranks_apart(facts)
    asked = queries(facts)
    return _sorted("queries", "rank of the first relevant", len(asked), map(_failed_query, asked))


def _failed_query(query: Query) -> Mistake | None:
    """The relevant documents, and the first hits."""
    rank = query.relevant[0][0]
    if rank == 1:
        return None
    gold = "\n\n".join(f"{shortened(row['document'], 300)} (rank {rank})" for rank, row in query.relevant[:3])
    hits = "\n\n".join(f"{shortened(text, 300)} ({score:.3f})" for text, score in query.hits)
    return Mistake(
        query.number, gold, hits, rank, (shortened(query.text),), (), (f"nDCG@10 {query.ndcg:.3f}",)
    )


def _generated(facts: Facts) -> Mistakes:
    """Texts that are not their references, by the chrF of each."""
    pairs = [(row["answer"]["generated_text"], row["target"]) for row in facts.rows]
    chrf = Translations([text for text, _ in pairs], [reference for _, reference in pairs]).chrf_of_rows()

    def find(facts: Facts, number: int, row: Row) -> Mistake | None:
        text, reference = pairs[number - 1]
        if text.split() == reference.split():
            return None
        return Mistake(number, reference, text or NONE, 100 - chrf[number - 1], _texts(facts, row))

    return _by_row(facts, MISSING_CHRF, find)


MISTAKES: Mapping[str, Callable[[Facts], Mistakes]] = {
    "text-classification": _labels,
    "token-classification": lambda facts: _by_row(facts, "confidence", sentence_mistake),
    "question-answering": lambda facts: _by_row(
        facts, "confidence", partial(_question, rule_of(row["context"] for row in facts.rows))
    ),
    "sentence-similarity": _pairs,
    "retrieval": _rankings,
    "text-ranking": _rankings,
    "text2text-generation": _generated,
}
