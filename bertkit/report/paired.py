"""Two runs compared by their answers to the same rows: differences with intervals, tests, and where they
disagree.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertkit.evaluation.paired_tests import RESAMPLES, Difference, differences, mcnemar, randomisation
from bertkit.report.facts import Facts, Row, data_of, graded, task_of
from bertkit.report.mistakes import DISTANCES, OUTRANKED, mistakes, place_of, shortened
from bertkit.report.rankings import Query, is_ranked, queries
from bertkit.report.score_tables import interval, number, overall_metrics
from bertkit.text import Lines, counted

MAX_LISTED = 100  # disagreements of each kind in a page
MAX_CHARACTERS = 600  # of a text in the list
UNSURE = 0.05  # p-value from which no difference is claimed


class Outcome(NamedTuple):
    """An answer. quality: 1 or 0 if it is right or wrong; or nDCG@10, 1 / rank, or the negated distance or
    rank.

    gold, answer: empty where the answer is right.
    """

    quality: float
    gold: str = ""
    answer: str = ""


class Compared(NamedTuple):
    """A row or query, with the answers of both runs. kind: which one is right, or better. gap: between
    qualities.
    """

    kind: str
    differs: bool
    gap: float
    where: str
    gold: str
    answers: tuple[str, str]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """Two runs on the rows that both have answered. rows: which these are, and what is left out, in a
    sentence.
    """

    names: tuple[str, str]
    rows: str
    headline: str
    units: str = ""  # such as "872 rows"
    metrics: Mapping[str, Difference] = field(default_factory=dict)
    test: tuple[str, float] | None = None  # of the headline metric: name and p-value
    counts: Mapping[str, int] = field(default_factory=dict)  # kind of outcome -> rows or queries
    # the answers that differ, the largest gap first
    every: Sequence[Compared] = field(default=(), repr=False)

    @property
    def listed(self) -> list[Compared]:
        """The first disagreements of each kind."""
        listed = list[Compared]()
        for kind in self.counts:
            listed += [answers for answers in self.every if answers.kind == kind][:MAX_LISTED]
        return listed

    @property
    def count_rows(self) -> Lines:
        """How many answers there are of each kind, the most frequent first."""
        return [[kind, f"{count:,}"] for kind, count in Counter(self.counts).most_common()]

    @property
    def better(self) -> str:
        """The run that is better by the headline metric, as interval and test both show; empty where they do
        not.
        """
        difference = self.metrics.get(self.headline)
        low, high = (difference and difference.interval) or (0.0, 0.0)
        unsure = self.test is not None and self.test[1] >= UNSURE
        return "" if low <= 0 <= high or unsure else self.names[low > 0]

    @property
    def verdict(self) -> str:
        """Which run is better, in a sentence."""
        difference = self.metrics.get(self.headline)
        one, other = self.names
        if difference is None or difference.interval is None:
            return (
                f"{self.headline} of these runs cannot be compared. {self.rows}" if self.units else self.rows
            )
        low, high = difference.interval
        test = f"; {self.test[0]}: {p_value(self.test[1])}" if self.test else ""
        if not self.better:
            what = f"No difference in {self.headline} can be shown with these {self.units}"
            by = f"{other} − {one} is {difference.value:+.4f} (95 % interval {interval((low, high))}{test})"
            return f"{what}: {by}."
        bounds = (low, high) if low > 0 else (-high, -low)
        by = f"{number(abs(difference.value))} (95 % interval {interval(bounds)}{test})"
        return f"{self.better} is better: its {self.headline} is higher by {by} on {self.units}."

    @property
    def differences(self) -> Lines:
        """A row for each metric over all rows; the first row is the header. Empty if there is none."""
        rows = [["metric", *self.names, "{1} − {0}".format(*self.names), "95 % interval"]]
        firsts = {name: difference.first for name, difference in self.metrics.items()}
        for name in overall_metrics(firsts, self.headline):
            if difference := self.metrics.get(name):
                scores = (number(difference.first), number(difference.second))
                rows.append([name, *scores, f"{difference.value:+.4f}", interval(difference.interval)])
        return rows if len(rows) > 1 else []


def p_value(p: float) -> str:
    """A p-value as text, such as "p = 0.013" and "p < 0.001"."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def compared(first: Facts, second: Facts, names: tuple[str, str]) -> Pair:
    """Two runs of one task, compared on the rows that have the same content in both."""
    runs, about = _on_shared_rows(first, second, names)
    first, second = runs
    if not first.rows:
        return Pair(names, about, first.headline)
    one, other = (graded(task_of(run), run.rows).scored for run in runs)
    metrics = differences(one, other)
    exact, before = _outcomes(first)
    _, after = _outcomes(second)
    pairs = [_compared(first, row, before[row], after[row], exact, names) for row in before]
    every = sorted((pair for pair in pairs if pair.differs), key=lambda pair: -pair.gap)
    qualities = np.array([(before[row].quality, after[row].quality) for row in before]).T
    headline = metrics.get(first.headline)
    test = _test(first, second, headline, qualities, exact) if headline else None
    units = counted(one.rows, "query" if is_ranked(first) else "row")
    return Pair(
        names, about, first.headline, units, metrics, test, Counter(pair.kind for pair in pairs), every
    )


def _on_shared_rows(first: Facts, second: Facts, names: tuple[str, str]) -> tuple[tuple[Facts, Facts], str]:
    """Both with the rows that have the same content, in the first one's order, and a sentence about these
    rows.
    """
    waiting = defaultdict(list)
    columns = first.schema.columns

    def content(row: Row) -> str:
        return json.dumps(
            {name: value for name, value in data_of(row).items() if name in columns}, sort_keys=True
        )

    for row in reversed(second.rows):
        waiting[content(row)].append(row)
    pairs = []
    alone = []
    for row in first.rows:
        if same := waiting[content(row)]:
            pairs.append((row, same.pop()))
        else:
            alone.append(row)
    left = alone, [*chain.from_iterable(waiting.values())]
    split = " and ".join(dict.fromkeys((first.split, second.split)))
    sides = " and ".join(f"{len(rows):,} of {name}" for rows, name in zip(left, names, strict=True))
    about = f"Compared on {counted(len(pairs), 'row')} of {split} that both runs predicted."
    if any(left):
        about += f" Left out, because the other run has no row with the same texts and target: {sides}."
    refused = ""
    if not pairs:
        refused = f"they share no row of {split}"
    elif is_ranked(first) != is_ranked(second):
        refused = "only one of them ranks the documents of a query"
    elif any(left) and is_ranked(first):  # a rank depends on all documents
        refused = f"they ranked different documents ({sides} differ)"
    if refused:
        pairs = []
        about = f"{names[0]} and {names[1]} cannot be compared: {refused}."
    ours, theirs = zip(*pairs, strict=True) if pairs else ((), ())
    return (replace(first, rows=ours), replace(second, rows=theirs)), about


def _test(
    first: Facts, second: Facts, headline: Difference, qualities: Any, exact: bool
) -> tuple[str, float] | None:
    """Name and p-value of the test of the headline metric; None where there is none.

    qualities: of the answers `(2, rows)`.
    """
    if exact and np.allclose(qualities.mean(axis=1), headline[:2]):
        before, after = qualities
        return "McNemar's exact test", mcnemar(int((before > after).sum()), int((after > before).sum()))
    task = task_of(first)
    if task.known_labels != task_of(second).known_labels:
        return None
    ours = [{**row, **_renamed(row, "a")} for row in first.rows]
    theirs = [
        {**row, **_renamed(row, "b"), "answer": other["answer"]}
        for row, other in zip(first.rows, second.rows, strict=True)
    ]
    both = graded(task, ours + theirs).scored
    halves = np.repeat(np.eye(2), both.rows // 2, axis=0)
    if not np.allclose(both.weighted(halves)[first.headline], headline[:2]):  # each run has its own threshold
        return None
    return f"approximate randomisation with {RESAMPLES:,} resamples", randomisation(both, first.headline)


def _renamed(row: Row, run: str) -> dict[str, str]:
    """Another name for the row's query, if it has one, so that the queries of two runs are ranked apart."""
    group = row.get("query_id", row.get("group"))
    return dict.fromkeys(("query_id", "group"), f"{run} {group} {row['query']}") if "query" in row else {}


def _outcomes(facts: Facts) -> tuple[bool, dict[int, Outcome]]:
    """Whether answers are right or wrong, and the outcome of each row, or query by its first row, from 1."""
    if is_ranked(facts):
        return False, {query.number: _ranking(query) for query in queries(facts)}
    listed = mistakes(facts)
    exact = not listed or listed.measure not in (*DISTANCES, OUTRANKED)
    right = dict.fromkeys(range(1, len(facts.rows) + 1), Outcome(1.0 if exact else 0.0))
    every = listed.every if listed else ()
    wrong = {
        mistake.row: Outcome(0.0 if exact else -mistake.measure, mistake.gold, mistake.answer)
        for mistake in every
    }
    return exact, right | wrong


def _ranking(query: Query) -> Outcome:
    rank, row = query.relevant[0]
    gold = shortened(row["document"], MAX_CHARACTERS)
    answer = f"first relevant at rank {rank}"
    if query.ndcg is None:
        return Outcome(1 / rank, gold, answer)
    return Outcome(query.ndcg, gold, f"{answer}, nDCG@10 {query.ndcg:.3f}")


def _compared(
    facts: Facts, number: int, first: Outcome, second: Outcome, exact: bool, names: tuple[str, str]
) -> Compared:
    """Both answers to a row. exact: whether they are right or wrong, and not better or worse."""
    row = facts.rows[number - 1]
    gap = second.quality - first.quality
    gold = first.gold or second.gold
    differs = bool(gap) or (exact and first.answer != second.answer)
    if gap:
        better = names[gap > 0]
        kind = f"only {better} is correct" if exact else f"{better} is better"
    elif exact and first.quality == 0:
        kind = f"both are incorrect, with {'different answers' if differs else 'the same answer'}"
    else:
        kind = "both are correct" if exact else "both are equally good"
    texts = (row["query"],) if is_ranked(facts) else facts.schema.shown(row).values()
    answers = (first.answer or gold, second.answer or gold)
    shown = tuple(shortened(t, MAX_CHARACTERS) for t in texts)
    return Compared(kind, differs, abs(gap), place_of(row), gold, answers, shown)
