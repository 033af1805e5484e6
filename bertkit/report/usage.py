"""How the models of each task are used, for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Usage(NamedTuple):
    """How the model card shows a task's models in use."""

    plain: str  # code without bertkit; PATH_OR_HUB_ID stands for the model
    arguments: str  # what `load("PATH_OR_HUB_ID")(…)` is called with
    adds: str  # what bertkit's answers have that those of `plain` lack
    tag: str | None = ""  # the Hub's pipeline tag, if it is not the name of the task; None: the Hub has none


PIPELINE = "from transformers import pipeline\n\n"
WORD_LABELS = Usage(  # of token-classification where tags are labels of words
    f"""{PIPELINE}\
# The best label of each token; the label of a word is that of its first token. The path of a CRF needs bertkit.
pipeline("token-classification", model="PATH_OR_HUB_ID")("your text")""",
    '"your text"',
    "one label for each word of texts of any length, with calibrated scores, decoded by the CRF if there is one",
)
USAGE: Mapping[str, Usage] = {
    "text-classification": Usage(
        f'{PIPELINE}pipeline("text-classification", model="PATH_OR_HUB_ID")("your text")',
        '"your text"',
        "calibrated, with the fitted thresholds of multi-label models, and with a mark on truncated texts",
    ),
    "token-classification": Usage(
        f"""{PIPELINE}\
# The best tag of each token. Entities as scored above, decoded by the CRF if there is one, need bertkit.
pipeline("token-classification", model="PATH_OR_HUB_ID", aggregation_strategy="first")("your text")""",
        '"your text"',
        "for whole words and long texts, with calibrated scores of entities, decoded by the CRF if there is one",
    ),
    "question-answering": Usage(
        """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

model = AutoModelForQuestionAnswering.from_pretrained("PATH_OR_HUB_ID")
tokenizer = AutoTokenizer.from_pretrained("PATH_OR_HUB_ID")""",
        'question="…", context="…"',
        "the best span of a text of any length, calibrated, with the fitted threshold of no answer",
    ),
    "sentence-similarity": Usage(
        """\
from sentence_transformers import SentenceTransformer

SentenceTransformer("PATH_OR_HUB_ID").encode(["your text", "another"])""",
        '{"text_a": "your text", "text_b": "another"}',
        "scores of pairs, with labels by the fitted threshold, and with a mark on truncated texts",
    ),
    "retrieval": Usage(
        """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OR_HUB_ID")
model.encode_query("your question") @ model.encode_document(["a text", "another"]).T""",
        '[{"query": "your question", "document": "a text"}]',
        "cosines and ranks, with a mark on truncated texts",
        tag="sentence-similarity",
    ),
    "text-ranking": Usage(
        """\
from sentence_transformers import CrossEncoder

CrossEncoder("PATH_OR_HUB_ID").rank("your query", ["a document", "another"])""",
        'query="your query", document="a document"',
        "the same scores, for documents of any length, with a mark on truncated texts",
    ),
    "text2text-generation": Usage(
        """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("PATH_OR_HUB_ID")
tokenizer = AutoTokenizer.from_pretrained("PATH_OR_HUB_ID")
inputs = tokenizer("your text", return_tensors="pt", return_token_type_ids=False)
tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)""",
        '"your text"',
        "the same text, with a mark on a source or an answer that was cut",
        tag=None,  # a tag that transformers 5 has no pipeline for; the Hub lists such models by their other tags
    ),
    "pretraining": Usage(
        f'{PIPELINE}pipeline("fill-mask", model="PATH_OR_HUB_ID")("A text with one [MASK] in it.")',
        '"A text with one [MASK] in it."',
        "for texts with any number of masked words, and with the scores of whole documents",
        tag="fill-mask",
    ),
}


def linear_head(options: Mapping[str, Any]) -> str:
    """Code without bertkit for text-classification by a linear head behind the modules of sentence-transformers."""
    texts = '[["your text", "another"]]' if options["pair"] else '["your text", "another"]'
    function = {"single-label": "softmax(-1)", "multi-label": "sigmoid()"}.get(options["kind"])
    probabilities = f"""\
temperature = model.config.bertkit["task"]["temperature"] or 1.0
probabilities = (logits / temperature).{function}  # a column for each of model.config.id2label"""
    return f"""\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OR_HUB_ID")
logits = model.encode({texts}, convert_to_tensor=True)
{probabilities if function else "scores = logits[:, 0]"}"""
