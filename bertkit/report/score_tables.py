"""Scores as short text tables, as `train` and `evaluate` print them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bertkit.errors import Problem
from bertkit.evaluation.intervals import COUNTS
from bertkit.files import read_json
from bertkit.inference.display import example
from bertkit.report.facts import Facts, read_facts
from bertkit.report.verdict import best_baseline, score_findings, verdict
from bertkit.run import OUT_OF_FOLD
from bertkit.tasks import get_task
from bertkit.text import Lines, Record, columns, counted, shell_word

OVERALL = (
    "bleu chrf f1 precision recall exact_match accuracy f1_macro f1_micro matthews_correlation roc_auc "
    "pearson spearman ndcg@10 mrr@10 recall@100 mrr accuracy_at_1 triplet_accuracy average_precision "
    "perplexity nsp_accuracy"
).split()


def overall_metrics(metrics: Record, headline: str) -> list[str]:
    """The headline, and then the metrics over all rows that are defined."""
    repeated = "f1_micro" if "accuracy" in metrics else ""  # micro F1 of single labels is accuracy
    return [headline, *(n for n in OVERALL if metrics.get(n) is not None and n not in (headline, repeated))]


def over_seeds(results: Record) -> dict[str, str]:
    """Split -> mean ± standard deviation of the headline over several seeds, if every seed has it."""
    means = {split: metrics.get(results["headline"]) for split, metrics in results["over_seeds"].items()}
    several = len(results["seeds"]) > 1
    return {
        split: f"{mean['mean']:.4f} ± {mean['sd']:.4f}" for split, mean in means.items() if mean and several
    }


def over_folds(results: Record) -> str:
    """Mean ± standard deviation of the headline over folds, and its pooled score; empty without folds."""
    name = results["headline"]
    folds = results.get("folds")
    if not folds:
        return ""
    mean = f"{name} over {folds['count']} folds (mean ± sd): {mean_of_folds(results)}"
    return f"{mean}; of all their rows: {with_interval(results['splits'][OUT_OF_FOLD], name)}"


def mean_of_folds(results: Record) -> str:
    """Mean ± standard deviation of the headline over folds, or a dash."""
    name = results["headline"]
    folds = results["folds"]
    return f"{folds['mean'][name]:.4f} ± {folds['sd'][name]:.4f}" if name in folds["mean"] else "–"


FITTED = ("temperature", "null_threshold", "threshold", "thresholds", "cutoffs")  # null in a recipe: fitted


def fitted_options(options: Record) -> dict[str, str]:
    """Temperature and thresholds, whether fitted or set by the recipe; those of single labels left out."""
    return {
        name.replace("_", " "): f"{options[name]:.4f}"
        for name in FITTED
        if isinstance(options.get(name), float)
    }


def selection(facts: Facts, hint: str = "; hold out a test split: data: {test: 0.1}") -> str:
    """Which split chose what of the model, and which one judges it; empty where nothing was chosen.

    hint: what to do where both are one split.
    """
    results = facts.results
    by = "validation" if "validation" in results["splits"] else OUT_OF_FOLD
    if by not in results["splits"]:
        return ""
    evaluations = Counter(event["seed"] for event in facts.log if f"eval_{facts.headline}" in event)
    last = facts.recipe.training.get("load_best_model_at_end") is False
    stated = facts.recipe.task.model_dump()
    selected = any(
        seed["best_step"] and not seed.get("undecided") and evaluations[seed["seed"]] > 1
        for seed in results["seeds"]
    )
    chosen = ["the checkpoint"] * (selected and not last)
    chosen += ["the seed"] * (len(results["seeds"]) > 1)
    fitted = (name for name in FITTED if facts.options.get(name) is not None and stated.get(name) is None)
    chosen += [f"the {name.replace('_', ' ')}" for name in fitted]
    *others, end = chosen or [""]
    what = " and ".join(filter(None, [", ".join(others), end]))
    if what and facts.split != by:
        return f"Scores of {facts.split} judge the model; {by} chose {what}."
    if what in ("", "the temperature") or by == OUT_OF_FOLD:  # a temperature changes no answer
        return ""
    hint = "" if "test" in facts.data["rows"] else hint
    return f"Validation also chose {what}, so its scores are optimistic{hint or '.'}"


def number(value: float | None) -> str:
    """Four decimals, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def interval(bounds: Sequence[float] | None) -> str:
    """An interval as text, such as 0.8812 … 0.9263, or nothing."""
    return f"{bounds[0]:.4f} … {bounds[1]:.4f}" if bounds else ""


def cells(scores: Record, metric: str) -> list[str]:
    """A metric and its interval as two cells of a table."""
    return [number(scores["metrics"].get(metric)), interval(scores["intervals"].get(metric))]


def with_interval(scores: Record, metric: str) -> str:
    """A metric and its interval, if it has one, in one cell."""
    score, bounds = cells(scores, metric)
    return f"{score} ({bounds})" if bounds else score


def baselines_table(results: Record, split: str) -> str:
    """The first four overall metrics on a split, with intervals, next to those of the baselines."""
    scores = results["splits"][split]
    baselines = results["baselines"].get(split, {})
    model = "models of folds" if split == OUT_OF_FOLD else "this model"
    rows = [[f"{split} ({counted(scores['rows'], 'row')})", model, "95 % interval", *baselines]]
    for name in overall_metrics(scores["metrics"], results["headline"])[:4]:
        theirs = (number(metrics.get(name)) for metrics in baselines.values())
        rows.append([name, *cells(scores, name), *theirs])
    return columns(rows)


def scores_table(scores: Record) -> str:
    """All metrics of one evaluation with their intervals."""
    rows = [[f"{scores['split']} ({counted(scores['rows'], 'row')})", "score", "95 % interval"]]
    for name, value in scores["metrics"].items():
        text = f"{value:.0f}" if value is not None and name.startswith(COUNTS) else number(value)
        rows.append([name, text, interval(scores["intervals"].get(name))])
    by = by_rows(scores, next(iter(scores["metrics"])))
    return columns(rows) + (f"\n\n{columns(by)}" if by else "")


def by_rows(scores: Record, metric: str) -> Lines:
    """The metric by the values of the column that `data.by` names; the first row is the header. Empty without
    one.
    """
    table = []
    for column, values in scores.get("by", {}).items():
        table.append([column, "rows", metric, "95 % interval"])
        for value, group in values.items():
            table.append([value, f"{group['rows']:,}", *cells(group, metric)])
    return table


def calibration_table(calibration: Record) -> str:
    """What `calibrate` fitted: scores by label and overall, on how many rows for what, temperature, null
    threshold.
    """
    title = f"{counted(calibration['rows'], 'row')}, {calibration['goal']}"
    measures = ("threshold", "precision", "recall", "f1")
    rows = [["label", "threshold", "precision", "recall", "F1", "support"]]
    for label in calibration["labels"]:
        changes = [_changed(label, name) for name in measures]
        rows.append([label["label"], *changes, f"{label['support']:,}"])
    table = [columns(rows)] if calibration["labels"] else []
    overall = calibration.get("overall", {})
    scores = (f"{name.replace('_', ' ')} {_changed(overall, name)}" for name in overall if name != "before")
    fitted = ", ".join(map(" ".join, fitted_options(calibration["options"]).items()))
    return "\n".join(filter(None, [*table, ", ".join(scores), f"{title}: {fitted}" if fitted else title]))


def _changed(now: Record, name: str) -> str:
    """A number, after what it was before where that differs."""
    before = number(now["before"][name])
    after = number(now[name])
    return after if before == after else f"{before} → {after}"


def after_training(folder: Path, results: Record) -> str:
    """What `train` prints at the end: scores compared with baselines, where the run is, what to type next."""
    if "tasks" in results:
        return after_tasks(folder, results)
    facts = read_facts(folder)
    over = ", ".join(f"{split} {text}" for split, text in over_seeds(results).items())
    findings = sorted(score_findings(results), key=lambda finding: finding.severity)
    quoted = shell_word(folder)
    parts = [
        *(baselines_table(results, split) for split in results["splits"]),
        f"{results['headline']} over {len(results['seeds'])} seeds (mean ± sd): {over}" if over else "",
        over_folds(results),
        verdict(results, facts.findings).text,
        selection(facts),
        *(str(Problem(finding.level, finding.what, finding.fix)) for finding in findings),
        f"The run is in {folder}, trained and scored in {results['seconds']:.0f} s. What to type next:\n"
        f"  {first_to_try(folder)}\n"
        f"  bertkit evaluate {quoted} --json\n"
        f"  less {quoted}/model/README.md\n"
        f"and open {folder}/report.html in a browser",
    ]
    return "\n" + "\n\n".join(filter(None, parts))


def after_tasks(folder: Path, results: Record) -> str:
    """What a run of several tasks prints: a line for each."""
    rows = [["task", "", "split", "metric", "score", "95 % interval", "best baseline"]]
    for name, result in results["tasks"].items():
        best = best_baseline(read_json(folder / name / "results.json"), result["split"])
        scores = [number(result["score"]), interval(result["interval"]), number(best.score if best else None)]
        rows.append([name, result["task"], result["split"], result["headline"], *scores])
    names = list(results["tasks"])
    commands = "\n".join(f"  {first_to_try(folder / name)}" for name in names)
    said = (
        f"mean of the {len(names)} scores: {number(results['mean'])}",
        f"The run is in {folder}, trained and scored in {results['seconds']:.0f} s; "
        f"each task has a run of its own: {', '.join(names)}. What to type next:\n{commands}",
    )
    return "\n" + "\n\n".join([columns(rows), *said])


def first_to_try(folder: Path) -> str:
    """The first command to try on this run: a `bertkit predict` that works without changes."""
    from bertkit.models.encoder import load_tokenizer
    from bertkit.models.untrusted import vet

    settled = read_json(folder / "model" / "config.json")["bertkit"]["task"]
    task = get_task(settled["name"])
    pair = settled.get("pair")
    reads = [names for names in task.schema.inputs if pair is None or pair == ("text_b" in names)]
    return example(folder, task, reads, load_tokenizer(vet(folder / "model")).mask_token)
