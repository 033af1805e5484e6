"""The command `doctor`: a parser, and one call of the API."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bertkit.cli.shared import quiet_libraries


def doctor_command(commands: Any) -> None:
    """Add doctor to the subparsers of `bertkit`."""
    command = commands.add_parser("doctor", help="devices, versions, extras, and numeric checks of the fast paths")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    """Returns 2 where a check fails."""
    quiet_libraries()
    from bertkit.cli.machine import doctor, shown

    found = doctor()
    print(json.dumps(found, indent=2) if args.json else shown(found))
    return 0 if found["ok"] else 2
