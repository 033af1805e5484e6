"""The model card: RUN/model/README.md, a pure function of the recipe and the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertkit.recipe import dump
from bertkit.report.table import against_baselines, against_teacher
from bertkit.tasks import get_task

if TYPE_CHECKING:
    from bertkit.recipe import Distillation, ModelSpec, Recipe

TEMPLATE = """\
---
library_name: {library}
pipeline_tag: {tag}
{base}tags:
- bertkit
---

# {title}

{name}, fine-tuned for {task} ({description}) by bertkit.

## Scores

```text
{table}
```

Intervals are 95 % percentile bootstrap over {units}.{seeds}
{taught}
## Use it

```python
{plain}
```

With bertkit, answers are those that the scores above are of: {extra}.

```python
import bertkit

bertkit.load("PATH_OR_HUB_ID")({arguments})
```

## Limits

{limit} Scores hold for data like those above, and for no others.

## Recipe

```yaml
{recipe}```
"""


TAUGHT = """
It learned from a teacher (Hinton et al. 2015), which is larger:

```text
{bargain}
```
"""


def _public(model: ModelSpec) -> dict[str, str | None]:
    """The fields that would show a local path, without it."""
    fields = {"name": "a local encoder", "tokenizer": "a local tokenizer"}
    return {field: shown for field, shown in fields.items() if str(getattr(model, field)).startswith("/")}


def _public_teacher(distillation: Distillation | None) -> Distillation | None:
    if distillation is None or not distillation.teacher.startswith("/"):
        return distillation
    return distillation.model_copy(update={"teacher": "a local model"})


def card(recipe: Recipe, results: dict[str, Any]) -> str:
    """The card's text. Local paths in the recipe are not repeated."""
    source = recipe.data.source if isinstance(recipe.data.source, str) else "local files"
    source = "local files" if source.startswith("/") else source
    public = recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update=_public(recipe.model)),
            "data": recipe.data.model_copy(update={"source": source}),
            "distillation": _public_teacher(recipe.distillation),
        }
    )
    name = public.model.title
    seeds = ""
    if len(results["seeds"]) > 1:
        parts = [
            f"{split} {m[results['headline']]['mean']:.4f} ± {m[results['headline']]['sd']:.4f}"
            for split, m in results["over_seeds"].items()
            if results["headline"] in m
        ]
        seeds = f" Over {len(results['seeds'])} seeds, {results['headline']}: {', '.join(parts)} (mean ± sd)."
    plain, arguments, extra = get_task(recipe.task.name).usage
    cuts = recipe.task.model_dump().get("overflow", "window") == "truncate"
    most = f"{recipe.model.max_length} word pieces"
    return TEMPLATE.format(
        tag=get_task(recipe.task.name).tag or recipe.task.name,
        task=recipe.task.name,
        units="queries"
        if any({"queries", "worst_queries"} & each.keys() for each in results["splits"].values())
        else "rows",
        library="sentence-transformers" if "sentence_transformers" in plain else "transformers",
        plain=plain,
        arguments=arguments,
        extra=extra,
        limit=f"Texts are read up to {most}." if cuts else f"Texts are read in windows of {most}; nothing is cut.",
        base=f"base_model: {name}\n" if recipe.model.name == name else "",
        title=f"{name} on {source}",
        name=name,
        description=results["task"]["description"],
        table="\n\n".join(against_baselines(results, split) for split in results["splits"]),
        seeds=seeds,
        taught=TAUGHT.format(bargain=against_teacher(results["distillation"])) if "distillation" in results else "",
        recipe=dump(public),
    )
