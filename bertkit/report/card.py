"""The model card: RUN/model/README.md, a pure function of the recipe and the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertkit.recipe import dump
from bertkit.report.table import against_baselines
from bertkit.tasks import get_task

if TYPE_CHECKING:
    from bertkit.recipe import Recipe

TEMPLATE = """\
---
library_name: transformers
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

Intervals are 95 % percentile bootstrap over rows.{seeds}

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


def card(recipe: Recipe, results: dict[str, Any]) -> str:
    """The card's text. Local paths in the recipe are not repeated."""
    local = recipe.model.name.startswith("/")
    name = "a local encoder" if local else recipe.model.name
    source = recipe.data.source if isinstance(recipe.data.source, str) else "local files"
    source = "local files" if source.startswith("/") else source
    public = recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update={"name": name}),
            "data": recipe.data.model_copy(update={"source": source}),
        }
    )
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
        plain=plain,
        arguments=arguments,
        extra=extra,
        limit=f"Texts are read up to {most}." if cuts else f"Texts are read in windows of {most}; nothing is cut.",
        base="" if local else f"base_model: {recipe.model.name}\n",
        title=f"{name} on {source}",
        name=name,
        description=results["task"]["description"],
        table="\n\n".join(against_baselines(results, split) for split in results["splits"]),
        seeds=seeds,
        recipe=dump(public),
    )
