"""The share of a training step that the CRF takes: its loss and gradient, in a step of MiniLM on sentences of
a file.

Run:  python benchmarks/crf_step.py wnut17/train.conll [--batch 32] [--steps 10]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from bertkit.data import load
from bertkit.encoding.padding import Collator
from bertkit.models.device import best_device, best_precision
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks.base import prepare
from bertkit.tasks.token_classification import TokenClassification, TokenClassificationOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    encoder = resolve_encoder(ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2"))
    options = TokenClassificationOptions(name="token-classification", head="crf")
    spec = DataSpec(source=args.file, delimiter="\t", limit=args.batch * args.steps)
    rows = load(spec, TokenClassification.schema, TokenClassification.rules(options)).rows["train"]
    task = prepare(TokenClassification, options, load_tokenizer(encoder.folder), 128, rows, [])
    assert isinstance(task, TokenClassification)
    features, collate = task.encode(rows), Collator.of(task.tokenizer, task.padding)
    device = best_device()
    model = task.model(encoder).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    wholes, shares = [], []
    for start in range(0, len(features), args.batch):
        batch = {k: v.to(device) for k, v in collate(features[start : start + args.batch]).items()}
        started = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=best_precision(device) == "bf16"):
            outputs = task.forward(model, batch)
        (task.loss(outputs, batch) / task.count(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        wholes.append(time.perf_counter() - started)
        chain = type(outputs["chain"])(*(part.detach().requires_grad_() for part in outputs["chain"]))
        alone = {"logits": outputs["logits"].detach().float().requires_grad_(), "chain": chain}
        started = time.perf_counter()
        task.loss(alone, batch).backward()
        shares.append((time.perf_counter() - started) / wholes[-1])
    print(f"{args.steps} steps of {args.batch} sentences, {len(task.tags)} tags, {device}")
    print(
        f"median step {statistics.median(wholes) * 1e3:.0f} ms, of which the CRF "
        f"{statistics.median(shares):.2%}"
    )


if __name__ == "__main__":
    main()
