"""The commands about finished runs: report, export, push."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bertkit
from bertkit.cli.shared import RUN, TASK, argument, command, flag, path, say
from bertkit.text import counted


@command(
    "write the HTML report of a run, or compare runs",
    path("runs", "a finished run folder", "RUN", nargs="+"),
    path("--output", "default: RUN/report.html for one run, comparison.html for several"),
    example="bertkit report runs/first runs/second",
    page="report",
)
def report(runs: list[Path], output: Path | None) -> None:
    from bertkit.report.html import write_report
    from bertkit.text import columns

    if len(runs) == 1:
        say(write_report(runs[0], output))
        return
    page, pairs = bertkit.compare(runs, output)
    for pair in pairs:
        say(
            f"{columns(pair.differences)}\n\n{pair.verdict} {pair.rows}\n"
            if pair.differences
            else f"{pair.verdict}\n"
        )
    say(page)


@command(
    "export a run as an ONNX graph and compare it with the run",
    RUN,
    TASK,
    path("--output", "a new folder", "DIR", required=True),
    flag("--int8", "quantise to int8: a quarter of the size, and faster on CPUs"),
    argument(
        "--max-drop",
        "with --int8: largest accepted drop of the task's first metric",
        default=0.005,
        metavar="X",
    ),
    path("--data", "labelled rows for the comparison; default: the run's validation, test or train rows"),
    example="bertkit export runs/quickstart --output runs/quickstart-onnx --int8",
    page="export",
)
def export(source: str, output: Path, **options: Any) -> None:
    facts = bertkit.export(source, output, **options)
    headline = facts["headline"]
    rows = f"{counted(facts['fp32']['rows'], 'row')} ({facts['split']})"
    say(f"{output}: {facts['task']}, compared with the model on {rows}")
    for name in ("fp32", "int8"):
        if figures := facts.get(name):
            values = [metrics.get(headline) for metrics in figures["metrics"].values()]
            scores = " -> ".join("-" if value is None else f"{value:.4f}" for value in values)
            equal = figures["rows"] - figures["answers_differ"]
            say(f"  {name}: {figures['megabytes']:.1f} MB, {headline} {scores}, {equal:,} equal predictions")


@command(
    "upload a run's model to the Hub in one commit",
    path("source", "the folder of a finished run", "RUN"),
    argument("repo_id", "owner/model; a new repository is private", metavar="REPO_ID"),
    flag("--public", "make the repository public once the upload is complete"),
    flag("--name-private", "with --public: the card may name models and data sets that are not public"),
    flag("--dry-run", "only print what would be uploaded and deleted"),
    argument("--revision", "default: main", metavar="BRANCH"),
    example="bertkit push runs/quickstart you/quickstart --dry-run",
    page="hub",
)
def push(**options: Any) -> None:
    pushed = bertkit.push(options.pop("source"), options.pop("repo_id"), **options)
    say(pushed.table())
    if pushed.commit is None:
        unknown = "; which files of an older model would be deleted is not known" * (pushed.deleted is None)
        say(f"\nnothing was uploaded: --dry-run{unknown}")
    else:
        say(f'\n{pushed.url}\nbertkit.load("{pushed.repo_id}", revision="{pushed.commit}")')
