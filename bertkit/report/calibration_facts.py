"""What a report says of calibration: temperature, thresholds, and the coverage of prediction sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.data.schema import Finding, warn
from bertkit.report.facts import Facts
from bertkit.report.score_tables import number
from bertkit.run import OUT_OF_FOLD
from bertkit.text import counted

COVERAGE = {
    "coverage": "requested coverage",
    "measured": "measured on test",
    "mean_size": "mean size of a set",
    "single": "sets of size one",
    "mean_width": "width of an interval",
}


def fitted_options(options: Mapping[str, Any]) -> Mapping[str, str]:
    """Temperature and thresholds, whether fitted or set by the recipe; those of single labels left out."""
    names = [name for name in ("temperature", "null_threshold", "threshold") if options.get(name) is not None]
    return {name.replace("_", " "): f"{options[name]:.4f}" for name in names}


def label_thresholds(options: Mapping[str, Any]) -> Mapping[str, float]:
    """The thresholds of single labels, if they have their own."""
    thresholds = options.get("thresholds")
    return thresholds if isinstance(thresholds, Mapping) else {}


def coverage_rows(facts: Facts) -> list[list[str]]:
    """How often sets or intervals had what is right on test; the first row is the header. Empty without any."""
    test = facts.results["splits"].get("test", {})
    rows = test.get("coverage", ())
    columns = [name for name in COVERAGE if any(name in row for row in rows)]
    table = [[f"{row['coverage']:g}", *(number(row.get(name)) for name in columns[1:])] for row in rows]
    return [[COVERAGE[name] for name in columns], *table] if rows else []


def fitted_on(facts: Facts) -> str:
    """On how many decisions the temperature was fitted, and how many were wrong; empty if it was not."""
    temperature = facts.recipe.task.model_dump().get("temperature")
    if temperature is not None or facts.options.get("temperature") is None:
        return ""
    split = "validation" if "validation" in facts.results["splits"] else OUT_OF_FOLD
    calibration = facts.results["splits"][split]["calibration"]
    return (
        f"fitted on {counted(calibration['decisions'], 'decision')} of {split}, {calibration['errors']:,} of them wrong"
    )


def calibrated_later(facts: Facts) -> list[Finding]:
    """That temperature and thresholds are no longer those of the scores, if `bertkit calibrate` changed them."""
    if not (calibrated := facts.calibrated):
        return []
    values = [f"{name} {value}" for name, value in fitted_options(calibrated["options"]).items()]
    values += [f"threshold of {name} {value:.4f}" for name, value in label_thresholds(calibrated["options"]).items()]
    on = f"{counted(calibrated['rows'], 'row')} (sha256 {calibrated['sha256'][:16]}…; {calibrated['goal']})"
    what = f"these scores are from before `bertkit calibrate`, which fitted on {on} what answers now use"
    return [warn(f"{what}: {', '.join(values)}", "Score the calibrated model with bertkit evaluate.")]
