"""The packaged samples: recipes find them, rows are well formed, no two are alike, and their pages count right."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
from phrases import sentences
from scipy.stats import spearmanr
from small import read_rows

from bertkit.data.beir import read_beir
from bertkit.data.readers import read_rows as read_squad
from bertkit.data.sources import find_files, samples_folder
from bertkit.errors import UserError
from bertkit.models.bert.byte_level import train_byte_level
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec

SPLITS = ("train", "validation", "test")
FILES = {"ner": "jsonl", "qa": "json", "similarity": "jsonl", "translation": "jsonl"}
NER, QA, PAGES, PAIRS, PHRASES = (
    samples_folder() / name for name in ("ner", "qa", "retrieval", "similarity", "translation")
)
TRANSLATED = {  # right to a reader of German
    "Today the neighbour puts away a big book in the kitchen.":
    "Heute räumt die Nachbarin ein großes Buch in der Küche weg.",
    "Must a teacher hide a knife in the kitchen?": "Muss ein Lehrer ein Messer in der Küche verstecken?",
    "The woman finds no red apple in the garden today.": "Die Frau findet heute keinen roten Apfel im Garten.",
    "Yesterday the man looked for no big knife in the kitchen.":
    "Gestern hat der Mann kein großes Messer in der Küche gesucht.",
}  # fmt: skip


def ngrams(text: str, length: int = 3) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def alike(texts: Iterable[str], most: float, length: int = 3) -> list[tuple[str, str]]:
    """The pairs of texts that share more of their runs of words than this."""
    found = [(text, ngrams(text, length)) for text in texts]
    return [(a, b) for (a, one), (b, other) in combinations(found, 2) if len(one & other) > most * len(one | other)]


def stated(folder: Path, split: str) -> list[int]:
    """The counts on the sample's page."""
    row = re.search(rf"^\| {split} \|(.*)\|$", (folder / "README.md").read_text(encoding="utf-8"), re.M)
    assert row
    return [int(cell) for cell in row[1].split("|")]


def misplaced(text: str, start: int, end: int) -> bool:
    """Whether a span does not begin and end with a word or a mark."""
    words = [word.span() for word in re.finditer(r"\w+|[^\w\s]", text)]
    return start not in {a for a, _ in words} or end not in {b for _, b in words} or start >= end


def test_recipes_find_them() -> None:
    for name, suffix in FILES.items():
        folder = samples_folder() / name
        assert find_files(DataSpec(source=f"sample:{name}")) == {s: [folder / f"{s}.{suffix}"] for s in SPLITS}


def test_entities() -> None:
    rows = {split: read_rows(NER / f"{split}.jsonl") for split in SPLITS}
    bad, masked = [], []
    for row in (row for split in SPLITS for row in rows[split]):
        edges = [edge for span in row["spans"] for edge in (span["start"], span["end"])]
        wrong = [s for s in row["spans"] if misplaced(row["text"], s["start"], s["end"])]
        if wrong or edges != sorted(edges) or row["text"] != row["text"].strip() or row.keys() != {"text", "spans"}:
            bad.append(row)
        text = row["text"]
        for span in reversed(row["spans"]):
            text = f"{text[: span['start']]}{span['label']}{text[span['end'] :]}"
        masked.append(text)
    assert bad == []
    assert alike((row["text"] for split in SPLITS for row in rows[split]), 0.2) == []
    assert alike(filter(ngrams, masked), 0.2) == []
    for split in SPLITS:
        labels = Counter(span["label"] for row in rows[split] for span in row["spans"])
        counts = [len(rows[split]), *(labels[label] for label in ("PER", "ORG", "LOC", "WORK"))]
        long = sum(len(re.findall(r"\w+|[^\w\s]", row["text"])) > 128 for row in rows[split])
        assert stated(NER, split) == [*counts, sum(not row["spans"] for row in rows[split]), long]


def test_questions_and_answers() -> None:
    bad: list[Any] = []
    contexts, asked = list[str](), list[str]()
    for split in SPLITS:
        document = json.loads((QA / f"{split}.json").read_text(encoding="utf-8"))
        paragraphs = [paragraph for article in document["data"] for paragraph in article["paragraphs"]]
        questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
        for paragraph in paragraphs:
            for question in paragraph["qas"]:
                spans = [(each["answer_start"], each["text"]) for each in question["answers"]]
                wrong = [
                    (start, text)
                    for start, text in spans
                    if paragraph["context"][start : start + len(text)] != text
                    or misplaced(paragraph["context"], start, start + len(text))
                ]
                if wrong or question["is_impossible"] is not (spans == []) or not question["question"].endswith("?"):
                    bad.append(question)
        read = [row["id"] for _, row in read_squad(QA / f"{split}.json", DataSpec(source="sample:qa"))]
        assert read == [question["id"] for question in questions]
        impossible, several = (
            sum(q["is_impossible"] for q in questions),
            sum(len(q["answers"]) > 1 for q in questions),
        )
        long = sum(len(paragraph["context"].split()) > 450 for paragraph in paragraphs)
        assert stated(QA, split) == [len(paragraphs), len(questions), impossible, several, long]
        contexts += [paragraph["context"] for paragraph in paragraphs]
        asked += [question["question"].casefold() for question in questions]
    assert bad == []
    assert len(set(asked)) == len(asked)
    assert alike(contexts, 0.05) == []


def test_pages_and_queries() -> None:
    sample = read_beir(PAGES)
    assert sample.findings == []
    assert sorted(name for split in SPLITS for name in sample.qrels[split]) == sorted(sample.queries)
    assert alike(sample.corpus.values(), 0.06) == []
    assert alike(sample.queries.values(), 0.6, length=1) == []
    quotes = [
        (query, page)
        for split in SPLITS
        for query, grades in sample.qrels[split].items()
        for page in grades
        if ngrams(sample.queries[query], 4) & ngrams(sample.corpus[page], 4) or 2 not in grades.values()
    ]
    assert quotes == []
    for split in SPLITS:
        grades = [grade for judged in sample.qrels[split].values() for grade in judged.values()]
        assert stated(PAGES, split) == [len(sample.qrels[split]), len(grades), grades.count(2), grades.count(1)]


def test_pairs_and_grades() -> None:
    rows = {split: read_rows(PAIRS / f"{split}.jsonl") for split in SPLITS}
    every = [row for split in SPLITS for row in rows[split]]
    ends = re.compile(r"[A-Z0-9].*[.?!]")
    assert [r for r in every if not ends.fullmatch(r["text_a"]) or not ends.fullmatch(r["text_b"])] == []
    assert [row for row in every if row["score"] not in [half / 2 for half in range(11)]] == []
    words = [[{*re.findall(r"\w+", row[side].casefold())} for side in ("text_a", "text_b")] for row in every]
    near = [
        (these, those)
        for these, those in combinations(words, 2)
        if any(len(one & other) > 0.5 * len(one | other) for one in these for other in those)
    ]
    assert near == []
    shared = [len(one & other) / len(one | other) for one, other in words]
    told = re.search(r"is (0\.\d\d) over all pairs", (PAIRS / "README.md").read_text(encoding="utf-8"))
    assert told
    assert round(float(spearmanr(shared, [row["score"] for row in every]).statistic), 2) == float(told[1])
    for split in SPLITS:
        grades = Counter(int(row["score"]) for row in rows[split])
        assert stated(PAIRS, split) == [grades.total(), *(grades[grade] for grade in range(6))]


def test_translations_and_their_tokenizer(tmp_path: Path) -> None:
    pairs, known = sentences(), dict[str, str]()
    train_byte_level([PHRASES / "train.jsonl"], tmp_path / "out", vocab_size=600, columns=["text", "target"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (PHRASES / "tokenizer" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    tokenizer = load_tokenizer(PHRASES / "tokenizer")
    for split, size in {"train": 1200, "validation": 150, "test": 150}.items():
        rows = read_rows(PHRASES / f"{split}.jsonl")
        assert rows == [{"text": text, "target": target} for text, target in islice(pairs, size)]
        targets = [row["target"] for row in rows]
        assert tokenizer.batch_decode(tokenizer(targets)["input_ids"], skip_special_tokens=True) == targets
        known |= {row["text"]: row["target"] for row in rows}
    assert len(known) == 1500  # none is in two splits
    assert TRANSLATED.items() <= known.items()
    assert resolve_encoder(ModelSpec(config="tiny", tokenizer="sample:translation")).config.vocab_size == 600


@pytest.mark.parametrize("name", ["sample:sentiment", "sample:translations"])
def test_other_samples_have_no_tokenizer(name: str) -> None:
    with pytest.raises(UserError, match=r"no tokenizer could be loaded|no such sample; did you mean"):
        resolve_encoder(ModelSpec(config="tiny", tokenizer=name))
