"""The model card: RUN/model/README.md, a pure function of the recipe and the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertkit.recipe import dump
from bertkit.report.table import against_baselines

if TYPE_CHECKING:
    from bertkit.recipe import Recipe

TEMPLATE = """\
---
library_name: transformers
pipeline_tag: {task}
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


PIPELINE = """\
from transformers import pipeline

pipeline("{task}", model="PATH_OR_HUB_ID")("your text")"""
PIECES = """\
from transformers import pipeline

# Each word piece's best tag. Entities as bertkit gives them, with the CRF where there is one, need bertkit.
pipeline("{task}", model="PATH_OR_HUB_ID", aggregation_strategy="first")("your text")"""
USES = {  # task -> how plain transformers loads it, how bertkit is asked, what bertkit adds
    "text-classification": (
        PIPELINE,
        '"your text"',
        "calibrated, with fitted thresholds, and telling what was cut off",
    ),
    "token-classification": (
        PIECES,
        '"your text"',
        "whole words, long texts, calibrated scores of entities, and the CRF where there is one",
    ),
    "question-answering": (
        """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

model = AutoModelForQuestionAnswering.from_pretrained("PATH_OR_HUB_ID")
tokenizer = AutoTokenizer.from_pretrained("PATH_OR_HUB_ID")""",
        'question="…", context="…"',
        "the best span of texts of any length, calibrated, with the fitted threshold of no answer",
    ),
}


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
    plain, arguments, extra = USES[recipe.task.name]
    cuts = recipe.task.model_dump().get("overflow", "window") == "truncate"
    most = f"{recipe.model.max_length} word pieces"
    return TEMPLATE.format(
        task=recipe.task.name,
        plain=plain.format(task=recipe.task.name),
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
