"""report.html: one self-contained page, a pure function of the facts of one run, or of several runs
compared.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from bertkit.data.delimited import write_csv
from bertkit.errors import UserError
from bertkit.files import is_special, write_text, written_aside
from bertkit.report import comparison, matrices, report_sections
from bertkit.report.facts import Facts, damage_as_error, read_facts
from bertkit.report.mistakes import Mistake, Mistakes, mistakes
from bertkit.report.paired import Pair
from bertkit.report.score_tables import by_rows
from bertkit.text import Record, printable, unique

# A set of a regular expression: the blocks of Hebrew, Arabic, Syriac, Thaana, N'Ko, Adlam and older scripts
RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001eeff"


def write_report(run: str | Path, output: str | Path | None = None) -> Path:
    """Write the report of a run, with a csv of its mistakes; returns the page's path.

    output: by default RUN/report.html, beside mistakes.csv. The mistakes of NAME.html are in
    NAME-mistakes.csv, but not beside a device. Raises ModelError for a folder that is not a finished run,
    UserError for damaged files.
    """
    path = Path(output or Path(run) / "report.html").expanduser()
    table = path.with_name(f"{path.stem}-mistakes.csv" if output else "mistakes.csv")
    with damage_as_error(run):
        facts = read_facts(run)
        wrong = mistakes(facts)
        beside = not is_special(path)
        page = report(facts, wrong, table.name if beside else "")
        if wrong and beside:
            write_mistakes(facts, wrong, table)
        write_text(path, page)
    return path


def write_mistakes(facts: Facts, mistakes: Mistakes, path: Path) -> None:
    """Write all mistakes as csv that spreadsheets read: whole texts in UTF-8, with a byte order mark."""
    rows = [facts.schema.shown(facts.rows[mistake.row - 1]) for mistake in mistakes.every]
    names = unique(name for row in rows for name in row if name != "document" or mistakes.unit == "rows")
    header = ["row", "id", "location", "gold", "answer", mistakes.measure, *names]

    def cells(mistake: Mistake, texts: Record) -> list[Any]:
        row = facts.rows[mistake.row - 1]
        place = (mistake.row, row.get("id", ""), row.get("location", ""))
        return [*place, mistake.gold, mistake.answer, mistake.measure, *(texts[name] for name in names)]

    with written_aside(path, "utf-8-sig") as file:
        write_csv(file, chain([header], map(cells, mistakes.every, rows)), path.name)


class Comparison(NamedTuple):
    """The page that `compare` wrote; and the pairs, the first run with each of the others: `verdict`,
    `differences`.
    """

    page: Path
    pairs: list[Pair]


def compare(runs: Sequence[str | Path], output: str | Path | None = None) -> Comparison:
    """Compare the scores, answers, sizes and recipes of several runs of one task, on a page.

    output: by default ./comparison.html. The first run is compared with each of the others, by paired tests.
    Raises ModelError for a folder that is not a finished run, UserError for damaged files or different tasks.

    >>> (pair,) = bertkit.compare(["runs/quickstart", "runs/quickstart"]).pairs
    >>> pair.better  # neither
    ''
    """
    if len(runs) < 2:
        raise UserError("runs", "expected two runs or more, found one", "Add another run.")
    path = Path(output or "comparison.html").expanduser()
    facts = []
    for folder in runs:
        with damage_as_error(folder):
            facts.append(read_facts(folder))
    with damage_as_error(", ".join(map(str, runs))):
        common = set.intersection(*(set(run.results["splits"]) for run in facts))
        shared = [split for split in facts[0].results["splits"] if split in common]
        if shared and len({run.split for run in facts}) > 1:
            facts = [read_facts(folder, shared[-1]) for folder in runs]
        pairs = comparison.pairs(facts)
        write_text(path, page_of(facts, pairs))
    return Comparison(path, pairs)


def write_explanations_page(explanations: Sequence[Record], source: str, output: Path) -> Path:
    """Write explanations of the model at `source`, as `explain` returns them, as one page; returns its
    path.
    """
    name = Path(source).name if Path(source).is_dir() else source
    write_text(
        output, render("explanation.html", name=name, explained=report_sections.explained(explanations))
    )
    return output


def report(facts: Facts, wrong: Mistakes | None, table: str) -> str:
    """The page of one run. wrong, table: its mistakes, and the name of their file, if there is one."""
    return render(
        "report.html",
        facts=facts,
        sections=report_sections,
        reliability=report_sections.reliability(facts),
        by=by_rows(facts.scores, facts.headline),
        confusion=matrices.confusion(facts, wrong),
        confused=matrices.confused(facts),
        transitions=matrices.transitions(facts),
        mistakes=wrong,
        csv=table,
        explained=report_sections.explained(facts.explanations.get("examples", [])),
    )


def page_of(facts: Sequence[Facts], pairs: Sequence[Pair]) -> str:
    """The page of several runs, which pictures identify by number and tables by name."""
    return render(
        "comparison.html", facts=facts, pairs=pairs, names=comparison.names(facts), comparison=comparison
    )


def render(template: str, **parts: Any) -> str:
    """A page, its parts escaped, with bertkit's own style and script."""
    templates = library()
    script = templates.get_template("script.js").render()
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The script is bertkit's own; the template escapes every value of `parts`.
    trusted = {"script": Markup(script), "script_hash": Markup(f"'sha256-{digest}'")}
    page = templates.get_template(template).render(**parts, **trusted, version=version("bertkit"))
    return printable(page, "\r")


@cache
def library() -> Environment:
    """The templates of all pages, which escape their values."""
    pages = Environment(
        loader=PackageLoader("bertkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["isolated"] = isolated
    return pages


def isolated(sentence: str, answer: bool = False) -> Markup:
    """An English sentence, escaped, in which words that are written from right to left do not move what
    follows them.

    answer: it may be in any language; one that begins with such a word stays as it is.
    """
    if answer and re.match(rf"\W*[{RIGHT_TO_LEFT}]", sentence):
        return escape(sentence)
    words = rf"[{RIGHT_TO_LEFT}](?:[{RIGHT_TO_LEFT}\u200c-\u200f -]*[{RIGHT_TO_LEFT}])?"
    return Markup(re.sub(words, r"<bdi>\g<0></bdi>", str(escape(sentence))))
