"""Prediction beside transformers, in one run: rows per second from texts to answers, with equal answers.

(a) transformers as people call it: `pipeline(task)(texts)`, its default batch of one. For question-answering,
which
    has no pipeline any more, a loop over the questions with the model's windows.
(b) the same with the texts sorted by length, in its best batch size of 8, 16, 32 and 64.
(c) bertkit in fp32, like (a) and (b); the answers of (a), (b) and (c) are asserted to be equal. But for rows
where they
    are not meant to be: texts of several windows, and tags of no entities (I-X after O), which bertkit does
    not give.
(d) bertkit as it is: bf16 where this machine has it in hardware.

Each contestant answers a few rows first, to warm up; then they take turns, and the median of each ratio is
printed.

Run:  python benchmarks/predict.py RUN FILE [--rows 1000] [--rounds 3]
RUN is a run for text-classification, token-classification or question-answering; FILE has rows like its
training data."""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, pipeline

from bertkit import data as sources
from bertkit.inference.predictor import Predictor, load
from bertkit.models.device import best_device
from bertkit.recipe.recipe import load_recipe

Contestant = Callable[[Sequence[Any]], list[Any]]  # rows -> what answers are compared by
SIZES = (8, 16, 32, 64)


def classified(folder: Path, limit: int, size: int, **how: Any) -> Contestant:
    """The label of each text."""
    pipe = pipeline("text-classification", model=str(folder), **how)

    def answer(rows: Sequence[Any]) -> list[Any]:
        told = pipe([row["text"] for row in rows], batch_size=size, truncation=True, max_length=limit)
        return [each["label"] for each in told]

    return answer


def tagged(folder: Path, limit: int, size: int, **how: Any) -> Contestant:
    """The tag of each word, which is that of its first word piece."""
    pipe = pipeline("token-classification", model=str(folder), **how)

    def answer(rows: Sequence[Any]) -> list[Any]:
        told = pipe([" ".join(row["tokens"]) for row in rows], batch_size=size)
        return [_tags(row["tokens"], pieces) for row, pieces in zip(rows, told, strict=True)]

    return answer


def _tags(words: Sequence[str], pieces: Sequence[Any]) -> list[str]:
    by_start = {piece["start"]: piece["entity"] for piece in pieces}
    tags, place = [], 0
    for word in words:
        tags.append(by_start.get(place, "O"))
        place += len(word) + 1
    return tags


def sound(tags: Any) -> bool:
    """Do these tags begin every entity with a B-? Answers that are not tags are always sound."""
    if isinstance(tags, str):
        return True
    before = ["O", *tags]
    return all(tag[:2] != "I-" or last[1:] == tag[1:] for last, tag in zip(before, tags, strict=False))


def asked(folder: Path, limit: int, size: int, options: Any, **how: Any) -> Contestant:
    """The text of each answer: the best span of a context, over windows of it that go to the model `size` at
    a time.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, **how).to(best_device()).eval()

    def answer(rows: Sequence[Any]) -> list[Any]:
        best: list[tuple[float, str]] = [(float("-inf"), "")] * len(rows)
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            windows = tokenizer(
                [row["question"].strip() for row in part],
                [row["context"] for row in part],
                truncation="only_second",
                max_length=limit,
                stride=min(options.stride, limit // 3),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                padding=True,
                return_tensors="pt",
            )
            inputs = {name: windows[name].to(model.device) for name in tokenizer.model_input_names}
            with torch.inference_mode():
                outputs = model(**inputs)
            logits = outputs.start_logits.cpu(), outputs.end_logits.cpu()
            for window, row in enumerate(windows["overflow_to_sample_mapping"].tolist()):
                inside = torch.tensor([side == 1 for side in windows.sequence_ids(window)])
                start, end = (each[window].masked_fill(~inside, -torch.inf) for each in logits)
                spans = start[:, None] + end[None]
                allowed = torch.ones_like(spans).triu().tril(options.max_answer_length - 1).bool()
                spans = spans.masked_fill(~allowed, -torch.inf)
                at = divmod(int(spans.argmax()), spans.shape[1])
                places = windows["offset_mapping"][window]
                text = part[row]["context"][int(places[at[0], 0]) : int(places[at[1], 1])]
                best[first + row] = max(
                    best[first + row], (float(spans[at]), text), key=lambda found: found[0]
                )
        return [text for _, text in best]

    return answer


def ours(predictor: Predictor) -> Contestant:
    """What the predictor answers, as the others' answers are."""
    inputs = {"text-classification": ["text"], "token-classification": ["tokens"]}.get(
        predictor.task.name, ["question", "context"]
    )

    def answer(rows: Sequence[Any]) -> list[Any]:
        answers: Any = predictor([{name: row[name] for name in inputs} for row in rows])
        if predictor.task.name == "token-classification":
            return [[word["tag"] for word in each["words"]] for each in answers]
        return [
            each["label" if predictor.task.name == "text-classification" else "answer"] for each in answers
        ]

    return answer


def sorted_by_length(contestant: Contestant) -> Contestant:
    """The contestant, given its rows longest first; the answers are back in the rows' order."""

    def length(row: Any) -> int:
        return sum(
            len(row[name]) for name in ("text", "text_a", "text_b", "question", "context") if name in row
        ) or sum(map(len, row.get("tokens", [])))

    def answer(rows: Sequence[Any]) -> list[Any]:
        order = sorted(range(len(rows)), key=lambda index: -length(rows[index]))
        told = dict(zip(order, contestant([rows[index] for index in order]), strict=True))
        return [told[index] for index in range(len(rows))]

    return answer


def seconds(contestant: Contestant, rows: Sequence[Any]) -> tuple[float, list[Any]]:
    started = time.perf_counter()
    answers = contestant(rows)
    return time.perf_counter() - started, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    recipe = load_recipe(args.run / "recipe.yaml", check_files=False)
    exact, folder = load(args.run, precision="fp32"), args.run / "model"
    spec = recipe.data.model_copy(
        update={"source": {"train": str(args.file)}, "limit": args.rows, "validation": None}
    )
    table = sources.load(spec, exact.task.schema, exact.task.rules(recipe.task)).rows["train"]
    rows, windows = list(table), Counter(exact.task.encode(table)["row"][:])
    limit = exact.task.max_length
    makers: dict[str, Callable[[int], Contestant]] = {
        "text-classification": lambda size: classified(folder, limit, size),
        "token-classification": lambda size: tagged(folder, limit, size),
        "question-answering": lambda size: asked(folder, limit, size, exact.task.options),
    }
    make = makers[exact.task.name]
    few = rows[:: max(len(rows) // 128, 1)][:128]
    batched = {size: sorted_by_length(make(size)) for size in SIZES}
    best = min(SIZES, key=lambda size: (batched[size](few[:8]), seconds(batched[size], few)[0])[1])
    contestants = {"a": make(1), "b": batched[best], "c": ours(exact), "d": ours(load(args.run))}
    for contestant in contestants.values():
        contestant(few[:16])
    versions = (
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"{versions}, {best_device().type}; {exact.task.name}, {len(rows)} rows; (b) in batches of {best}")

    rounds = []
    for number in range(1, args.rounds + 1):
        times, answers = {}, {}
        for name, contestant in contestants.items():
            times[name], answers[name] = seconds(contestant, rows)
        for name in "bc":
            pairs = enumerate(zip(answers["a"], answers[name], strict=True))
            wrong = [
                index
                for index, (theirs, other) in pairs
                if theirs != other and sound(theirs) and windows[index] == 1
            ]
            assert not wrong, (
                f"({name}) answers {len(wrong)} rows otherwise than (a), first row {wrong[0] + 1}"
            )
        rounds.append(times)
        told = "  ".join(f"({name}) {len(rows) / passed:.1f}" for name, passed in times.items())
        same = statistics.fmean(x == y for x, y in zip(answers["a"], answers["d"], strict=True))
        print(f"round {number}: {told} rows/s; (d) answers {same:.2%} of the rows as (a)", flush=True)
    for ours_name in "cd":
        ratios = (statistics.median(times[other] / times[ours_name] for times in rounds) for other in "ab")
        print("median: ({}) is {:.1f} x (a) and {:.2f} x (b)".format(ours_name, *ratios))


if __name__ == "__main__":
    main()
