"""Which model to use after cross-validation: that of all rows, the best fold's, or the mean of all folds'.

    python benchmarks/folds.py RECIPE OUTPUT_DIR [key=value …]

A recipe of text classification with a test split, which nothing else reads; `folds` is 5 unless an override
says otherwise. Prints the out-of-fold score (mean ± sd over folds; pooled, with its interval), and on test
the scores of the run's model, of the model of the fold with the highest score, and of the mean of the folds'
probabilities (regression: numbers), each with its 95 % interval. All answer with the temperature and
thresholds of the run's model."""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from transformers import TrainerCallback

from bertkit import load_recipe
from bertkit.errors import Problem, RecipeError
from bertkit.inference.evaluate import rows_of_split, scored
from bertkit.report.score_tables import interval, number, over_folds
from bertkit.tasks import class_labels
from bertkit.tasks.text_classification import TextClassification
from bertkit.text import columns
from bertkit.training.train import train


class Keep(TrainerCallback):
    """Keeps the model of each fold; their checkpoints are deleted."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {}

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        folder = Path(args.output_dir).name
        if folder.startswith("fold-"):
            self.models[folder] = deepcopy(model).cpu()


def mean(task: TextClassification, given: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The answers by the mean of the models' probabilities or numbers. given: a list of answers per model."""
    if task.kind == "regression":
        return [{"score": fmean(each["score"] for each in answers)} for answers in zip(*given, strict=True)]
    table = np.mean([[list(answer["scores"].values()) for answer in answers] for answers in given], axis=0)
    limits = task.options.thresholds
    if task.kind == "single-label":
        return list(class_labels.single_labels(task.names, table, limits))
    return [class_labels.assigned_labels(task.names, row, limits) for row in table.tolist()]


def main(recipe: str, folder: str, *overrides: str) -> None:
    """Train, and print the table."""
    loaded, keep = load_recipe(recipe, overrides), Keep()
    loaded = loaded if loaded.folds else loaded.with_("folds=5")
    if loaded.task.name != "text-classification":
        raise RecipeError(
            Problem("task.name", f"text-classification is compared here, not {loaded.task.name}")
        )
    run = train(loaded, folder, callbacks=[keep])
    final, results = run.load(), run.results
    _, rows = rows_of_split(run.folder, final, None, "test", ())
    assert isinstance(final.task, TextClassification)
    answers = {}
    for name, model in keep.models.items():
        predictor = replace(final, model=model.to(final.device))
        answers[name] = list(final.task.answer(rows, predictor.predict_features))
    folds = {
        f"fold-{each['fold']}": each["metrics"][results["headline"]] for each in results["folds"]["each"]
    }
    best = max(folds, key=lambda name: folds[name] or 0.0)
    table = [["on test", results["headline"], "95 % interval"]]
    for title, found in (
        ("all rows", list(final.task.answer(rows, final.predict_features))),
        (f"best fold ({best})", answers[best]),
        (f"mean of {len(answers)} folds", mean(final.task, list(answers.values()))),
    ):
        _, scores = scored(final.task, found, rows)
        bounds = interval(scores["intervals"].get(results["headline"]))
        table.append([title, number(scores["metrics"][results["headline"]]), bounds])
    print(f"{over_folds(results)}\n\n{columns(table)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
