"""The command `explain`: a parser, and one call of the API."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from bertkit.cli.shared import quiet_libraries
from bertkit.errors import Problem, UserError


def explain_command(commands: Any) -> None:
    """Add explain to the subparsers of `bertkit`."""
    about = "which words made an answer: integrated gradients, and attention maps"
    command = commands.add_parser("explain", help=about)
    command.add_argument("source", metavar="RUN", help="a run folder, a model folder or a Hub id")
    what = "texts, or the two that the model reads together; none: the examples that the run's report shows"
    command.add_argument("rest", nargs="*", metavar="TEXT", help=what)
    kinds = "rows: csv, tsv, json, jsonl, parquet, conll, or txt with a text a line"
    command.add_argument("--input", type=Path, metavar="FILE", help=kinds)
    command.add_argument("--output", type=Path, metavar="FILE", help="also an HTML page, with attention maps")
    command.add_argument("--task", help="what a model is for that bertkit did not make")
    command.add_argument("--revision", metavar="NAME", help="of a Hub id: commit, tag or branch")
    command.add_argument("--json", action="store_true", help="print a JSON line for each row")
    command.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> None:
    if args.rest and args.input:
        raise UserError(Problem("", "explain takes texts, or --input FILE, but not both"))
    if not args.rest and not args.input:
        _explain_run(args)
        return
    quiet_libraries()
    from bertkit.explain.explain import explain_rows, rows_of
    from bertkit.explain.shown import EXPLAINED, lines
    from bertkit.inference.predictor import load, require_torch_model
    from bertkit.report.html import write_explained

    predictor = require_torch_model(load(args.source, revision=args.revision, task=args.task), args.source)
    found = explain_rows(predictor, rows_of(predictor, args.rest, args.input))
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for each in found:
        if args.json:
            print(json.dumps({**each, "attention": None}, ensure_ascii=False))
        else:
            print("\n".join(lines(each, colour)), end="\n\n")
    if not args.json:
        print(EXPLAINED)
    if args.output:
        print(write_explained(found, args.source, args.output), file=sys.stderr)


def _explain_run(args: argparse.Namespace) -> None:
    given = [name for name in ("output", "task", "revision", "json") if getattr(args, name)]
    if given:
        what = f"--{given[0]} goes with texts, or with --input FILE"
        raise UserError(Problem("", what, "bertkit explain RUN 'some text'"))
    quiet_libraries()
    from bertkit.report.examples import write_explanations
    from bertkit.report.facts import understood

    with understood(args.source):
        print(write_explanations(Path(args.source)))
    print(f"bertkit report {args.source} shows them", file=sys.stderr)
