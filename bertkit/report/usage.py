"""How a task's models are used, for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Usage(NamedTuple):
    """How the model card shows a task's models in use."""

    plain: str  # code without bertkit; PATH_OR_HUB_ID stands for the model
    arguments: str  # what `load("PATH_OR_HUB_ID")(…)` is called with
    adds: str  # what bertkit's answers have that those of `plain` lack


# Pipeline tags of the Hub, where they are not the task's name.
TAGS = {"retrieval": "sentence-similarity", "pretraining": "fill-mask"}

USAGE: Mapping[str, Usage] = {
    "text-classification": Usage(
        """\
from transformers import pipeline

pipeline("text-classification", model="PATH_OR_HUB_ID")("your text")""",
        '"your text"',
        "calibrated, by the thresholds that were fitted where there are several labels, and telling what was cut off",
    ),
    "token-classification": Usage(
        """\
from transformers import pipeline

# Each word piece's best tag. Entities as bertkit gives them, with the CRF where there is one, need bertkit.
pipeline("token-classification", model="PATH_OR_HUB_ID", aggregation_strategy="first")("your text")""",
        '"your text"',
        "whole words, long texts, calibrated scores of entities, and the CRF where there is one",
    ),
    "question-answering": Usage(
        """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

model = AutoModelForQuestionAnswering.from_pretrained("PATH_OR_HUB_ID")
tokenizer = AutoTokenizer.from_pretrained("PATH_OR_HUB_ID")""",
        'question="…", context="…"',
        "the best span of texts of any length, calibrated, with the fitted threshold of no answer",
    ),
    "sentence-similarity": Usage(
        """\
from sentence_transformers import SentenceTransformer

SentenceTransformer("PATH_OR_HUB_ID").encode(["your text", "another"])""",
        '{"text_a": "your text", "text_b": "another"}',
        "pairs scored, labelled with the fitted threshold, and told what was cut off",
    ),
    "retrieval": Usage(
        """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OR_HUB_ID")
model.encode_query("your question") @ model.encode_document(["a text", "another"]).T""",
        '[{"query": "your question", "document": "a text"}]',
        "cosines and ranks, and telling what was cut off",
    ),
    "text-ranking": Usage(
        """\
from sentence_transformers import CrossEncoder

CrossEncoder("PATH_OR_HUB_ID").rank("your query", ["a document", "another"])""",
        'query="your query", document="a document"',
        "the same scores, for documents of any length, and telling what was cut off",
    ),
    "pretraining": Usage(
        """\
from transformers import pipeline

pipeline("fill-mask", model="PATH_OR_HUB_ID")("A text with one [MASK] in it.")""",
        '"A text with one [MASK] in it."',
        "those of texts with any number of masked words, and the scores of whole documents",
    ),
}
