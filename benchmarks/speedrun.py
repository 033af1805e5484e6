"""What an encoder is worth after one budget of pretraining: trains it, fine-tunes four tasks of GLUE, prints
a line.

1. A tokenizer and an encoder from raw text, by a recipe of pretraining.
2. SST-2, CoLA, RTE and STS-B fine-tuned from it by their shipped recipes, each with several seeds.
3. With --random, the same from random weights: what pretraining must beat.
4. A row for a table; docs/pretraining.md has the rules.

Run:  python benchmarks/speedrun.py --corpora novels.jsonl.xz encyclopedia.jsonl.xz --data GLUE_data \
        [--recipe speedrun] [--seeds 1 2 3] [--random] [--overrides training.budget=60m …]
The same command again continues an interrupted run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from glue import over_seeds, recipe_of

from bertkit.errors import UserError
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.run import Run
from bertkit.tokenizer.train import train_tokenizer
from bertkit.training.train import train

SCORES = {  # task -> metric on its development set
    "sst2": "accuracy",
    "cola": "matthews_correlation",
    "rte": "accuracy",
    "stsb": "spearman",
}
# for encoders that are this small
FINE_TUNING = (
    "training.learning_rate=1e-3",
    "training.num_train_epochs=3",
)
COUNTED = "training.include_num_input_tokens_seen=non_padding"  # in metrics.jsonl
HEADER = ("date", "what", "budget", "steps", "million tokens", "perplexity", "SST-2", "CoLA", "RTE", "STS-B")


def row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def scores(runs: Mapping[str, Run]) -> list[str]:
    """Mean ± sd over the seeds of each task's score, times 100; "–" for a task that was not trained."""
    return [
        over_seeds([seed["metrics"]["validation"][metric] for seed in runs[task].results["seeds"]])
        if task in runs
        else "–"
        for task, metric in SCORES.items()
    ]


def pretraining(run: Run, recipe: Recipe, what: str) -> list[object]:
    """The cells of a pretraining: what was spent, and what it learned."""
    (seed,) = run.results["seeds"]
    events = map(json.loads, (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    tokens = max(event.get("num_input_tokens_seen", 0) for event in events) / 1e6
    budget = recipe.training.get("budget") or f"{seed['seconds'] / 60:.0f} min"
    perplexity = seed["metrics"]["validation"]["perplexity"]
    learned = "–" if perplexity is None else f"{perplexity:.1f}"  # None: infinite
    return [finished(run), what, budget, f"{seed['steps']:,}", f"{tokens:.1f}", learned]


def finished(run: Run) -> date:
    """The day on which it was."""
    return date.fromtimestamp((run.folder / "results.json").stat().st_mtime)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--corpora", nargs="+", type=Path, required=True, metavar="FILE", help="rows with a `text`"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="GLUE's published files")
    parser.add_argument("--recipe", default="speedrun", help="a recipe of pretraining from a config")
    parser.add_argument("--vocab-size", type=int, default=16_000)
    parser.add_argument("--tasks", nargs="*", choices=SCORES, default=list(SCORES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the fine-tuning")
    parser.add_argument("--random", action="store_true", help="fine-tune from random weights too")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/speedrun"))
    parser.add_argument("--overrides", nargs="+", default=[], metavar="key=value", help="of the pretraining")
    parser.add_argument(
        "--fine-tuning", nargs="+", default=FINE_TUNING, metavar="key=value", help="overrides"
    )
    args = parser.parse_args(arguments)
    folder, tokenizer = args.output_dir, args.output_dir / "tokenizer"
    try:
        if not tokenizer.is_dir():
            train_tokenizer(args.corpora, tokenizer, vocab_size=args.vocab_size)
        corpora = json.dumps([str(file) for file in args.corpora])
        given = [f"data.source.train={corpora}", f"model.tokenizer={tokenizer}", COUNTED, *args.overrides]
        recipe = load_recipe(args.recipe, given)
        run = train(recipe, folder / "pretraining", resume=True)
        starts = {"pretrained": [f"model.name={run.model}"]}
        if args.random:
            new = [f"model.config={json.dumps(recipe.model.config)}", f"model.tokenizer={tokenizer}"]
            starts["random"] = ["~model.name", *new]
        found = {}
        for name, model in starts.items():
            tuned = [*model, f"model.max_length={recipe.model.max_length}", *args.fine_tuning]
            recipes = {task: recipe_of(task, "minilm", args.data, args.seeds, tuned) for task in args.tasks}
            found[name] = {
                task: train(each, folder / name / task, resume=True) for task, each in recipes.items()
            }
    except UserError as error:
        raise SystemExit(str(error)) from None
    print(row(HEADER), row(["---"] * len(HEADER)), sep="\n")
    print(row([*pretraining(run, recipe, args.recipe), *scores(found["pretrained"])]))
    if args.random:
        print(row(["–", "random weights", *["–"] * 4, *scores(found["random"])]))


if __name__ == "__main__":
    main()
