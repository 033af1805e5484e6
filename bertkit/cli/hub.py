"""The command that has to do with the Hub: its parser, and one call of the API."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bertkit.cli.shared import quiet_libraries


def hub_commands(commands: Any) -> None:
    """Add push to the subparsers of `bertkit`."""
    command = commands.add_parser("push", help="upload a run's model to the Hub, in one commit")
    command.add_argument("source", type=Path, metavar="RUN", help="the folder of a finished run")
    command.add_argument("repo_id", metavar="REPO_ID", help="owner/model; a new one is private")
    command.add_argument("--public", action="store_true", help="everybody may see it, once all is there")
    command.add_argument("--dry-run", action="store_true", help="only print what would be sent")
    command.add_argument("--revision", metavar="BRANCH", help="default: main")
    command.add_argument("--create-pr", action="store_true", help="a pull request instead of a commit")
    command.add_argument("--predictions", action="store_true", help="RUN/predictions too, with the rows of the data")
    command.add_argument("--report", action="store_true", help="RUN/report.html too, with some rows of the data")
    command.set_defaults(run=_push)


def _push(args: argparse.Namespace) -> None:
    from bertkit.hub.push import push

    quiet_libraries()
    pushed = push(
        args.source,
        args.repo_id,
        public=args.public,
        dry_run=args.dry_run,
        revision=args.revision,
        create_pr=args.create_pr,
        predictions=args.predictions,
        report=args.report,
    )
    print(pushed.table())
    if pushed.commit is None:
        print("\nnothing was sent: --dry-run")
    else:
        print(f'\n{pushed.url}\nbertkit.load("{pushed.repo_id}", revision="{pushed.commit}")')
