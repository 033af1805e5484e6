"""The command `sweep`: a parser, and one call of the API."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bertkit.cli.shared import quiet_libraries


def sweep_command(commands: Any) -> None:
    """Add sweep to the subparsers of `bertkit`."""
    command = commands.add_parser("sweep", help="search the settings of a recipe that score best")
    command.add_argument("recipe", help="a shipped recipe's name, or a file")
    command.add_argument("rest", nargs="*", metavar="key=value", help="overrides, as for train")
    space = "YAML: key of the recipe -> {low, high, log, step}, or a list of choices"
    command.add_argument("--space", type=Path, required=True, metavar="FILE", help=space)
    command.add_argument("--output-dir", type=Path, required=True, metavar="DIR", help="new, or a sweep to resume")
    command.add_argument("--trials", type=int, default=20, metavar="N", help="trials in total; default: 20")
    command.add_argument("--timeout", type=float, metavar="SECONDS", help="no trial starts after this time")
    fresh = "fresh seeds on which the winner and the base recipe are trained; default: 3"
    command.add_argument("--confirm", type=int, default=3, metavar="SEEDS", help=fresh)
    command.set_defaults(run=_sweep)


def _sweep(args: argparse.Namespace) -> None:
    from bertkit.recipe.recipe import load_recipe
    from bertkit.sweeps.sweep import sweep

    recipe = load_recipe(args.recipe, args.rest)
    quiet_libraries()
    try:
        done = sweep(
            recipe, args.space, args.output_dir, trials=args.trials, timeout=args.timeout, confirm=args.confirm
        )
    except KeyboardInterrupt:
        print("\nthe same command continues from here", file=sys.stderr)
        raise
    print("\n".join(done.results["verdict"]))
    print(
        f"\nThe recipe is {done.folder}/best.yaml, its run {done.folder}/best, all trials in {done.folder}/sweep.html"
    )
