"""What `task.packing` saves, and what its attention mask costs on a CPU.

The share of special tokens and padding in batches of 32, with and without packing, of the documents of each file; then
the time of forward and backward of a new BERT-mini for full rows, with the mask of packed rows over that of padding.

Run:  python benchmarks/packing.py enwiki2014.jsonl.xz SST-2/train.tsv [--documents 300 5000]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from datasets import Dataset

from bertkit import data as sources
from bertkit.engine.batching import batches_of
from bertkit.models.bert.bert import BertForMaskedLM, config
from bertkit.models.bert.packing import packed_inputs
from bertkit.models.cpu_kernels import faster
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks.pretraining import Pretraining, PretrainingOptions

BATCH, ROUNDS = 32, 9


def wasted(task: Pretraining, rows: Dataset) -> str:
    """The number of rows, and the share of all positions of an epoch that hold no text."""
    features = task.features(rows)
    lengths = np.asarray(features["length"][:])
    slots = sum(max(lengths[batch]) * len(batch) for batch in batches_of(task, features, BATCH, None))
    text = sum(map(len, features["input_ids"]))
    return f"{len(features):,} rows, {1 - text / slots:.1%} padding and special tokens"


def seconds(rows: int, length: int, bf16: bool) -> tuple[float, float]:
    """Median time of forward and backward: with a mask for padding, and with one for two texts in each row."""
    torch.manual_seed(0)
    model = BertForMaskedLM(config("mini", vocab_size=8000, pad_token_id=0, max_position_embeddings=512)).train()
    ids, chosen = torch.randint(5, 8000, (rows, length)), torch.rand(rows, length) < 0.15
    positions = torch.arange(length).repeat(rows, 1)
    positions[:, length // 2 :] -= length // 2
    masks = {"attention_mask": torch.ones_like(ids)}, packed_inputs(model.config, positions)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(ROUNDS):
        for taken, more in zip(times, masks, strict=True):
            start = time.process_time()
            with faster(torch.device("cpu")), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = model(ids, position=chosen, **more).prediction_logits
            logits.float().logsumexp(-1).sum().backward()
            model.zero_grad()
            taken.append(time.process_time() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--documents", type=int, nargs="+", default=[300, 5000], help="of each file")
    parser.add_argument("--column", default="sentence", help="of the text, in .tsv files")
    given = parser.parse_args()
    tokenizer = load_tokenizer(resolve_encoder(ModelSpec(name="sentence-transformers/all-MiniLM-L6-v2")).folder)
    for file, count in zip(given.files, given.documents, strict=True):
        columns = {"text": given.column} if file.endswith(".tsv") else {}
        spec = DataSpec(source={"train": file}, limit={"train": count}, columns=columns)
        rows = sources.load(spec, Pretraining.schema).rows["train"]
        for length in (128, 512):
            for packing in (False, True):
                options = PretrainingOptions(name="pretraining", nsp="none", packing=packing)
                said = wasted(Pretraining(options, tokenizer, length), rows)
                print(f"{file}, {length} tokens, {'packed' if packing else 'not packed'}: {said}")
    for rows_, length in ((32, 128), (8, 512)):
        for bf16 in (False, True):
            padded, packed = seconds(rows_, length, bf16)
            print(f"{rows_} x {length}, {'bf16' if bf16 else 'fp32'}: {packed / padded:.2f} of {padded:.2f} s")


if __name__ == "__main__":
    main()
