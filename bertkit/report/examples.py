"""The examples of a run that its report explains: the surest mistakes, and the surest answers that were right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertkit.explain.explain import explain
from bertkit.files import write_json
from bertkit.inference.display import said
from bertkit.inference.predictor import load, require_torch_model
from bertkit.models.bert.sentences import sentences
from bertkit.report.facts import Facts, Row, read_facts
from bertkit.report.mistakes import MISTAKES, asked, named, ranked, searched
from bertkit.report.neighbours import neighbours

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor

EACH = 3  # mistakes, and as many hits
LONGEST = 128  # word pieces of an explained text
STEPS = 64  # of integrated gradients: more would let training wait
FEW = 2  # entities or labels of one row
LOOKED_AT = 200  # rows among which one that is short enough is looked for
TRIED = 4 * EACH  # of these, rows that are answered: a model that answers nothing has nothing to explain
AROUND = 16  # sentences before and behind, where a document is context
SHORTEST = 4  # letters of a word that is masked
DISTANCES = ("off by", "ranks apart")  # measures by which every row is more or less wrong

Kind = Literal["mistake", "hit"]


class Example(NamedTuple):
    """A row to explain, among its neighbours."""

    kind: Kind
    number: int  # of the row in its split, from 1
    rows: list[dict[str, Any]]  # input columns alone
    at: int
    gold: str = ""  # where the answer is not


def write_explanations(folder: Path) -> Path:
    """Explain a few examples of a finished run, and write RUN/explanations.json, which its report reads.

    At most 3 mistakes and 3 hits, the surest of 128 word pieces at most; of a corpus, documents with a word masked.
    Raises ModelError for a folder that is not a finished run.
    """
    facts, predictor = read_facts(folder), require_torch_model(load(folder), folder)
    if facts.task == "pretraining":
        found = list(islice(_explained(predictor, _masked(predictor, folder, facts.split)), 2 * EACH))
        for each in found:
            each["kind"] = "hit" if each["answer"]["masks"][0][0]["token"] == each["gold"] else "mistake"
    else:
        kinds: tuple[Kind, Kind] = ("mistake", "hit")
        found = [e for kind in kinds for e in islice(_explained(predictor, _examples(predictor, facts, kind)), EACH)]
    drawn = next((each for each in found if each["attention"]), None)
    for each in found:
        if each is not drawn:  # maps of one example say what there is to see
            each["attention"] = None
    write_json(folder / "explanations.json", {"examples": found, "neighbours": neighbours(predictor, facts.rows)})
    return folder / "explanations.json"


def _explained(predictor: Predictor, examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
    """Those that are short enough, and that hold something to explain."""
    from datasets import Dataset

    tried = 0
    for example in islice(examples, LOOKED_AT):
        rows = Dataset.from_list(example.rows)
        features = predictor.task.encode(rows)
        lengths = [n for n, row in zip(features["length"], features["row"], strict=True) if row == example.at]
        if not lengths or max(lengths) > LONGEST or sum(lengths) > 2 * LONGEST:
            continue
        if tried == TRIED:
            return
        tried += 1
        answers = list(predictor.task.answer(rows, predictor.predict_features))
        made = explain(predictor, rows, answers, example.at, few=FEW, most=STEPS)
        if made["attributed"]:
            about = {"kind": example.kind, "row": example.number, "gold": example.gold, "said": said(made["answer"])}
            yield {**about, **made}


def _examples(predictor: Predictor, facts: Facts, kind: Kind) -> Iterator[Example]:
    """Mistakes or hits, the surest first."""
    found_by = MISTAKES.get(facts.task)
    if found_by is None or not facts.rows:
        return
    _, measure, wrong = found_by(facts)
    mistakes = sorted(wrong, key=lambda each: -each.measure)
    if measure in DISTANCES:  # the nearest are as good as right
        middle, known = max(1, len(mistakes) // 2), {each.row for each in mistakes}
        exact = [number for number in range(1, len(facts.rows) + 1) if number not in known]
        hits = [*exact, *(each.row for each in reversed(mistakes[middle:]))]
        mistakes = mistakes[:middle]
    else:
        known = {each.row for each in mistakes}
        asking = (
            [own[0][0] for own in asked(facts) if ranked(own)] if searched(facts) else range(1, len(facts.rows) + 1)
        )
        right = [number for number in asking if number not in known]
        hits = sorted(right, key=lambda number: -_surety(facts.rows[number - 1]["answer"]))
    if kind == "mistake":
        for each in mistakes:
            yield _example(predictor, facts, kind, each.row, each.gold)
    else:
        for number in hits:
            yield _example(predictor, facts, kind, number)


def _surety(answer: Mapping[str, Any]) -> float:
    """How sure the model was; of several decisions, of the least sure one."""
    if "labels" in answer:
        return float(min(max(score, 1 - score) for score in answer["scores"].values()))
    if "entities" in answer:
        return float(min((entity["score"] for entity in answer["entities"]), default=0.0))
    if answer.get("answer") == "":
        return 0.0
    return float(answer.get("score", 0.0))


def _example(predictor: Predictor, facts: Facts, kind: Kind, number: int, gold: str = "") -> Example:
    row = facts.rows[number - 1]
    if searched(facts):  # why did this document come first?
        return Example(kind, number, [{"query": row["query"], "document": _first(facts, row)}], 0, gold)
    task = predictor.task
    names = [name for name in {*frozenset[str]().union(*task.inputs), *task.schema.context} if name in row]
    around = AROUND if "document" in task.schema.context and "document" in row else 0
    low = max(0, number - 1 - around)
    near = [{name: each[name] for name in names} for each in facts.rows[low : number + around]]
    return Example(kind, number, near, number - 1 - low, gold)


def _first(facts: Facts, row: Row) -> str:
    """The document that the query of this row found first."""
    if "found" in row["answer"]:
        best = row["answer"]["found"][0]["id"]
        return next(str(each["document"]) for each in facts.rows if named(each, "document") == best)
    own = [each for each in facts.rows if named(each, "query") == named(row, "query")]
    return str(max(own, key=lambda each: each["answer"]["score"])["document"])


def _masked(predictor: Predictor, folder: Path, split: str) -> Iterator[Example]:
    """The first sentence of documents that has a word of one piece to mask; the gold is that piece."""
    tokenizer = predictor.task.tokenizer
    with (folder / "predictions" / f"{split}.jsonl").open(encoding="utf-8") as file:
        for number, line in enumerate(islice(file, LOOKED_AT), 1):
            for sentence in sentences(str(json.loads(line)["text"])):
                words = sentence.split()
                fit = [w for w in words if w.isalpha() and len(w) >= SHORTEST and len(tokenizer.tokenize(w)) == 1]
                if len(words) < SHORTEST or not fit or str(tokenizer.mask_token) in sentence:
                    continue
                word = fit[len(fit) // 2]
                place = words.index(word)
                text = " ".join([*words[:place], str(tokenizer.mask_token), *words[place + 1 :]])
                yield Example("hit", number, [{"text": text}], 0, tokenizer.tokenize(word)[0])
                break
