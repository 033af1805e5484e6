"""Entities in raw text of scripts with and without spaces: what a model learned by heart, wherever it is
asked.

For each file 300 sentences with entities are learned by a small BERT from scratch whose tokens are single
characters, so that a wrong answer is not a lack of training. Then the plain texts of the sentences are
answered by `predict`, by the exported ONNX graph and by the server, and their entities are compared with the
spans of the file.

    python benchmarks/any_script.py ../shared/data/scripts/klue_ko.tsv data.format=conll
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from starlette.testclient import TestClient
from transformers import BertConfig, BertModel

import bertkit
from bertkit.data import load
from bertkit.recipe.recipe import parse_layout
from bertkit.serving.app import model_app
from bertkit.serving.limits import Limits
from bertkit.serving.service import Service
from bertkit.tasks import get_task

ROWS, LONGEST = 300, 250
LEARNING_RATE = 2e-3


def encoder(folder: Path, texts: list[str]) -> str:
    """A BERT of 2 layers of 128 with a token for each character of these texts."""
    corpus = folder.parent / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    # no pair of characters is merged
    alone = {
        "cased": True,
        "min_frequency": 10**6,
        "limit_alphabet": 10_000,
    }
    tokenizer = bertkit.train_tokenizer([corpus], folder, vocab_size=25_000, max_length=512, **alone)
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes, **still)).save_pretrained(folder)
    return str(folder)


def found(answers: list[dict]) -> list[set[tuple]]:
    """The entities of answers: start, end, label."""
    return [
        {(entity["start"], entity["end"], entity["label"]) for entity in answer["entities"]}
        for answer in answers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--epochs", type=int, default=60)
    given = parser.parse_args()
    kind = get_task("token-classification")
    options = kind.Options(name=kind.name)
    spec = parse_layout(given.overrides).model_copy(update={"source": {"train": str(given.file)}})
    data = load(spec, kind.schema_of(options), kind.rules(options))
    train = data.rows["train"]
    spans = [{(span["start"], span["end"], span["label"]) for span in row} for row in train["spans"][:]]
    print(
        f"{given.file.name}: {len(train):,} rows, {sum(map(len, spans)):,} entities, unit "
        f"{data.options.words}"
    )
    first = {text: row for row, text in reversed([*enumerate(train["text"][:])])}  # of equal texts
    chosen = [row for text, row in first.items() if spans[row] and len(text) <= LONGEST]
    chosen = sorted(chosen)[:ROWS]
    texts, gold = [train[row]["text"] for row in chosen], [spans[row] for row in chosen]
    rows = [{"text": train[row]["text"], "spans": train[row]["spans"]} for row in chosen]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        training = {
            "num_train_epochs": given.epochs,
            "learning_rate": LEARNING_RATE,
            "per_device_train_batch_size": 16,
        }
        start = time.monotonic()
        run = bertkit.train(
            kind.name,
            folder / "run",
            data=rows,
            model={"name": encoder(folder / "encoder", texts), "max_length": 256},
            training={**training, "bf16": False},
            verify=False,
            explain=False,
        )
        print(
            f"unit of {len(rows)} rows: {run.load().task.unit}; trained in {time.monotonic() - start:.0f} s"
        )
        bertkit.export(run.folder, folder / "onnx")
        predictor = run.load()
        client = TestClient(model_app(Service(predictor, "model", Limits())))
        served = []
        with client:
            for start in range(0, len(texts), 10):
                response = client.post(
                    "/predict", json={"rows": [{"text": text} for text in texts[start : start + 10]]}
                )
                served += response.json()["answers"]
        answers = {
            "predict": predictor(texts),
            "onnx": bertkit.load(folder / "onnx")(texts),
            "serve": served,
        }
        for name, some in answers.items():
            entities = found(list(some))
            right = sum(len(mine & theirs) for mine, theirs in zip(entities, gold, strict=True))
            print(f"{name}: {right} of {sum(map(len, gold))} entities, {sum(map(len, entities))} found")


if __name__ == "__main__":
    main()
