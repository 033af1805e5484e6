"""How many wrong labels an audit finds, and what correcting them is worth.

    python benchmarks/label_noise.py RECIPE OUTPUT_DIR [--share 0.1] [--seed 0] [--skip-training] [key=value
    …]

A recipe of text classification (one label) or token classification (entities) with a validation split. A
share of the training labels is made wrong at random: a label becomes another one; an entity gets another
type, is dropped, or one of its ends moves by a word. Printed are, for the first rows of the audit's list, how
many were made wrong (precision, and recall), and how many get their true label back by the suggestion; then
the scores on validation after training on the true labels, on the wrong ones, and on these corrected by the
first rows, as many as were made wrong: once without these rows, once with the suggestions. Nobody reads the
rows in between, as one should."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import audit, load_recipe, train
from bertkit.data import load
from bertkit.data.tagging import Entity, entities, tags_of
from bertkit.files import write_json, write_text
from bertkit.recipe.recipe import Recipe
from bertkit.tasks import get_task
from bertkit.text import columns

FIRST = (50, 100, 200)  # rows of the list


def rows_of(recipe: Recipe) -> dict[str, list[dict[str, Any]]]:
    """The rows of train and validation, in canonical columns."""
    kind = get_task(recipe.task.name)
    data = load(recipe.data, kind.schema_of(recipe.task), kind.rules(recipe.task))
    if "validation" not in data.rows:
        raise SystemExit("no validation split to score on: set data.validation")
    return {split: list(data.rows[split]) for split in ("train", "validation")}


def with_wrong_labels(
    rows: list[dict[str, Any]], share: float, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The rows, of which so many, rounded, have another label."""
    labels = sorted({row["label"] for row in rows})
    noisy = list(rows)
    for index in rng.permutation(len(rows))[: round(share * len(rows))].tolist():
        others = [label for label in labels if label != rows[index]["label"]]
        noisy[index] = {**rows[index], "label": others[rng.integers(len(others))]}
    return noisy


def with_wrong_entities(
    rows: list[dict[str, Any]], share: float, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The rows, in which so many entities, rounded, have another type or end, or are dropped."""
    found = [entities(row["tags"]) for row in rows]
    types = sorted({kind for each in found for kind, _, _ in each})
    places = [(row, index) for row, each in enumerate(found) for index in range(len(each))]
    for place in rng.permutation(len(places))[: round(share * len(places))].tolist():
        row, index = places[place]
        each = found[row]
        each[index] = damaged(each, index, len(rows[row]["tags"]), types, rng)
    return [
        {**row, "tags": tags_of([one for one in each if one[0]], len(row["tags"]), "BIO")}
        for row, each in zip(rows, found, strict=True)
    ]


def damaged(
    others: list[Entity], index: int, words: int, types: list[str], rng: np.random.Generator
) -> Entity:
    """Another entity in place of this one; one without a type is dropped."""
    kind, first, end = others[index]
    outside = [place for one, a, b in (*others[:index], *others[index + 1 :]) if one for place in range(a, b)]
    moved = [(first - 1, end), (first + 1, end), (first, end - 1), (first, end + 1)]
    moved = [(a, b) for a, b in moved if 0 <= a < b <= words and not {a, b - 1} & set(outside)]
    how = rng.integers(3)
    if how == 0 and len(types) > 1:
        return [each for each in types if each != kind][rng.integers(len(types) - 1)], first, end
    if how == 1 and moved:
        return kind, *moved[rng.integers(len(moved))]
    return "", first, end


def written(recipe: Recipe, folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Recipe:
    """The recipe, whose data are these rows in files of this folder."""
    for split, each in rows.items():
        write_text(
            folder / f"{split}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in each)
        )
    return recipe.with_(data={"source": {split: str(folder / f"{split}.jsonl") for split in rows}})


def main() -> None:
    """Make labels wrong, audit, print; then train and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-training", action="store_true", help="print what the audit finds alone")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    recipe = load_recipe(args.recipe, args.overrides)
    rows, rng = rows_of(recipe), np.random.default_rng(args.seed)
    target = "tags" if recipe.task.name == "token-classification" else "label"
    if target not in rows["train"][0]:
        raise SystemExit(f"the training rows have no `{target}`")
    damage = with_wrong_entities if target == "tags" else with_wrong_labels
    noisy = {**rows, "train": damage(rows["train"], args.share, rng)}
    wrong = {
        f"train.jsonl:{number}": true[target]
        for number, (true, given) in enumerate(zip(rows["train"], noisy["train"], strict=True), 1)
        if true[target] != given[target]
    }
    true_recipe, noisy_recipe = (
        written(recipe, args.folder / name, each) for name, each in (("true", rows), ("noisy", noisy))
    )
    found = audit(noisy_recipe, args.folder / "audit").parts[0]
    hits = np.array([row["location"] in wrong for row in found.rows], dtype=float)
    restored = np.array([row[target] == wrong.get(row["location"]) for row in found.rows], dtype=float)
    print(f"{len(wrong):,} of {len(rows['train']):,} rows of train made wrong; {found.summary}")
    print("; ".join(f"{title}: {value}" for title, value in found.figures.items()))
    counts = sorted({k for k in (*FIRST, len(wrong), len(hits)) if 0 < k <= len(hits)})
    table = [
        [
            f"{k:,}",
            f"{hits[:k].mean():.3f}",
            f"{hits[:k].sum() / len(wrong):.3f}",
            f"{restored[:k].mean():.3f}",
        ]
        for k in counts
    ]
    print(columns([["first rows", "precision", "recall", "restored"], *table]))
    results: dict[str, Any] = {"wrong": len(wrong), "rows": len(rows["train"]), "table": table, "scores": {}}
    if not args.skip_training:
        first = args.folder / "first.jsonl"
        write_text(
            first, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows[: len(wrong)])
        )
        without = [f"data.{key}={first}" for key in ("exclude", "relabel")]
        trained = {
            "true labels": true_recipe,
            "wrong labels": noisy_recipe,
            "first rows excluded": noisy_recipe.with_(without[0]),
            "first rows relabelled": noisy_recipe.with_(without[1]),
        }
        for number, (name, each) in enumerate(trained.items()):
            scores = train(each.with_("folds=null"), args.folder / f"run-{number}").results
            results["scores"][name] = scores["splits"]["validation"]["metrics"][scores["headline"]]
            print(f"{name}: {scores['headline']} {results['scores'][name]:.4f}", flush=True)
    write_json(args.folder / "noise.json", results)


if __name__ == "__main__":
    main()
