"""The command line: it parses, calls the API, prints. Heavy libraries are imported by the command that needs
them.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

from bertkit.cli import doctor, model_commands, recipes, runs, vector_commands
from bertkit.cli.shared import SECTIONS, LogFormatter, argument, command, say
from bertkit.errors import UserError, not_installed
from bertkit.text import first_line

FIRST = "bertkit train quickstart --output-dir runs/quickstart"
SITE = "https://bertkit.readthedocs.io"


@command(
    "print a script of completions for bash, zsh or fish",
    argument("shell", "the shell", choices=("bash", "zsh", "fish")),
    example='eval "$(bertkit completion bash)"',
    page="install",
)
def completion(shell: str) -> None:
    import shtab

    say(shtab.complete(make_parser(), shell))


COMMANDS = {
    "recipes": (recipes.init, recipes.recipes, recipes.show, recipes.copy, recipes.check),
    "train": (recipes.train, recipes.sweep, recipes.tokenizer_train),
    "use": (
        model_commands.predict,
        model_commands.serve,
        vector_commands.embed,
        vector_commands.index,
        vector_commands.search,
    ),
    "decide": (
        model_commands.evaluate,
        runs.report,
        model_commands.calibrate,
        model_commands.explain,
        recipes.audit,
    ),
    "publish": (runs.export, runs.push),
    "tools": (vector_commands.mine, completion, doctor.doctor),
}
# environment variables that turn off the progress bars and notices of libraries which are not imported yet
QUIET = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, or 2 for errors that the user can fix; a bug is a traceback and 1."""
    options = vars(parse(argv))
    command = options.pop("command")
    try:
        _set_up_output()
        with ended_by_signals():
            code = command.run(**options) or 0
        sys.stdout.flush()
        return int(code)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        return _discard_output(0)
    except UserError as error:
        for problem in error.problems:
            say(f"error: {problem}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder without write permission: no file has its final name yet
        say(f"error: {error.filename or 'writing'}: {error.strerror or error}", file=sys.stderr)
        return _discard_output(2)
    except ModuleNotFoundError as error:
        say(f"error: {not_installed(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("\n" + "; ".join(filter(None, ["interrupted", command.interrupted])), file=sys.stderr)
        return 130
    except BaseException as error:
        # a panic in Rust, as in tokenizers, which is not an Exception
        if type(error).__module__ != "pyo3_runtime":
            raise
        say(f"error: a library in Rust, such as tokenizers, failed: {first_line(error)}", file=sys.stderr)
        say("    A text or a file of the model triggers it. Find it by halving the input.", file=sys.stderr)
        return 2


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP end the command like `sys.exit`, so that temporary files are
    removed.
    """

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__]
    before = {}
    if threading.current_thread() is threading.main_thread():  # signal handlers can only be set there
        before = {
            number: signal.signal(number, end)
            for number in numbers
            if signal.getsignal(number) is signal.SIG_DFL
        }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _discard_output(code: int) -> int:
    """Discard what could not be written to stdout, so that Python does not try again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options may stand before, between and after the words of a command, which argparse alone does not
    allow.

    After `--`, a word that starts with - is a text, not an option, wherever the `--` stands: such words are
    marked while argparse parses, with a character that no word can have.
    """
    parser = make_parser()
    words = [*(sys.argv[1:] if argv is None else argv)]
    if not words:
        parser.error(f"name a command; to begin:\n\n    {FIRST}\n\nbertkit --help lists all commands.")
    start = words.index("--") if "--" in words else len(words)
    words[start + 1 :] = [f"\0{word}" if word.startswith("-") else word for word in words[start + 1 :]]
    args, extra = parser.parse_known_args(words)
    extra = [word for word in extra if word != "--"]
    if any(word.startswith("-") for word in extra) or (extra and "rest" not in args):
        hint = " (put a text that starts with - after --)" if "rest" in args else ""
        parser.error(f"unrecognized arguments: {' '.join(map(_unmarked, extra))}{hint}")
    if extra:
        args.rest = [*args.rest, *extra]
    return argparse.Namespace(**{name: _unmarked(value) for name, value in vars(args).items()})


def _unmarked(value: Any) -> Any:
    match value:
        case str():
            return value.removeprefix("\0")
        case Path():
            return Path(str(value).removeprefix("\0"))
        case list():
            return [_unmarked(word) for word in value]
    return value


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; `command` of what it parses is the Command."""
    parser = _Overview(prog="bertkit")
    parser.add_argument("--version", action="version", version=f"bertkit {version('bertkit')}")
    titles = {option: title for title, options in SECTIONS.items() for option in options.split()}
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser)
    for entry in chain(*COMMANDS.values()):
        *group, name = entry.name.split(" ")
        parent = commands
        if group:  # it has one action so far
            parent = commands.add_parser(*group, help=entry.help).add_subparsers(
                metavar="ACTION", required=True
            )
        subparser = parent.add_parser(
            name,
            help=entry.help,
            description=f"{entry.help[0].upper()}{entry.help[1:]}.",
            epilog=f"example:\n  {entry.example}\n\n{SITE}/docs/{entry.page}.html",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # an abbreviation could take a value, such as a key, for that of another option
            allow_abbrev=False,
        )
        subparser.set_defaults(command=entry)
        groups = {title: subparser.add_argument_group(title) for title in SECTIONS}
        for argument_name, options in entry.arguments:
            title = titles.get(f"{entry.name}:{argument_name}") or titles.get(argument_name, "")
            groups.get(title, subparser).add_argument(argument_name, **options)
    return parser


class _Overview(argparse.ArgumentParser):
    """The parser of `bertkit` itself, whose help lists the commands by group."""

    def format_help(self) -> str:
        lines = [self.format_usage(), "Fine-tune BERT-family encoders from one recipe."]
        for title, commands in COMMANDS.items():
            lines += ["", f"{title}:", *(f"  {entry.name:<17}{entry.help}" for entry in commands)]
        lines += ["", f"To begin:                          {FIRST}"]
        lines += [
            "Options, an example and a page:    bertkit COMMAND --help",
            f"Documentation:                     {SITE}",
        ]
        return "\n".join(lines) + "\n"


def _set_up_output() -> None:
    """Log to stderr as plain text, with other libraries silent; escape what a terminal cannot show.

    Raises UserError where stdout is closed, as by `>&-`.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise UserError("", "stdout is closed", "Open it; > /dev/null discards what is printed.")
    os.environ.update(QUIET)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(message)s"))
    logger = logging.getLogger("bertkit")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
