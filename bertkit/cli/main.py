"""The command line: it parses, calls the API, prints. Heavy libraries are imported by the command that needs
them.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from bertkit.cli import doctor, model_commands, recipes, runs, vector_commands
from bertkit.cli.shared import SECTIONS, LogFormatter, argument, command, say
from bertkit.errors import Problem, UserError, not_installed
from bertkit.processes import signals_handled
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
    "data": (recipes.init, recipes.check, recipes.audit),
    "recipes": (recipes.recipes, recipes.show, recipes.copy),
    "train": (recipes.train, recipes.sweep, recipes.tokenizer_train),
    "evaluate": (
        model_commands.evaluate,
        runs.report,
        model_commands.explain,
        model_commands.calibrate,
    ),
    "use": (
        model_commands.predict,
        model_commands.serve,
        vector_commands.embed,
        vector_commands.index,
        vector_commands.search,
        vector_commands.mine,
    ),
    "publish": (runs.export, runs.push),
    "tools": (doctor.doctor, completion),
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
        fix = "Free some space, then run the same command again."
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            fix = "Check the path and its permissions."
        problem = Problem(str(error.filename or "the output"), str(error.strerror or error), fix)
        say(f"error: {problem}", file=sys.stderr)
        return _discard_output(2)
    except ModuleNotFoundError as error:
        say(f"error: {not_installed(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("\n" + "; ".join(filter(None, ["interrupted", command.interrupted])), file=sys.stderr)
        return 130
    except BaseException as error:
        fix = "Free memory of the device, or use smaller batches: bertkit.load(RUN, batch_size=8) in Python."
        what = first_line(error)
        if what == "Could not determine home directory.":  # of pathlib
            fix = "Check the path: after ~ comes / or the name of a user."
        elif type(error).__name__ != "OutOfMemoryError":  # of torch, which may not be imported
            # a panic in Rust, as in tokenizers, which is not an Exception
            if type(error).__module__ != "pyo3_runtime":
                raise
            fix = "Split the input in halves to find the text that triggers it, and report it."
            what = f"a library in Rust, such as tokenizers, crashed: {what}"
        say(f"error: {Problem('', what, fix)}", file=sys.stderr)
        return 2


def ended_by_signals() -> AbstractContextManager[None]:
    """Within the block, SIGTERM and SIGHUP end the command like `sys.exit`, so that temporary files are
    removed.
    """

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    numbers = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP
    unhandled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    return signals_handled(unhandled, end)


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
        parser.error(f"no command; to begin:\n\n    {FIRST}\n\nbertkit --help lists all commands.")
    start = words.index("--") if "--" in words else len(words)
    if wrong := _unknown(words[: start or 1]):
        parser.error(wrong)
    words[start + 1 :] = [f"\0{word}" if word.startswith("-") else word for word in words[start + 1 :]]
    args, extra = parser.parse_known_args(words)
    extra = [word for word in extra if word != "--"]
    if "runs" in args and not any(word.startswith("-") for word in extra):  # argparse ends a `+` at an option
        args.runs += map(Path, extra)
        extra = []
    if any(word.startswith("-") for word in extra) or (extra and "rest" not in args):
        hint = " (put a text that starts with - after --)" if "rest" in args else ""
        parser.error(f"unrecognized arguments: {' '.join(map(_unmarked, extra))}{hint}")
    if extra:
        args.rest = [*args.rest, *extra]
    return argparse.Namespace(**{name: _unmarked(value) for name, value in vars(args).items()})


def _unknown(words: Sequence[str]) -> str:
    """What is wrong with the command or an option of it, if bertkit does not have it."""
    commands = {entry.name.partition(" ")[0]: entry for entry in chain(*COMMANDS.values())}
    what = "no command"
    names = ["-h", "--help", "--version", *commands]
    wrong = "" if words[0] in names else words[0]
    if entry := commands.get(words[0]):
        names = ["--help", *(name for name, _ in entry.arguments)]
        options = (word.partition("=")[0] for word in words if word.startswith("--"))
        what = f"bertkit {entry.name} has no option"
        wrong = next((option for option in options if option not in names), "")
    if not wrong:
        return ""
    from bertkit.validation import did_you_mean

    hint = " (put a text that starts with - after --)" * ({"rest", "--input"} <= {*names})
    return f"{what} {wrong!r}{did_you_mean(wrong, names)}{hint}"


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
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
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


class _Parser(argparse.ArgumentParser):
    """The parser of a command, which says what it needs in place of TEXT or QUERY."""

    def error(self, message: str) -> NoReturn:
        message = message.replace("the following arguments are required", "required")
        super().error(re.sub("(and )?(TEXT|QUERY)$", r"and \2 or --input FILE", message))


class _Overview(argparse.ArgumentParser):
    """The parser of `bertkit` itself, whose help lists the commands by group."""

    def format_help(self) -> str:
        lines = [self.format_usage(), "Fine-tune BERT-family encoders from one recipe."]
        for title, commands in COMMANDS.items():
            lines += ["", f"{title}:", *(f"  {entry.name:<17}{entry.help}" for entry in commands)]
        lines += ["", f"To begin:                          {FIRST}"]
        lines += [
            "Options, an example and a page:    bertkit COMMAND --help",
            "Exit codes:                        0 done, 2 you can fix it, 1 a bug, 130 interrupted",
            f"Documentation:                     {SITE}",
        ]
        return "\n".join(lines) + "\n"


def _as_json(error: Any) -> tuple[str, int]:
    """Characters that stdout cannot encode, escaped as in JSON, which may be what is printed."""
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _set_up_output() -> None:
    """Log to stderr as plain text, with other libraries silent; escape what a terminal cannot show.

    Raises UserError where stdout is closed, as by `>&-`.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise UserError("", "stdout is closed", "Open it, or discard the output: > /dev/null")
    os.environ.update(QUIET)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("json", _as_json)
        sys.stdout.reconfigure(errors="json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(message)s"))
    logger = logging.getLogger("bertkit")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
