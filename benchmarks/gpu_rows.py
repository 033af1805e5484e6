"""What gpu.py measures with: encoders, and rows of random words in realistic lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoModel, BertTokenizer

from bertkit.errors import UserError
from bertkit.models.encoder import Encoder, resolve_encoder
from bertkit.models.untrusted import vet
from bertkit.sections import ModelSpec

ENCODERS: dict[str, tuple[str, dict[str, int]]] = {  # on the Hub -> its config, for random weights
    "sentence-transformers/all-MiniLM-L6-v2": (
        "bert",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    ),
    "google-bert/bert-base-uncased": ("bert", {}),
    "answerdotai/ModernBERT-base": ("modernbert", {}),
    "tiny": (
        "bert",
        {
            **{"vocab_size": 500, "hidden_size": 16},
            **{"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
        },
    ),
}
LENGTHS: dict[
    str, tuple[int, float, int]
] = {  # words of a text: median, sigma of the logarithm, maximum; a review,
    "text-classification": (60, 0.6, 250),
    "token-classification": (22, 0.5, 100),  # a sentence of the news,
    "question-answering": (150, 0.4, 350),  # a paragraph of an encyclopedia, with a question of 11 words,
    "sentence-similarity": (11, 0.4, 40),  # each caption of a pair
}
TAGS = ("B-X", "I-X", "O", "O", "O", "O", "O", "O", "O")  # of a sentence's words, again and again


def encoder_of(name: str, room: Path) -> tuple[Encoder, str]:
    """The encoder, and whose weights it has: those of the Hub's cache or of a folder, or random ones."""
    folder = room / name.replace("/", "--")
    if name not in ENCODERS or (name != "tiny" and not folder.is_dir()):
        try:
            return resolve_encoder(ModelSpec(name=name)), name
        except UserError:
            if name not in ENCODERS:
                raise
    if not folder.is_dir():
        aside = folder.with_suffix(".aside")
        kind, fields = ENCODERS[name]
        config = AutoConfig.for_model(kind, **fields)
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = [*special, *(f"w{n}" for n in range(config.vocab_size - len(special)))]
        inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if config.model_type == "bert" else [])]
        tokenizer: Any = BertTokenizer(
            vocab={word: n for n, word in enumerate(words)}, model_input_names=inputs
        )
        tokenizer.save_pretrained(aside)
        for role in ("pad", "cls", "sep", "bos", "eos"):
            setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))
        AutoModel.from_config(config).save_pretrained(aside)
        aside.rename(folder)
    return Encoder(name, vet(folder), "folder"), "random"


def words_of(tokenizer: Any) -> list[str]:
    """Words that are a token each."""
    known = sorted({token.lstrip("Ġ▁") for token in tokenizer.get_vocab()})
    plain = [word for word in known if word.isascii() and word.isalnum() and word.islower()][:4000]
    return [word for word in plain if len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1]


def drawn(task: str, words: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Rows of random words, in lengths that are log-normal."""
    rng, (median, sigma, most) = np.random.default_rng(0), LENGTHS[task]

    def text() -> list[str]:
        size = int(np.clip(rng.lognormal(math.log(median), sigma), 4, most))
        return [words[n] for n in rng.integers(0, len(words), size)]

    rows: list[dict[str, Any]] = []
    for number in range(count):
        if task == "text-classification":
            rows.append({"text": " ".join(text()), "label": ("no", "yes")[number % 2]})
        elif task == "token-classification":
            tokens = text()
            rows.append({"tokens": tokens, "tags": [TAGS[n % len(TAGS)] for n in range(len(tokens))]})
        elif task == "sentence-similarity":
            rows.append({"text_a": " ".join(text()), "text_b": " ".join(text()), "score": float(number % 6)})
        else:
            context = text()
            place = int(rng.integers(len(context)))
            start = len(" ".join([*context[:place], ""]))
            answers = {"text": [context[place]], "answer_start": [start]}
            rows.append({"question": " ".join(text()[:11]), "context": " ".join(context), "answers": answers})
    return rows
