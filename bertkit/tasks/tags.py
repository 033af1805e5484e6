"""Types of entities and their tags, settled from the training rows or read from a model's config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertkit.data import tagging
from bertkit.errors import DataError, ModelError, Problem
from bertkit.tasks.labels import balanced_weights, settle_weights

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PretrainedConfig


def type_of(tag: str) -> str:
    """The entity type of a tag; O for none."""
    return tag.partition("-")[2] or "O"


def settle_tags(options: Any, rows: Dataset, class_names: Sequence[str]) -> dict[str, Any]:
    """`labels`, `tags` and `class_weights` of these options, settled from the training rows. Raises DataError."""
    found = {kind for tags in rows["tags"] for kind, _, _ in tagging.entities(tags)}
    named = list(dict.fromkeys(type_of(name) for name in class_names if "-" in name))
    types = options.labels or named or sorted(found)
    if not types:
        raise DataError(Problem("data", "no row of train has an entity: there is nothing to learn"))
    if unknown := sorted(found - set(types)):
        what = f"train has entities that task.labels does not name: {', '.join(unknown[:10])}"
        raise DataError(Problem("task.labels", what, f"It names {', '.join(types)}; add them, or leave it out."))
    if odd := [kind for kind in types if kind == "O" or kind != kind.strip() or not kind.isprintable()]:
        what = f"{', '.join(map(repr, odd))} cannot be an entity type: O means none, and outer spaces would be lost"
        raise DataError(Problem("labels", what, "Rename it in the data."))
    needed = tagging.tag_names(types, options.scheme)
    tags = options.tags or needed
    if wrong := sorted(set(needed) ^ set(tags)):
        what = f"{options.scheme} tags for {', '.join(types)} are needed; missing or superfluous: {', '.join(wrong)}"
        raise DataError(Problem("task.tags", what, "Leave it out, or write them all."))
    balanced = balanced_weights(Counter(type_of(tag) for row in rows["tags"] for tag in row), ["O", *types])
    weights = settle_weights("class_weights", options.class_weights, balanced)
    return {"labels": types, "tags": tags, "class_weights": weights}


def tags_of_config(config: PretrainedConfig) -> dict[str, Any]:
    """`labels`, `tags` and `scheme` by a model's id2label. Raises ModelError where its labels are not entity tags."""
    tags = [str(name) for _, name in sorted((config.id2label or {}).items())]
    where = "config.json, id2label"
    try:
        scheme = tagging.find_scheme([[tag] for tag in tags])
    except ValueError as error:
        raise ModelError(Problem(where, f"its labels are not tags such as O, B-LOC, I-LOC: {error}")) from error
    if scheme == "BIOES":  # in BILOU's letters, perhaps
        tags = [{"L": "E", "U": "S"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    types = list(dict.fromkeys(type_of(tag) for tag in tags if tag != "O"))
    if "O" not in tags or not types:
        raise ModelError(Problem(where, f"its labels are {', '.join(tags[:10])}: without O, or nothing but O"))
    return {"labels": types, "tags": tags, "scheme": "BIOES" if scheme == "BIOES" else "BIO"}
