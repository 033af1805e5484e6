"""How the models of each task are used, for the model card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Usage(NamedTuple):
    """How the model card shows a task's models in use."""

    plain: str  # code without bertkit; PATH_OR_HUB_ID stands for the model
    arguments: str  # what `load("PATH_OR_HUB_ID")(…)` is called with
    adds: str  # what bertkit's answers have that those of `plain` lack
    tag: str = ""  # the Hub's pipeline tag, if it is not the name of the task


WORD_LABELS = Usage(  # of token-classification where tags are labels of words
    """\
from transformers import pipeline

# The best label of each token; the label of a word is that of its first token. The path of a CRF needs bertkit.
pipeline("token-classification", model="PATH_OR_HUB_ID")("your text")""",
    '"your text"',
    "one label for each word of texts of any length, with calibrated scores, decoded by the CRF if there is one",
)
USAGE: Mapping[str, Usage] = {
    "text-classification": Usage(
        """\
from transformers import pipeline

pipeline("text-classification", model="PATH_OR_HUB_ID")("your text")""",
        '"your text"',
        "calibrated, with the fitted thresholds of multi-label models, and with a mark on truncated texts",
    ),
    "token-classification": Usage(
        """\
from transformers import pipeline

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
    ),
    "pretraining": Usage(
        """\
from transformers import pipeline

pipeline("fill-mask", model="PATH_OR_HUB_ID")("A text with one [MASK] in it.")""",
        '"A text with one [MASK] in it."',
        "for texts with any number of masked words, and with the scores of whole documents",
        tag="fill-mask",
    ),
}
POOLED = {  # setting of a module Pooling -> its code
    "pooling_mode_mean_tokens": "vectors = (states * mask).sum(1) / mask.sum(1)",
    "pooling_mode_cls_token": "vectors = states[:, 0]",
    "pooling_mode_max_tokens": "vectors = states.masked_fill(mask == 0, -torch.inf).amax(1)",
}
READ_OUT = {
    "single-label": "probabilities = (logits / temperature).softmax(-1)",
    "multi-label": "probabilities = (logits / temperature).sigmoid()",
    "regression": "scores = logits[:, 0]",
}


def linear_head(modules: Sequence[tuple[str, Mapping[str, Any]]], options: Mapping[str, Any], max_length: int) -> str:
    """Code without bertkit for text-classification by a linear head. modules: behind the encoder, folder and config."""
    *before, head = [line for folder, config in modules for line in _module(folder, config)]
    texts = '["your text"], ["another"]' if options["pair"] else '["your text", "another"]'
    lines = [
        "import torch",
        "from safetensors.torch import load_file",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        'folder = "PATH_OR_HUB_ID"  # of a Hub id: huggingface_hub.snapshot_download(ID)',
        "model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)",
        f'inputs = tokenizer({texts}, padding=True, truncation=True, max_length={max_length}, return_tensors="pt")',
        "with torch.inference_mode():",
        '    states, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]',
        *(f"    {line}" for line in before),
        f"    {head.replace('vectors =', 'logits =', 1)}",
        'temperature = model.config.bertkit["task"]["temperature"] or 1.0',
        READ_OUT[options["kind"]],
    ]
    return "\n".join(lines)


def _module(folder: str, config: Mapping[str, Any]) -> Iterator[str]:
    """The lines for a module of sentence-transformers."""
    if folder.endswith("_Pooling"):
        yield next(code for setting, code in POOLED.items() if config[setting])
    elif folder.endswith("_Normalize"):
        yield "vectors = torch.nn.functional.normalize(vectors, dim=-1)"
    else:
        name = str(config["activation_function"]).rpartition(".")[2]
        yield f'layer = load_file(f"{{folder}}/{folder}/model.safetensors")'
        bias = 'layer["linear.bias"]' if config["bias"] else "None"
        yield f'vectors = torch.nn.{name}()(torch.nn.functional.linear(vectors, layer["linear.weight"], {bias}))'
