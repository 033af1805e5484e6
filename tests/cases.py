"""One Case per way to use each task: eight rows, and the options that make the case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from datasets import Dataset

from bertkit.models.encoder import Encoder, load_tokenizer
from bertkit.tasks import get_task
from bertkit.tasks.base import prepare

TEXTS = [
    "the cat was good",
    "a dog was awful",
    "it is very fine !",
    "the mat was bad , not good",
    "yes",
    "no , it was very very awful and bad",
    "one good cat sat on a blue mat",
    "two bad dog s ran down",
]
SIDES = [0, 1, 0, 1, 0, 1, 0, 1]  # what each text is about; learnable


@dataclass(frozen=True)
class Case:
    """A task, its options and eight rows that it can learn by heart."""

    id: str
    options: dict[str, Any]
    columns: dict[str, list[Any]]
    max_length: int = 32
    class_names: list[str] = field(default_factory=list)
    across_rows: bool = False  # does the loss compare the rows of a batch with each other?
    cuts: bool = False  # is a text beyond the limit cut, whatever the option `overflow` says?

    @property
    def kind(self):
        return get_task(self.options["name"])

    @property
    def inputs(self):
        """Its columns that the model answers."""
        schema = self.kind.schema
        read = next(names for names in schema.inputs if names <= self.columns.keys())
        return [name for name in self.columns if name in read or name in schema.context]

    def rows(self):
        return Dataset.from_dict(self.columns)

    @property
    def asked(self):
        """Its rows without what they should be answered with."""
        return self.rows().select_columns(self.inputs).to_list()

    def tokenizer(self, encoder):
        """The encoder's tokenizer, as the task reads texts with it."""
        return load_tokenizer(encoder, split_special_tokens=not self.kind.schema.special_tokens)

    def task(self, encoder):
        """The task, prepared from the rows."""
        options = self.kind.Options.model_validate(self.options)
        return prepare(
            self.kind, options, self.tokenizer(encoder), self.max_length, self.rows(), self.class_names
        )


def encoder(folder):
    return Encoder(str(folder), folder, "folder")


SETTINGS = {"version": "0", "precision": "fp32", "batch_size": 4, "columns": {}}  # of a saved model
NAME = {"name": "text-classification"}
NER = {"name": "token-classification"}
QA = {"name": "question-answering"}
SIMILAR = {"name": "sentence-similarity"}
RANKING = {"name": "text-ranking"}
WRITING = {"name": "text2text-generation"}
LABELS = ["good" if side == 0 else "bad" for side in SIDES]
TOKENS = [text.split() for text in TEXTS]
TAGS = [
    [
        "B-ANIMAL" if word in ("cat", "dog") else "B-SENSE" if word in ("good", "bad", "awful") else "O"
        for word in words
    ]
    for words in TOKENS
]
# `good cat`, `very awful and bad`: entities of several words
for words, tags in zip(TOKENS, TAGS, strict=True):
    for place in range(1, len(words)):
        if tags[place] == "B-SENSE" and words[place - 1] == "very":
            tags[place - 1 : place + 1] = ["B-SENSE", "I-SENSE"]
KINDS = {"DET": "the a it one two", "NOUN": "cat dog mat s", "ADJ": "good bad awful fine blue"}
KIND_OF = {word: kind for kind, words in KINDS.items() for word in words.split()}
# with one that looks like an entity
WORD_LABELS = [[KIND_OF.get(word, "B-X") for word in words] for words in TOKENS]
QUESTIONS = [f"the {word} ?" for word in ["one", "two"] * 4]
WORDS = ("good", "bad", "fine", "red", "blue", "green", "very good", "awful")
CONTEXTS = [f"{'the cat sat . ' * (i % 2)}it was {word} and the mat sat on" for i, word in enumerate(WORDS)]
ANSWERS = [{"text": [w], "answer_start": [c.index(w)]} for c, w in zip(CONTEXTS, WORDS, strict=True)]
LONG = [text + " and the mat was red , the dog sat up" * 3 for text in TEXTS]
EVEN = [
    f"the {a} {b} {c}"
    for a, b, c in zip(["cat", "dog"] * 4, "was sat ran is".split() * 2, WORDS, strict=True)
]
GRADES = [0.0, 1.0, 2.0, 2.5, 3.0, 4.0, 4.5, 5.0]
PAIRS = {"text_a": TEXTS, "text_b": [f"{text} and down" for text in TEXTS[3:] + TEXTS[:3]]}
LABELLED_PAIRS = {**PAIRS, "label": ["no" if side else "yes" for side in SIDES]}
ASKED = {"query": ["one good cat", "two bad dog s"] * 4, "document": TEXTS}

CASES = [
    Case("single-label", NAME, {"text": TEXTS, "label": LABELS}),
    Case(
        "labels-in-an-order-of-their-own",
        {**NAME, "labels": ["good", "bad"]},
        {"text": TEXTS, "label": LABELS},
    ),
    Case(
        "eleven-labels",
        NAME,
        {"text": TEXTS, "label": ["2", "10"] * 4},
        class_names=[str(n) for n in range(11)],
    ),
    Case("class-weights", {**NAME, "class_weights": {"good": 3.0}}, {"text": TEXTS, "label": LABELS}),
    Case(
        "pair",
        NAME,
        {"text_a": TEXTS, "text_b": TEXTS[::-1], "label": ["same" if s else "other" for s in SIDES]},
    ),
    Case(
        "multi-label",
        {**NAME, "class_weights": {"long": 3.0}},
        {"text": TEXTS, "labels": [["good"] if s == 0 else ["bad", "long"] for s in SIDES]},
    ),
    Case("linear-head", {**NAME, "method": "head"}, {"text": TEXTS, "label": LABELS}),
    Case(
        "linear-head-of-pairs", {**NAME, "method": "head"}, {**PAIRS, "labels": [[label] for label in LABELS]}
    ),
    Case("regression", NAME, {"text": TEXTS, "score": [2.5 - 5 * s + i / 2 for i, s in enumerate(SIDES)]}),
    Case("qa", QA, {"question": QUESTIONS, "context": CONTEXTS, "answers": ANSWERS}),
    Case(
        "qa-windows-or-none",
        {**QA, "stride": 4},
        {
            "question": QUESTIONS,
            "context": [context + " the dog ran up , down , up" * 4 for context in CONTEXTS],
            "answers": [a if i % 3 else {"text": [], "answer_start": []} for i, a in enumerate(ANSWERS)],
        },
        max_length=24,
    ),
    Case("similarity-mse", {**SIMILAR, "loss": "cosine-mse", "dense": 6}, {**PAIRS, "score": GRADES}),
    Case(
        "similarity-cosent",
        SIMILAR,
        {"text_a": EVEN, "text_b": EVEN[1:] + EVEN[:1], "score": GRADES},
        across_rows=True,
    ),
    Case("similarity-labels", {**SIMILAR, "loss": "cosine-mse"}, LABELLED_PAIRS),
    Case(
        "similarity-cls", {**SIMILAR, "pooling": "cls", "normalize": False}, LABELLED_PAIRS, across_rows=True
    ),
    Case(
        "similarity-in-batch",
        SIMILAR,
        {"anchor": TEXTS, "positive": LONG, "negative": LONG[::-1]},
        across_rows=True,
    ),
    Case(
        "similarity-dims", {**SIMILAR, "dims": [16, 4]}, {"anchor": TEXTS, "positive": LONG}, across_rows=True
    ),
    Case(
        "retrieval",
        {"name": "retrieval", "query_prefix": "the ", "dense": 6},
        {"query": TEXTS, "document": LONG, "grade": [1.0, 2.0] * 4},
        across_rows=True,
    ),
    Case("ner-softmax", NER, {"tokens": TOKENS, "tags": TAGS}),
    Case("ner-crf", {**NER, "head": "crf"}, {"tokens": TOKENS, "tags": TAGS}),
    Case(
        "ner-crf-windows-bioes",
        {**NER, "head": "crf", "scheme": "BIOES", "stride": 4, "class_weights": "auto"},
        {"tokens": [words * 3 for words in TOKENS], "tags": [tags * 3 for tags in TAGS]},
        max_length=16,
    ),
    Case(
        "ner-document",
        {**NER, "context": "document", "class_weights": {"ANIMAL": 2.0}},
        {"tokens": TOKENS, "tags": TAGS, "document": list("11112222")},
    ),
    Case(
        "words-crf-windows",
        {**NER, "scheme": "none", "head": "crf", "stride": 4, "class_weights": "auto"},
        {"tokens": [words * 3 for words in TOKENS], "tags": [labels * 3 for labels in WORD_LABELS]},
        max_length=16,
    ),
    Case(
        "windows", {**NAME, "overflow": "window", "stride": 4}, {"text": LONG, "label": LABELS}, max_length=16
    ),
    Case("ranking-binary", RANKING, {**ASKED, "label": [float(side) for side in SIDES]}),
    Case(
        "ranking-graded-windows",
        {**RANKING, "overflow": "window", "stride": 4, "grouped": False, "activation": "identity"},
        {**ASKED, "document": [f"{text} " * 3 for text in TEXTS], "score": GRADES},
        max_length=20,
    ),
    Case(
        "text-to-text",
        {**WRITING, "generation": {"max_new_tokens": 16}},
        {"text": TEXTS, "target": EVEN},
        cuts=True,
    ),
    Case(
        "ranking-listwise",
        {**RANKING, "loss": "listwise"},
        {**ASKED, "score": [3.0 * side + i % 3 for i, side in enumerate(SIDES)], "group": list("ababcacb")},
    ),
]

# Two processes divide seven rows into four and three.
PARTS = {"anchor": TEXTS[:7], "positive": LONG[:7], "negative": LONG[:0:-1]}
SEVEN = Case("in-batch-of-seven", SIMILAR, PARTS, across_rows=True)

# Masks and pairs are drawn: an answer depends on a document's place and company.
DOCUMENTS = [f"{a} . {b} . {a} and {b} !" for a, b in zip(TEXTS, TEXTS[3:] + TEXTS[:3], strict=True)]
DRAWN = [
    Case("mlm", {"name": "pretraining", "nsp": "none"}, {"text": DOCUMENTS}),
    Case("mlm-nsp", {"name": "pretraining"}, {"text": DOCUMENTS}),
    Case("mlm-words", {"name": "pretraining", "whole_word": True}, {"text": DOCUMENTS}),
    Case(
        "mlm-schedule",
        {"name": "pretraining", "nsp": "none", "mask_probability": {"start": 0.4, "end": 0.2}},
        {"text": DOCUMENTS},
        max_length=64,
    ),
]

BY_ID = {case.id: case for case in [*CASES, *DRAWN]}

# On every run; with --all the others too. One of each task, loss, head and way to read a long text.
USUAL = """single-label multi-label pair regression qa-windows-or-none similarity-cosent similarity-in-batch retrieval
ner-crf-windows-bioes ner-document ranking-graded-windows text-to-text mlm mlm-nsp mlm-schedule""".split()


def every(cases):
    """A test of each of these cases; without --all, of those of `USUAL`."""
    rare = pytest.mark.rare
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.id, marks=() if case.id in USUAL else rare) for case in cases]
    )
