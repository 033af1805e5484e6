"""Question answering from logits to answers, beside a nested loop over the best starts and ends; features per
second.

Ours: `keep` of every batch, then `decode`. The loop is what the usual script does: of each window the n best
starts with the n best ends, without those outside the context, backwards or too long; of a question all of
them sorted, the n best kept, softmax, texts. It runs twice: with offsets at hand as lists, and our rule of
which window a start counts in; and as `run_qa.py` has its features, rows of a data set, with logits padded to
the longest window, and each candidate's logits told. It may miss the best span, ours may not: a best span of
the loop is ours, or scores less. Logits are noise, or noise with a peak in each window, as a trained model
has it: then more of the loop's pairs are spans. CPU seconds of one thread, of ours the least of three runs.

Run:  python benchmarks/qa_decode.py [--questions 10570] [--squad dev.json]
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from bertkit.data.readers import read_rows
from bertkit.encoding.padding import Collator, batches_by_length
from bertkit.encoding.pieces import Tokenized, tokenize
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.models.heads.spans import WindowSpans
from bertkit.sections import DataSpec, ModelSpec
from bertkit.tasks.question_answering import QuestionAnswering, QuestionAnsweringOptions

T = TypeVar("T")

ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
MAX_LENGTH, BATCH, N_BEST, LONGEST = 384, 32, 20, 30
WORDS = (
    "the river old town small bridge of and was built "
    "stood north market every stone church winter in a 1642 ,"
).split()

Candidate = dict[str, Any]


def made_up(questions: int) -> list[dict[str, str]]:
    """Five questions per text; texts of 60 to 240 words, one of thirty of 500 to 1,000."""
    rng = random.Random(0)
    rows: list[dict[str, str]] = []
    while len(rows) < questions:
        size = rng.randint(500, 1000) if rng.random() < 1 / 30 else rng.randint(60, 240)
        context = " ".join(rng.choices(WORDS, k=size)) + "."
        rows += [
            {"question": f"what {' '.join(rng.choices(WORDS, k=9))}?", "context": context} for _ in range(5)
        ]
    return rows[:questions]


def squad(file: Path, questions: int) -> list[dict[str, str]]:
    """Questions of a SQuAD file, from the start again where there are too few."""
    rows = [
        {n: row[n] for n in ("question", "context")} for _, row in read_rows(file, DataSpec(source=str(file)))
    ]
    return (rows * (questions // len(rows) + 1))[:questions]


def draw(length: int, height: float, generator: torch.Generator) -> Tensor:
    """Start and end logits (2, length): noise, and a peak at a span of at most 8 pieces, as a trained model
    has it.
    """
    first = int(torch.randint(length, (), generator=generator))
    last = first + int(torch.randint(8, (), generator=generator))
    distance = (torch.arange(length) - torch.tensor([[first], [last]])).abs()
    return 2 * torch.randn(2, length, generator=generator) + height * torch.exp(-distance / 4)


class Contest:
    """The same windows and logits for both."""

    def __init__(self, task: QuestionAnswering, rows: Dataset, features: Dataset, peaks: float) -> None:
        self.task, self.rows, self.features = task, rows, features
        generator = torch.Generator().manual_seed(0)
        self.logits = [draw(length, peaks, generator) for length in features["length"]]
        self.order = batches_by_length(features["length"][:], BATCH)
        collate = Collator.of(task.tokenizer, task.padding)
        self.batches = [(self.outputs(indices), collate(features[indices])) for indices in self.order]
        self.contexts = tokenize(task.tokenizer, rows["context"])
        self.windows: defaultdict[int, list[Any]] = defaultdict(list)
        columns = zip(
            *(features[c][:] for c in ("row", "low", "count", "place", "first", "end")), strict=True
        )
        for index, (row, *window) in enumerate(columns):
            self.windows[row].append(self.for_the_loop(index, self.contexts[row], *window))

    def outputs(self, indices: np.ndarray) -> SimpleNamespace:
        """A model's outputs: start and end logits, each `(windows, pieces)`."""
        both = [
            torch.nn.utils.rnn.pad_sequence([self.logits[i][side] for i in indices], True) for side in (0, 1)
        ]
        return SimpleNamespace(start_logits=both[0], end_logits=both[1])

    def for_the_loop(
        self, index: int, pieces: Tokenized, low: int, count: int, place: int, first: int, end: int
    ) -> Any:
        """Start logits, end logits; offsets, None outside the context; may an answer start here?; a shift to
        pieces.
        """
        starts, ends = self.logits[index].numpy()
        offsets: list[tuple[int, int] | None] = [None] * len(starts)
        offsets[place : place + count] = zip(
            pieces.starts[low : low + count].tolist(), pieces.ends[low : low + count].tolist(), strict=True
        )
        own = [first <= at - place + low < end for at in range(len(starts))]
        return starts, ends, offsets, own, low - place

    def keep(self) -> list[WindowSpans]:
        kept: list[Any] = [None] * len(self.features)
        with torch.inference_mode():
            for indices, (outputs, batch) in zip(self.order, self.batches, strict=True):
                for index, item in zip(
                    indices,
                    self.task.items({n: v.numpy() for n, v in self.task.reduce(outputs, batch).items()}),
                    strict=True,
                ):
                    kept[index] = item
        return kept

    def loop(self) -> list[list[Candidate]]:
        return [nested_loop(self.windows[row], context) for row, context in enumerate(self.rows["context"])]

    def table(self) -> Callable[[], list[list[Candidate]]]:
        """The loop over features as rows of a data set, which is not part of what it is timed for."""
        held = [(row, window) for row, windows in sorted(self.windows.items()) for window in windows]
        logits = np.full((2, len(held), MAX_LENGTH), -100, dtype=np.float32)
        offsets = []
        for index, (_, (starts, ends, places, _, _)) in enumerate(held):
            logits[:, index, : len(starts)] = starts, ends
            offsets.append(places + [None] * (MAX_LENGTH - len(places)))
        told = Dataset.from_dict({"example_id": [str(row) for row, _ in held], "offset_mapping": offsets})
        return lambda: scripted(self.rows, told, logits)

    def missed(self, kept: list[WindowSpans], candidates: list[list[Candidate]]) -> int:
        """Questions whose best span the loop did not find. Raises AssertionError where we did not."""
        best: dict[int, tuple[float, int, int]] = {}
        for row, window in zip(self.features["row"], kept, strict=True):
            if len(window.scores):
                found = (float(window.scores[0]), int(window.first[0]), int(window.last[0]))
                best[row] = max(best.get(row, found), found)
        missed = 0
        for row, own in enumerate(candidates):
            theirs = own[0] if own else {"score": -np.inf}
            assert theirs["score"] <= best[row][0], (row, theirs, best[row])
            missed += theirs["score"] < best[row][0]
            assert theirs["score"] < best[row][0] or theirs["span"] == best[row][1:], (row, theirs, best[row])
        return missed


def nested_loop(windows: list[Any], context: str) -> list[Candidate]:
    """The n_best candidates of a question, best first."""
    found: list[Candidate] = []
    for starts, ends, offsets, own, shift in windows:
        best_starts = np.argsort(starts)[-1 : -N_BEST - 1 : -1].tolist()
        best_ends = np.argsort(ends)[-1 : -N_BEST - 1 : -1].tolist()
        for start in best_starts:
            for end in best_ends:
                if offsets[start] is None or offsets[end] is None or not own[start]:
                    continue
                if end < start or end - start + 1 > LONGEST:
                    continue
                found.append(
                    {
                        "offsets": (offsets[start][0], offsets[end][1]),
                        "score": starts[start] + ends[end],
                        "span": (start + shift, end + shift),
                    }
                )
    return ended(found, context)


def ended(found: list[Candidate], context: str) -> list[Candidate]:
    """The best of these, best first, with their probabilities and texts."""
    found = sorted(found, key=itemgetter("score"), reverse=True)[:N_BEST]
    scores = np.array([each["score"] for each in found])
    gains = np.exp(scores - scores.max(initial=-np.inf))
    for each, chance in zip(found, gains / gains.sum(), strict=True):
        each["probability"] = float(chance)
        each["text"] = context[slice(*each["offsets"])]
    return found


def scripted(rows: Dataset, features: Dataset, logits: np.ndarray) -> list[list[Candidate]]:
    """The n_best candidates of each question, best first, of `logits` (2, windows, pieces)."""
    by_question: defaultdict[str, list[int]] = defaultdict(list)
    for index, feature in enumerate(features):
        by_question[feature["example_id"]].append(index)
    return [
        script(row["context"], features, by_question[str(number)], logits) for number, row in enumerate(rows)
    ]


def script(context: str, features: Dataset, windows: list[int], logits: np.ndarray) -> list[Candidate]:
    """Of one question."""
    found: list[Candidate] = []
    for index in windows:
        starts, ends = logits[:, index]
        offsets = features[index]["offset_mapping"]
        best_starts = np.argsort(starts)[-1 : -N_BEST - 1 : -1].tolist()
        best_ends = np.argsort(ends)[-1 : -N_BEST - 1 : -1].tolist()
        for start in best_starts:
            for end in best_ends:
                if start >= len(offsets) or end >= len(offsets) or not offsets[start] or not offsets[end]:
                    continue
                if end < start or end - start + 1 > LONGEST:
                    continue
                found.append(
                    {
                        "offsets": (offsets[start][0], offsets[end][1]),
                        "score": starts[start] + ends[end],
                        "start_logit": starts[start],
                        "end_logit": ends[end],
                    }
                )
    return [
        {k: float(v) if isinstance(v, np.floating) else v for k, v in each.items()}
        for each in ended(found, context)
    ]


def seconds(run: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds, which a busy machine changes least; and what came of it."""
    started = time.process_time()
    result = run()
    return time.process_time() - started, result


def processor() -> str:
    """Its name, as Linux says it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor()
    )


def compare(name: str, contest: Contest) -> None:
    """Prints the seconds of both. Raises AssertionError where the loop has a better answer."""
    task, features, rows = contest.task, contest.features, contest.rows
    keeping, kept = min((seconds(contest.keep) for _ in range(3)), key=itemgetter(0))
    decoding, answers = min(
        (seconds(lambda: task.decode(kept, features, rows)) for _ in range(3)), key=itemgetter(0)
    )
    looping, candidates = seconds(contest.loop)
    over_rows, told = seconds(contest.table())
    # of several windows it counts spans twice
    for row, (one, other) in enumerate(zip(candidates, told, strict=True)):
        assert len(contest.windows[row]) > 1 or [c["text"] for c in one] == [c["text"] for c in other], row
    for answer, context in zip(answers, rows["context"], strict=True):
        assert answer["answer"] == context[answer["start"] : answer["end"]]
    mine, missed = keeping + decoding, contest.missed(kept, candidates)
    print(f"{name}   ours {mine:.2f} s: keep {keeping:.2f}, decode {decoding:.2f}")
    print(f"        loop {looping:.2f} s, {looping / mine:.1f} times ours; ", end="")
    print(f"it misses the best span of {missed:,} questions")
    print(f"        over rows of a data set {over_rows:.2f} s, {over_rows / mine:.1f} times ours")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=10_570)
    parser.add_argument("--squad", type=Path, metavar="FILE", help="real contexts; default: made up")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, {processor()}")
    rows = Dataset.from_list(squad(args.squad, args.questions) if args.squad else made_up(args.questions))
    options = QuestionAnsweringOptions(
        name="question-answering", n_best=N_BEST, max_answer_length=LONGEST, unanswerable=False
    )
    task = QuestionAnswering(
        options, load_tokenizer(resolve_encoder(ModelSpec(name=ENCODER)).folder), MAX_LENGTH
    )
    encoding, features = seconds(lambda: task.encode(rows))
    print(
        f"encode  {len(rows):,} questions, {len(features):,} windows: {len(features) / encoding:,.0f} "
        "windows/s"
    )
    for name, peaks in (("noise", 0.0), ("peaks", 10.0)):
        compare(name, Contest(task, rows, features, peaks))


if __name__ == "__main__":
    main()
