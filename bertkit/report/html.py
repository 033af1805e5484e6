"""report.html: one self-contained page, a pure function of the facts of a run, or of several side by side."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bertkit.errors import Problem, UserError
from bertkit.files import write_text
from bertkit.report import calibrated, comparison, explained, pictures, sections
from bertkit.report.facts import Facts, read_facts, understood
from bertkit.report.mistakes import mistakes
from bertkit.report.table import against_teacher

LEVELS = {"fail": 0, "warn": 1, "note": 2}


def write_report(runs: Sequence[str | Path], output: str | Path | None = None) -> Path:
    """Write the report of one run, or the comparison of several; returns its path.

    output: RUN/report.html for one run, ./comparison.html for several, where none is given.
    Raises ModelError for a folder that is not a finished run, UserError for damaged files.
    """
    if not runs:
        raise UserError(Problem("", "no run to report on", "bertkit report RUN"))
    alone = len(runs) == 1
    path = Path(output) if output else Path(runs[0]) / "report.html" if alone else Path("comparison.html")
    facts = []
    for run in runs:
        with understood(run):
            facts.append(read_facts(run))
    with understood(", ".join(map(str, runs))):
        write_text(path, report(facts[0]) if alone else compare(facts))
    return path


def write_explained(found: Sequence[Mapping[str, Any]], name: str, output: Path) -> Path:
    """Write explanations of the model of this name, as `explain` gives them, as one page; returns its path."""
    shown = Path(name).name if Path(name).is_dir() else name
    write_text(output, _page("explanation.html", name=shown, explained=explained.explained(found)))
    return output


def report(facts: Facts) -> str:
    """The page of one run. Everything that comes from the data is escaped."""
    confusion = sections.confusion(facts)
    lengths = facts.lengths and pictures.lengths(facts.lengths.pieces, facts.lengths.limit)
    return _page(
        "report.html",
        facts=facts,
        summary=sections.summary(facts),
        warnings=sections.warnings(facts),
        overview=sections.overview(facts),
        scores=sections.score_rows(facts),
        teacher=against_teacher(facts.results["distillation"]) if "distillation" in facts.results else "",
        options=sections.named_options(facts),
        training=sections.training(facts),
        seeds=sections.seed_rows(facts),
        labels=sections.per_label(facts),
        few=sections.FEW,
        confusion=confusion,
        confused=[] if confusion else sections.confused(facts),
        transitions=sections.transitions(facts),
        own=sections.own_pictures(facts),
        reliability=calibrated.reliability(facts),
        lengths=lengths,
        mistakes=mistakes(facts),
        explained=explained.explained(facts.explanations.get("examples", [])),
        nearest=explained.nearest(facts.explanations.get("neighbours", [])),
        findings=sorted(facts.data["findings"], key=lambda each: LEVELS[each["level"]]),
        splits=_splits(facts),
        environment=[["what", "value"], *comparison.flat(facts.environment).items()],
    )


def compare(facts: Sequence[Facts]) -> str:
    """The page of several runs, by number in pictures and by name in tables."""
    names = comparison.names(facts)
    return _page(
        "comparison.html",
        names=names,
        first=comparison.lead(facts, names),
        warnings=comparison.warnings(facts),
        summaries=[sections.summary(each) for each in facts],
        overview=comparison.overview(facts),
        scores=comparison.score_rows(facts, names),
        training=comparison.training(facts),
        labels=comparison.label_rows(facts, names),
        recipes=comparison.differing([each.recipe.model_dump(mode="json") for each in facts], names),
        environments=comparison.side_by_side([each.environment for each in facts], names),
    )


def _splits(facts: Facts) -> list[list[str]]:
    prints: Mapping[str, str] = facts.data["fingerprints"]
    rows = facts.data["rows"]
    return [["split", "rows", "sha256"], *([name, f"{rows[name]:,}", prints[name]] for name in rows)]


def _page(template: str, **parts: Any) -> str:
    templates = library()
    script = templates.get_template("script.js").render()
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = templates.get_template(template)
    # The script is ours; every value of `parts` is escaped by the template.
    return page.render(
        **parts, version=version("bertkit"), script=Markup(script), script_hash=Markup(f"'sha256-{digest}'")
    )


@cache
def library() -> Environment:
    """The templates of every page; what is put into them is escaped."""
    return Environment(
        loader=PackageLoader("bertkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
