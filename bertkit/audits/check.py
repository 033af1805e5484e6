"""`check`: everything that `train` checks before it trains, as a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.data.schema import Finding
from bertkit.recipe.recipe import MultiTaskRecipe, Recipe, read
from bertkit.training.job import Jobs, prepare_jobs


@dataclass(frozen=True)
class Checked:
    """A recipe that can be trained. findings: about data and model, by task, the most severe first."""

    findings: Mapping[str, Sequence[Finding]]
    jobs: Jobs = field(repr=False)

    def lines(self) -> Iterator[str]:
        """What the model reads and how often it is trained, for people."""
        for name, job in self.jobs.by_task.items():
            task = job.task
            first = task.examples(job.features, [0])["input_ids"][0]
            yield f"{f'{name}: ' if name else ''}{task.name}: {task.describe()}"
            yield f"first row as the model reads it: {task.tokenizer.decode(first)}"
        features_by_task = [(job.task, job.features) for job in self.jobs.by_task.values()]
        yield from filter(None, (part.summarize(features_by_task) for part in self.jobs.first.attachments))
        recipe = self.jobs.recipe
        folds = recipe.folds if isinstance(recipe, Recipe) else None
        ready = "ready to train"
        unit = " each seed" if len(recipe.seeds) > 1 else ""
        if folds:
            ready += f" {len(recipe.seeds) + folds} times: {folds} folds, and on all rows"
            unit = ", each"
        if budget := recipe.training.get("budget"):
            ready += f"{unit} for {budget}"
        yield ready


def check(
    recipe: Recipe | MultiTaskRecipe | Mapping[str, Any] | str | Path, *, data: Any = None, **overrides: Any
) -> Checked:
    """Check a recipe, its data and its model, without training.

    recipe, data, overrides: as for `train`. Returns `findings`: name of the task -> what is worth knowing of
    its data and model, each with `level` (severe, warn or note), `what` and `fix`; they are logged too.
    Raises RecipeError, DataError or ModelError, as `train` does, on what cannot be trained, such as a finding
    `fail`.

    >>> checked = bertkit.check("my.yaml")
    >>> [finding.what for finding in checked.findings["text-classification"] if finding.level == "severe"]
    []
    """
    jobs, findings = prepare_jobs(read(recipe, data, overrides))
    return Checked({name or jobs.only.task.name: findings[name] for name in findings}, jobs)
