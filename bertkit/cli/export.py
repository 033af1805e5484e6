"""The command `export`: a parser, and one call of the API."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def export_command(commands: Any) -> None:
    """Add export to the subparsers of `bertkit`."""
    command = commands.add_parser("export", help="a run as one ONNX graph, held against the run")
    command.add_argument("source", metavar="RUN", help="a run folder, a model folder or a Hub id")
    command.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    command.add_argument("--int8", action="store_true", help="quantise: a quarter of the size, and faster on CPUs")
    drop = "with --int8: how far the headline metric may fall; default: 0.005"
    command.add_argument("--max-drop", type=float, default=0.005, metavar="X", help=drop)
    command.add_argument("--opset", type=int, metavar="N", help="of ONNX, for older runtimes; default: 20")
    rows = "labelled rows to hold the export against; default: the run's validation rows"
    command.add_argument("--data", type=Path, metavar="FILE", help=rows)
    command.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from bertkit.cli.shared import quiet_libraries
    from bertkit.export.graph import OPSET
    from bertkit.export.program import export

    quiet_libraries()
    opset = OPSET if args.opset is None else args.opset
    said = export(args.source, args.output, int8=args.int8, max_drop=args.max_drop, opset=opset, data=args.data)
    headline = said["headline"]
    print(f"{args.output}: {said['task']}, held against the model on {said['fp32']['rows']:,} rows ({said['split']})")
    for name in ("fp32", "int8"):
        if figures := said.get(name):
            scores = " -> ".join(
                "-" if v is None else f"{v:.4f}" for v in (m.get(headline) for m in figures["metrics"].values())
            )
            same = f"{figures['rows'] - figures['answers_differ']:,} answers equal"
            print(f"  {name}: {figures['megabytes']:.1f} MB, {headline} {scores}, {same}")
