"""The command line: it parses, calls the API, prints. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertkit import processes
from bertkit.cli.doctor import doctor_command
from bertkit.cli.explain import explain_command
from bertkit.cli.export import export_command
from bertkit.cli.hub import hub_commands
from bertkit.cli.report import report_command
from bertkit.cli.serve import serve_command
from bertkit.cli.shared import quiet_libraries
from bertkit.cli.sweep import sweep_command
from bertkit.cli.vectors import vector_commands
from bertkit.errors import DataError, Problem, UserError, not_installed
from bertkit.recipe.shipped import shipped_recipes

RECIPE = "a shipped recipe's name, or a file"
OVERRIDES = "key=value (a YAML value), or ~key to delete; such as training.num_train_epochs=1"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, or 2 for what the user can put right; a bug is a traceback and 1."""
    args = _parse(argv)
    _talk()
    try:
        result: int = args.run(args) or 0
        sys.stdout.flush()
        return result
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        return _hushed(0)
    except UserError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that can not be written: nothing of ours has its final name yet
        print(f"error: {error.filename or 'writing'}: {error.strerror or error}", file=sys.stderr)
        return _hushed(2)
    except ModuleNotFoundError as error:
        print(f"error: {not_installed(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        resumable = args.run is _train
        print("\ninterrupted" + ("; go on with the same command and --resume" if resumable else ""), file=sys.stderr)
        return 130


def _hushed(code: int) -> int:
    """Let what could not be written to stdout go, so that Python does not try again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options may stand before, between and after the words of a command, which argparse alone does not allow."""
    parser = _parser()
    args, extra = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in extra) or (extra and "rest" not in args):
        hint = "" if "rest" not in args else " (a text that starts with - goes after --)"
        parser.error(f"unrecognized arguments: {' '.join(extra)}{hint}")
    if extra:
        args.rest = [*args.rest, *extra]
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bertkit", description="Fine-tune BERT-family encoders from one recipe.")
    parser.add_argument("--version", action="version", version=f"bertkit {version('bertkit')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _recipe_commands(commands)
    _run_commands(commands)
    vector_commands(commands)
    hub_commands(commands)
    report_command(commands)
    explain_command(commands)
    export_command(commands)
    serve_command(commands)
    sweep_command(commands)
    _tokenizer_command(commands)
    doctor_command(commands)
    return parser


def _recipe_commands(commands: Any) -> None:
    command = commands.add_parser("recipes", help="the shipped recipes: task, encoder, expected score")
    command.set_defaults(run=_recipes)

    command = commands.add_parser("show", help="a recipe, fully resolved; itself a valid recipe")
    command.add_argument("recipe", nargs="?", help=RECIPE)
    command.add_argument("rest", nargs="*", metavar="key=value", help=OVERRIDES)
    command.add_argument("--schema", action="store_true", help="the recipe's JSON Schema, for editors")
    command.set_defaults(run=_show)

    command = commands.add_parser("copy", help="start a recipe of your own from a shipped one")
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("file", type=Path, help="a new file")
    command.set_defaults(run=_copy)

    command = commands.add_parser("check", help="look at recipe and data before anything is trained")
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("rest", nargs="*", metavar="key=value", help=OVERRIDES)
    command.set_defaults(run=_check)

    command = commands.add_parser("train", help="train a recipe into a run folder")
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("rest", nargs="*", metavar="key=value", help=OVERRIDES)
    command.add_argument("--output-dir", type=Path, required=True, metavar="RUN", help="a new or empty folder")
    command.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    command.add_argument(
        "--changed", action="store_true", help="with --resume: although recipe, data or libraries have changed"
    )
    command.add_argument("--profile", action="store_true", help="say where the time goes, in RUN/profile.json too")
    command.set_defaults(run=_train)


def _run_commands(commands: Any) -> None:
    command = commands.add_parser("evaluate", help="score a model on a split or a file")
    command.add_argument("source", metavar="RUN", help="a run folder, a model folder or a Hub id")
    command.add_argument("rest", nargs="*", metavar="key=value", help="of data, such as data.columns.text=sentence")
    command.add_argument("--split", help="train, validation or test; default: test, else validation, else train")
    command.add_argument("--data", type=Path, metavar="FILE", help="labelled rows in the layout of the run's data")
    command.add_argument("--task", help="what a model is for that bertkit did not make")
    command.add_argument("--revision", metavar="NAME", help="of a Hub id: commit, tag or branch")
    command.add_argument("--rerank", metavar="MODEL", help="retrieval: a cross-encoder that orders what was found")
    command.add_argument(
        "--depth", type=int, default=20, metavar="N", help="documents that --rerank orders; default: 20"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=partial(_by_all, _evaluate))

    command = commands.add_parser("predict", help="answers for texts, or for any number of rows")
    command.add_argument("source", metavar="RUN", help="a run folder, a model folder or a Hub id")
    command.add_argument("rest", nargs="*", metavar="TEXT", help="texts; with --context, questions")
    command.add_argument(
        "--context", type=Path, metavar="FILE", help="the text that the TEXTs, questions, are asked of"
    )
    command.add_argument(
        "--input",
        metavar="FILE",
        help="csv, tsv, json, jsonl, parquet, conll, or txt with a text a line; - reads jsonl from stdin",
    )
    command.add_argument("--output", type=Path, metavar="FILE", help=".jsonl or .csv; default: jsonl to stdout")
    command.add_argument(
        "--column", action="append", default=[], metavar="text=NAME", help="where the input's names differ"
    )
    command.add_argument("--task", help="what a model is for that bertkit did not make")
    command.add_argument("--revision", metavar="NAME", help="of a Hub id: commit, tag or branch")
    command.add_argument("--json", action="store_true", help="print JSON lines for TEXTs too")
    command.set_defaults(run=partial(_by_all, _predict))


def _tokenizer_command(commands: Any) -> None:
    actions = commands.add_parser("tokenizer", help="train a tokenizer").add_subparsers(metavar="ACTION", required=True)
    command = actions.add_parser("train", help="WordPiece, as BERT's, from texts")
    kinds = "txt, csv, tsv, json, jsonl or parquet"
    command.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help=kinds)
    command.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    command.add_argument("--vocab-size", type=int, default=30522, metavar="N", help="word pieces; default: 30522")
    command.add_argument("--cased", action="store_true", help="keep capitals and accents; default: they are dropped")
    command.add_argument("--min-frequency", type=int, default=2, metavar="N", help="of merged pairs; default: 2")
    command.add_argument("--limit-alphabet", type=int, default=1000, metavar="N", help="characters; default: 1000")
    command.add_argument("--column", default="text", metavar="NAME", help="the column of texts; default: text")
    command.add_argument("--max-length", type=int, default=512, metavar="N", help="pieces a model reads; default: 512")
    command.set_defaults(run=_tokenizer_train)


def _talk() -> None:
    """Send bertkit's own messages to stderr, plainly; what a terminal can not show is escaped, and stops nothing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("bertkit")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def _recipes(args: argparse.Namespace) -> None:
    found = shipped_recipes()
    try:
        from bertkit.recipe.recipe import load_recipe
        from bertkit.text import columns
    except ModuleNotFoundError as error:  # installed without dependencies: names are still an answer
        print("\n".join(f"{name}  ({path.parent.name})" for name, path in sorted(found.items())))
        print(f"\nEncoders and scores need {error.name}: pip install bertkit", file=sys.stderr)
        return
    rows = [["recipe", "task", "encoder", "expected"]]
    for name, path in sorted(found.items(), key=lambda item: (item[1].parent.name, item[0])):
        recipe = load_recipe(path, check_files=False)
        expected = {k: v for k, v in (recipe.expected or {}).items() if isinstance(v, list)}
        shown = ", ".join(f"{k} {v[0]}–{v[1]}" for k, v in expected.items()) or "none stated"
        rows.append([name, recipe.task.name, recipe.model.title, shown])
    print(columns(rows))


def _show(args: argparse.Namespace) -> None:
    from bertkit.recipe.recipe import json_schema, load_recipe, to_yaml

    if args.schema:
        print(json.dumps(json_schema(), indent=2))
    elif args.recipe is None:
        raise UserError(Problem("", "which recipe?", "bertkit recipes lists the shipped ones."))
    else:
        print(to_yaml(load_recipe(args.recipe, args.rest, check_files=False)), end="")


def _copy(args: argparse.Namespace) -> None:
    from bertkit.files import write_text
    from bertkit.recipe.recipe import load_recipe

    load_recipe(args.recipe, check_files=False)
    source = shipped_recipes().get(args.recipe, Path(args.recipe))
    if args.file.exists():
        raise UserError(Problem(str(args.file), "is there already", "Name another file."))
    write_text(args.file, source.read_text(encoding="utf-8"))
    print(f"{args.file} is yours. Next: bertkit check {args.file}")


def _check(args: argparse.Namespace) -> None:
    from bertkit.recipe.recipe import load_recipe

    recipe = load_recipe(args.recipe, args.rest)
    quiet_libraries()
    from bertkit.models.encoder import find
    from bertkit.training.preflight import inspect, prepare, rehearse

    encoder = find(recipe.model)
    task, data = prepare(recipe, encoder)
    rehearse(recipe, encoder, task, data)
    print(f"{task.name}: {task.describe()}")
    features, _ = inspect(task, data)
    print(f"first row as the model reads it: {task.tokenizer.decode(task.examples(features, [0])['input_ids'][0])}")
    print("nothing stands in the way of training")


def _train(args: argparse.Namespace) -> None:
    from bertkit.recipe.recipe import load_recipe

    if args.changed and not args.resume:
        raise UserError("--changed says that --resume may go on with what has changed: give both")
    recipe = load_recipe(args.recipe, args.rest)
    quiet_libraries()
    from bertkit.report.table import after_training
    from bertkit.training.train import train

    run = train(recipe, args.output_dir, args.resume, profile=args.profile, changed=args.changed)
    if run.finished and processes.first():
        print(after_training(run.folder, run.results))


def _by_all(run: Callable[[argparse.Namespace, Any], None], args: argparse.Namespace) -> None:
    """Run a command whose batches are divided over the processes that torchrun started."""
    if processes.world() == 1:
        run(args, map)
        return
    quiet_libraries()
    from bertkit.training.sharding import distributed_inference

    with distributed_inference() as mapper:
        run(args, mapper)


def _evaluate(args: argparse.Namespace, mapper: Any) -> None:
    from bertkit.inference.evaluate import evaluate
    from bertkit.report.table import scores_table

    quiet_libraries()
    scores = evaluate(
        args.source,
        split=args.split,
        file=args.data,
        overrides=args.rest,
        revision=args.revision,
        task=args.task,
        rerank=args.rerank,
        depth=args.depth,
        mapper=mapper,
    )
    print(json.dumps(scores, indent=2) if args.json else scores_table(scores))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(Problem(str(path), f"not UTF-8: {error}")) from error
    except OSError as error:
        raise DataError(Problem(str(path), f"can not be read: {error.strerror or error}")) from error


def _predict(args: argparse.Namespace, mapper: Any) -> None:
    from bertkit.inference.display import example, shown
    from bertkit.inference.predict_file import predict_file
    from bertkit.text import escape_controls

    if bool(args.rest) == bool(args.input):
        raise UserError(Problem("", "predict needs texts, or --input FILE", "bertkit predict RUN 'some text'"))
    if args.input and args.context:
        raise UserError(Problem("", "--context goes with questions as TEXTs; rows of --input have a context each"))
    if not args.input and (args.output or args.column):
        raise UserError(Problem("", "--output and --column go with --input FILE"))
    if args.input == "-" and mapper is not map:
        raise UserError(Problem("--input -", "stdin can not be read by several processes", "Name a file of rows."))
    columns = dict(pair.partition("=")[::2] for pair in args.column)
    if "" in columns.values():
        raise UserError(Problem("--column", "write it as text=NAME_IN_THE_FILE"))
    quiet_libraries()
    from bertkit.inference.predictor import load

    predictor = replace(load(args.source, revision=args.revision, task=args.task), mapper=mapper)
    if args.input:
        output = args.output if processes.first() else None
        count = predict_file(predictor, args.source, args.input, output, columns)
        print(f"{count:,} rows" + (f" in {args.output}" if args.output else ""), file=sys.stderr)
        return
    reads = predictor.task.inputs
    if not args.context and {"text"} not in reads:
        wanted = " and ".join(name for name in predictor.task.schema.columns if name in reads[0])
        file = "--context FILE has the text that the TEXTs are asked of; or: " if "context" in reads[0] else ""
        what = f"this model reads {wanted} together, not a text alone"
        raise UserError(Problem("", what, file + example(args.source, predictor.task, reads)))
    rows = [{"question": text, "context": _text(args.context)} if args.context else text for text in args.rest]
    for name in filter(os.path.isfile, args.rest if processes.first() else ()):
        print(f"note: {name} is read as a text; for the rows of the file: --input {name}", file=sys.stderr)
    for text, answer in zip(args.rest, predictor.stream(rows), strict=True):
        whole = {"text": text, "answer": answer}
        print(json.dumps(whole, ensure_ascii=False) if args.json else escape_controls(shown(text, answer)))


def _tokenizer_train(args: argparse.Namespace) -> None:
    from bertkit.models.bert.wordpiece import train_wordpiece

    quiet_libraries()
    train_wordpiece(
        args.input,
        args.output,
        vocab_size=args.vocab_size,
        lowercase=not args.cased,
        min_frequency=args.min_frequency,
        limit_alphabet=args.limit_alphabet,
        column=args.column,
        max_length=args.max_length,
    )
