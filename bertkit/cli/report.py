"""The command `report`: a parser, and one call of the API."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def report_command(commands: Any) -> None:
    """Add report to the subparsers of `bertkit`."""
    command = commands.add_parser("report", help="a run as one HTML page, or several side by side")
    command.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run folder")
    where = "default: RUN/report.html of one run, comparison.html of several"
    command.add_argument("--output", type=Path, metavar="FILE", help=where)
    command.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from bertkit.report.html import write_report

    print(write_report(args.runs, args.output))
