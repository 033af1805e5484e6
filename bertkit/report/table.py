"""What `train` and `evaluate` print: short tables of scores."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.files import read_json
from bertkit.inference.display import example
from bertkit.tasks import get_task
from bertkit.text import columns

SHOWN = (
    "f1",
    "precision",
    "recall",
    "exact_match",
    "accuracy",
    "f1_macro",
    "f1_micro",
    "matthews_correlation",
    "roc_auc",
    "pearson",
    "spearman",
    "ndcg@10",
    "mrr@10",
    "recall@100",
    "mrr",
    "accuracy_at_1",
    "triplet_accuracy",
    "average_precision",
    "perplexity",
    "nsp_accuracy",
)


COUNTS = ("support/", "invalid_tags")  # whole numbers among the scores


def against_baselines(results: Mapping[str, Any], split: str) -> str:
    """The model's overall metrics on a split, with intervals, beside those of the simple models."""
    scores = results["splits"][split]
    headline = results["headline"]
    # Micro F1 of single labels is accuracy by another name.
    worth = [n for n in SHOWN if n != headline and not (n == "f1_micro" and "accuracy" in scores["metrics"])]
    names = [headline, *(n for n in worth if scores["metrics"].get(n) is not None)][:4]
    simple = results["baselines"].get(split, {})
    header = [f"{split} ({scores['rows']:,} rows)", "this model", "95 % interval", *simple]
    rows = [header]
    for name in names:
        rows.append(
            [name, number(scores["metrics"][name]), interval(scores["intervals"].get(name))]
            + [number(other.get(name)) for other in simple.values()]
        )
    return columns(rows)


def against_teacher(comparison: Mapping[str, Any]) -> str:
    """Teacher beside student: size, speed and the headline metric, as `compare_with_teacher` measures them."""
    shown = {
        "parameters": ("parameters, million", "{:.2f}", 1e-6),
        "megabytes": ("MB of safetensors", "{:.1f}", 1),
        "latency_ms": ("ms for one row", "{:.1f}", 1),
        "rows_per_second": ("rows/s in batches of 32", "{:.1f}", 1),
        "score": (comparison["headline"], "{:.4f}", 1),
    }
    rows = [
        [
            f"{comparison['split']} ({comparison['rows']:,} rows)",
            "teacher",
            "student",
            "student / teacher",
        ]
    ]
    for key, (title, style, times) in shown.items():
        values = [comparison[side][key] for side in ("teacher", "student")]
        ratio = comparison["student / teacher"][key]
        cells = ["–" if value is None else style.format(value * times) for value in values]
        rows.append([title, *cells, "–" if ratio is None else f"{ratio:.2f}"])
    rows.append(["95 % interval", *(interval(comparison[side]["interval"]) for side in ("teacher", "student")), ""])
    rows.append(["precision", *(comparison[side]["precision"] for side in ("teacher", "student")), ""])
    return f"{columns(rows)}\nTimed from text to answer on {comparison['device']}, {comparison['threads']} threads."


def scores_table(scores: Mapping[str, Any]) -> str:
    """All metrics of one evaluation with their intervals."""
    rows = [[f"{scores['split']} ({scores['rows']:,} rows)", "score", "95 % interval"]]
    for name, value in scores["metrics"].items():
        shown = f"{value:.0f}" if value is not None and name.startswith(COUNTS) else number(value)
        rows.append([name, shown, interval(scores["intervals"].get(name))])
    return columns(rows)


def number(value: float | None) -> str:
    """Four decimals, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def interval(bounds: Sequence[float] | None) -> str:
    """Such as 0.8812 … 0.9263, or nothing."""
    return f"{bounds[0]:.4f} … {bounds[1]:.4f}" if bounds else ""


def after_training(folder: Path, results: Mapping[str, Any]) -> str:
    """What `train` says at the end: scores against simple models, where the run is, what to type next."""
    parts = [against_baselines(results, split) for split in results["splits"]]
    if len(results["seeds"]) > 1:
        name = results["headline"]
        over = [f"{split} {m[name]['mean']:.4f} ± {m[name]['sd']:.4f}" for split, m in results["over_seeds"].items()]
        parts.append(f"{name} over {len(results['seeds'])} seeds (mean ± sd): {', '.join(over)}")
    parts += [against_teacher(results["distillation"])] if "distillation" in results else []
    parts += list(against_expected(results))
    parts += list(beaten(results))
    quoted = shlex.quote(str(folder))
    parts.append(
        f"The run is in {folder}, trained and scored in {results['seconds']:.0f} s. What to type next:\n"
        f"  {first_to_try(folder)}\n"
        f"  bertkit evaluate {quoted} --json\n"
        f"  less {quoted}/model/README.md\n"
        f"and open {folder}/report.html in a browser"
    )
    return "\n" + "\n\n".join(parts)


def first_to_try(folder: Path) -> str:
    """The first command to try on this run: a `bertkit predict` that works as it stands."""
    from bertkit.models.encoder import load_tokenizer

    settled = read_json(folder / "model" / "config.json")["bertkit"]["task"]
    task, pair = get_task(settled["name"]), settled.get("pair")
    reads = [names for names in task.schema.inputs if pair is None or pair == ("text_b" in names)]
    return example(folder, task, reads, load_tokenizer(folder / "model").mask_token)


def beaten(results: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each split on which a simple model does as well."""
    name = results["headline"]
    for split, scores in results["splits"].items():
        ours = scores["metrics"][name]
        for simple, theirs in results["baselines"].get(split, {}).items():
            if ours is not None and (theirs.get(name) or 0.0) >= ours:
                yield f"warning: on {split} the baseline {simple} is at least as good: train longer or look at the data"


def against_expected(results: Mapping[str, Any]) -> Iterator[str]:
    """For each metric that the recipe has an expectation of: within it or not, on validation (else the only split)."""
    split = "validation" if "validation" in results["splits"] else next(iter(results["splits"]))
    for name, bounds in (results["expected"] or {}).items():
        score = results["splits"][split]["metrics"].get(name)
        if isinstance(bounds, list) and score is not None:
            low, high = bounds
            word = "within" if low <= score <= high else "OUTSIDE"
            yield f"{split} {name} {score:.4f}: {word} the expected {low} to {high}"
