"""What a report explains: the most confident mistakes and right answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from bertkit.explanations.explain import explain_row
from bertkit.explanations.targets import targets_of
from bertkit.files import write_json
from bertkit.inference.predictor import Predictor, load, require_torch_model
from bertkit.report.facts import Facts, Row, read_facts
from bertkit.report.mistakes import DISTANCES, confidence, mistakes
from bertkit.report.rankings import is_ranked, queries
from bertkit.run import OUT_OF_FOLD
from bertkit.tasks.base import Task
from bertkit.text import Json

T = TypeVar("T")

EXAMPLES = 3  # mistakes, and as many right answers
MAX_LENGTH = 128  # tokens of an explained text
MAX_STEPS = 64  # of integrated gradients: more would delay the end of training
MAX_TARGETS = 2  # entities, words or labels of one row
MAX_SEARCHED = 200  # rows among which short ones are looked for
# of these, rows that are answered: a model without answers has nothing to explain
MAX_ANSWERED = 4 * EXAMPLES
CONTEXT = 16  # sentences before and after, if documents are context


class Example(NamedTuple):
    """A row to explain, with the rows around it."""

    number: int  # of the row in its split, from 1
    rows: list[Json]  # input columns alone
    at: int
    gold: str = ""  # if the answer is another


def write_explanations(folder: Path) -> Path:
    """Explain a few examples of a finished run, and write RUN/explanations.json, which its report reads.

    At most 3 mistakes and 3 right answers, of different labels as far as possible, the most confident ones to
    texts of at most 128 tokens; none for a task whose answers are not explained.
    Raises ModelError for a folder that is not a finished run.
    """
    facts = read_facts(folder)
    predictor = require_torch_model(load(folder), folder)
    examples = []
    # Out of fold are answers of models that are gone; the run's own has learned these rows.
    if targets_of(predictor.task) and facts.split != OUT_OF_FOLD:
        kinds = zip(_wrong_and_right(predictor.task, facts), ("mistake", "hit"), strict=False)
        examples = [
            example for chosen in kinds for example in islice(_explained(predictor, *chosen), EXAMPLES)
        ]
    write_json(folder / "explanations.json", {"examples": examples})
    return folder / "explanations.json"


def _explained(predictor: Predictor, examples: Iterable[Example], kind: str) -> Iterator[Json]:
    """The explanations of examples that are short enough, and have something to explain."""
    from datasets import Dataset

    answered = 0
    for example in islice(examples, MAX_SEARCHED):
        rows = Dataset.from_list(example.rows)
        features = predictor.task.encode(rows)
        lengths = [n for n, row in zip(features["length"], features["row"], strict=True) if row == example.at]
        if not lengths or max(lengths) > MAX_LENGTH or sum(lengths) > 2 * MAX_LENGTH:
            continue
        if answered == MAX_ANSWERED:
            return
        answered += 1
        explanation = explain_row(predictor, rows, example.at, max_targets=MAX_TARGETS, max_steps=MAX_STEPS)
        if explanation["attributed"]:
            yield {"kind": kind, "row": example.number, "gold": example.gold, **explanation}


def _wrong_and_right(task: Task, facts: Facts) -> Iterator[Iterator[Example]]:
    """Mistakes, then right answers: the most confident of each label; the smaller half of distances counts as
    right.
    """
    wrong = mistakes(facts)
    if wrong is None:
        return
    rows = facts.rows
    numbers = [mistake.row for mistake in wrong.every]
    by_distance = wrong.measure in DISTANCES
    near = max(1, len(numbers) // 2) if by_distance else len(numbers)
    # Of a ranking: why did the first document come first?
    first = {query.number: query.hits[0][0] for query in queries(facts)} if is_ranked(facts) else None
    answered = range(1, len(rows) + 1) if first is None else first
    right = [*sorted(set(answered).difference(numbers)), *reversed(numbers[near:])]
    if not by_distance:
        right.sort(key=lambda number: -confidence(facts, rows[number - 1]["answer"]))

    def example(number: int, gold: str = "") -> Example:
        if first is None:
            return Example(number, *_with_context(task, rows, number - 1), gold)
        return Example(number, [{"query": rows[number - 1]["query"], "document": first[number]}], 0, gold)

    chosen = _spread(wrong.every[:near], lambda mistake: mistake.gold)
    yield (example(mistake.row, mistake.gold) for mistake in chosen)
    yield map(example, _spread(right, lambda number: str(rows[number - 1]["answer"].get("label"))))


def _spread(examples: Iterable[T], label: Callable[[T], str]) -> list[T]:
    """The first of each label, then the second of each, and so on: else near-copies of one text come
    first.
    """
    seen = Counter[str]()
    ranked = []
    for example in examples:
        ranked.append((seen[label(example)], example))
        seen[label(example)] += 1
    return [example for _, example in sorted(ranked, key=lambda pair: pair[0])]


def _with_context(task: Task, rows: Sequence[Row], place: int) -> tuple[list[Json], int]:
    """The inputs of a row, with those around it if documents are context, and its place among them."""
    names = [name for name in task.reads if name in rows[place]]
    around = CONTEXT if "document" in task.schema.context and "document" in names else 0
    low = max(0, place - around)

    def inputs(row: Row) -> Json:
        return {name: row[name] for name in names}

    return [*map(inputs, rows[low : place + around + 1])], place - low
