"""The command line: it parses, calls the API, prints. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit import __version__
from bertkit.errors import DataError, Problem, UserError
from bertkit.shipped import shipped_recipes

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
        if str(error.name).partition(".")[0] == "bertkit":
            raise
        print(f"error: {error.name} is not installed\n    pip install bertkit  brings it along", file=sys.stderr)
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
    parser.add_argument("--version", action="version", version=f"bertkit {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    command = commands.add_parser("recipes", help="the shipped recipes: task, encoder, expected score")
    command.set_defaults(run=_recipes)

    command = commands.add_parser("show", help="a recipe, fully resolved; itself a valid recipe")
    command.add_argument("recipe", nargs="?", help=RECIPE)
    command.add_argument("rest", nargs="*", metavar="key=value", help=OVERRIDES)
    command.add_argument("--schema", action="store_true", help="the recipe's JSON Schema, for editors")
    command.set_defaults(run=_show)

    command = commands.add_parser("copy", help="start a recipe of your own from a shipped one")
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("file", type=Path)
    command.set_defaults(run=_copy)

    command = commands.add_parser("check", help="look at recipe and data before anything is trained")
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("rest", nargs="*", metavar="key=value", help=OVERRIDES)
    command.set_defaults(run=_check)

    command = commands.add_parser("train", help="train a recipe into a run folder")
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("rest", nargs="*", metavar="key=value", help=OVERRIDES)
    command.add_argument("--output-dir", type=Path, required=True, metavar="RUN")
    command.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    command.set_defaults(run=_train)

    command = commands.add_parser("evaluate", help="score a model on a split or a file")
    command.add_argument("source", metavar="RUN", help="a run folder, a model folder or a Hub id")
    command.add_argument("rest", nargs="*", metavar="key=value", help="of data, such as data.columns.text=sentence")
    command.add_argument("--split", help="train, validation or test; default: test, else validation")
    command.add_argument("--data", type=Path, metavar="FILE", help="labelled rows in the layout of the run's data")
    command.add_argument("--task", help="what a model is for that bertkit did not make")
    command.add_argument("--rerank", metavar="MODEL", help="retrieval: a cross-encoder that orders what was found")
    command.add_argument(
        "--depth", type=int, default=20, metavar="N", help="documents that --rerank orders; default: 20"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_evaluate)

    command = commands.add_parser("predict", help="answers for texts, or for any number of rows")
    command.add_argument("source", metavar="RUN", help="a run folder, a model folder or a Hub id")
    command.add_argument("rest", nargs="*", metavar="TEXT")
    command.add_argument(
        "--context", type=Path, metavar="FILE", help="the text that the TEXTs, questions, are asked of"
    )
    command.add_argument(
        "--input", metavar="FILE", help="csv, tsv, json, jsonl, parquet or conll; - reads jsonl from stdin"
    )
    command.add_argument("--output", type=Path, metavar="FILE", help=".jsonl or .csv; default: jsonl to stdout")
    command.add_argument(
        "--column", action="append", default=[], metavar="text=NAME", help="where the input's names differ"
    )
    command.add_argument("--task", help="what a model is for that bertkit did not make")
    command.add_argument("--json", action="store_true", help="print JSON lines for TEXTs too")
    command.set_defaults(run=_predict)
    _vector_commands(commands)
    return parser


def _vector_commands(commands: Any) -> None:
    model = "a run folder, a model folder or a Hub id"
    command = commands.add_parser("embed", help="the vector of each row's text, as parquet or npy")
    command.add_argument("source", metavar="MODEL", help=model)
    command.add_argument("--input", type=Path, required=True, metavar="FILE", help="csv, tsv, json, jsonl or parquet")
    command.add_argument("--output", type=Path, required=True, metavar="FILE", help=".parquet or .npy")
    command.add_argument("--column", default="text", metavar="NAME", help="the column of texts; default: text")
    command.add_argument(
        "--side", choices=("text", "query", "document"), default="text", help="whose prefix is put before"
    )
    command.add_argument(
        "--layers", type=int, nargs="+", metavar="N", help="hidden layers instead of the model's own vector"
    )
    command.add_argument("--combine", choices=("concat", "sum", "mean"), default="concat", help="of several --layers")
    command.add_argument("--pool", choices=("mean", "cls", "max"), default="mean", help="of --layers")
    command.set_defaults(run=_embed)

    command = commands.add_parser("mine", help="hard negatives for retrieval, or candidates for text-ranking")
    command.add_argument("source", metavar="MODEL", help=model)
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder in BEIR's layout")
    command.add_argument("--split", default="train", help="whose queries; default: train")
    command.add_argument("--output", type=Path, required=True, metavar="FILE", help=".jsonl")
    command.add_argument("--form", choices=("negatives", "candidates"), default="negatives", help="default: negatives")
    command.add_argument("--count", type=int, default=1, metavar="N", help="documents a query; default: 1")
    command.add_argument("--skip", type=int, default=0, metavar="N", help="the nearest, passed over; default: 0")
    command.set_defaults(run=_mine)

    command = commands.add_parser("cache", help="vectors that are kept on disk: shown, or cleared")
    command.add_argument("action", nargs="?", choices=("show", "clear"), default="show")
    command.add_argument("--days", type=float, metavar="N", help="clear: only what was last used longer ago")
    command.set_defaults(run=_cache)

    command = commands.add_parser("index", help="put documents into a vector store, replace or delete them")
    command.add_argument("source", metavar="MODEL", help=model)
    command.add_argument("--documents", type=Path, metavar="FILE", help="rows with id, text, and what else is known")
    command.add_argument("--store", required=True, metavar="DIR", help="a folder, or an object store's URI")
    command.add_argument(
        "--delete", action="extend", nargs="+", default=[], metavar="ID", help="documents to be deleted first"
    )
    command.set_defaults(run=_index)

    command = commands.add_parser("search", help="the documents of a store that are nearest to a query")
    command.add_argument("store", metavar="STORE", help="a folder, or an object store's URI")
    command.add_argument("query", metavar="QUERY")
    command.add_argument("--top-k", type=int, default=10, metavar="N", help="documents; default: 10")
    command.add_argument("--rerank", metavar="MODEL", help="a cross-encoder that orders what was found")
    command.add_argument("--filter", metavar="SQL", help="such as \"year >= 2020 and town = 'Ulm'\"")
    command.add_argument("--hybrid", action="store_true", help="full-text search too, the two ranks fused")
    command.add_argument("--exact", action="store_true", help="compare with every passage, not by the index")
    command.add_argument("--model", metavar="MODEL", help="where the store's model is now, if it was moved")
    command.add_argument("--json", action="store_true", help="print JSON lines")
    command.set_defaults(run=_search)


def _talk() -> None:
    """Send bertkit's own messages to stderr, plainly."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("bertkit")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def _quiet_libraries() -> None:
    """Bars and notices of the libraries below; ours say what matters."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    messages: Any = transformers.logging
    messages.set_verbosity_error()
    messages.disable_progress_bar()


def _recipes(args: argparse.Namespace) -> None:
    found = shipped_recipes()
    try:
        from bertkit.recipe import load_recipe
        from bertkit.report.table import columns
    except ModuleNotFoundError as error:  # installed without dependencies: names are still an answer
        print("\n".join(f"{name}  ({path.parent.name})" for name, path in sorted(found.items())))
        print(f"\nEncoders and scores need {error.name}: pip install bertkit", file=sys.stderr)
        return
    rows = [["recipe", "task", "encoder", "expected"]]
    for name, path in sorted(found.items(), key=lambda item: (item[1].parent.name, item[0])):
        recipe = load_recipe(path, check_files=False)
        expected = {k: v for k, v in (recipe.expected or {}).items() if isinstance(v, list)}
        shown = ", ".join(f"{k} {v[0]}–{v[1]}" for k, v in expected.items()) or "not measured"
        rows.append([name, recipe.task.name, recipe.model.name, shown])
    print(columns(rows))


def _show(args: argparse.Namespace) -> None:
    from bertkit.recipe import dump, json_schema, load_recipe

    if args.schema:
        print(json.dumps(json_schema(), indent=2))
    elif args.recipe is None:
        raise UserError(Problem("", "which recipe?", "bertkit recipes lists the shipped ones."))
    else:
        print(dump(load_recipe(args.recipe, args.rest, check_files=False)), end="")


def _copy(args: argparse.Namespace) -> None:
    from bertkit.files import write_text
    from bertkit.recipe import load_recipe

    load_recipe(args.recipe, check_files=False)
    source = shipped_recipes().get(args.recipe, Path(args.recipe))
    if args.file.exists():
        raise UserError(Problem(str(args.file), "is there already", "Name another file."))
    write_text(args.file, source.read_text(encoding="utf-8"))
    print(f"{args.file} is yours. Next: bertkit check {args.file}")


def _check(args: argparse.Namespace) -> None:
    from bertkit.recipe import load_recipe

    recipe = load_recipe(args.recipe, args.rest)
    _quiet_libraries()
    from bertkit.encoder import find
    from bertkit.training.train import inspect, prepare, rehearse

    encoder = find(recipe.model)
    task, data = prepare(recipe, encoder)
    rehearse(recipe, encoder, task, data)
    print(f"{task.name}: {task.describe()}")
    features, _ = inspect(task, data)
    print(f"first row as the model reads it: {task.tokenizer.decode(features[0]['input_ids'])}")
    print("nothing stands in the way of training")


def _train(args: argparse.Namespace) -> None:
    from bertkit.recipe import load_recipe

    recipe = load_recipe(args.recipe, args.rest)
    _quiet_libraries()
    from bertkit.report.table import after_training
    from bertkit.training.train import train

    run = train(recipe, args.output_dir, args.resume)
    if run.finished and int(os.environ.get("RANK", 0)) == 0:
        print(after_training(run.folder, run.results))


def _evaluate(args: argparse.Namespace) -> None:
    from bertkit.evaluation.evaluate import evaluate
    from bertkit.report.table import scores_table

    _quiet_libraries()
    scores = evaluate(
        args.source,
        split=args.split,
        file=args.data,
        overrides=args.rest,
        task=args.task,
        rerank=args.rerank,
        depth=args.depth,
    )
    print(json.dumps(scores, indent=2) if args.json else scores_table(scores))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(Problem(str(path), f"not UTF-8: {error}")) from error
    except OSError as error:
        raise DataError(Problem(str(path), f"can not be read: {error.strerror or error}")) from error


def _predict(args: argparse.Namespace) -> None:
    from bertkit.predict import predict_file, shown

    if bool(args.rest) == bool(args.input):
        raise UserError(Problem("", "predict needs texts, or --input FILE", "bertkit predict RUN 'some text'"))
    if args.input and args.context:
        raise UserError(Problem("", "--context goes with questions as TEXTs; rows of --input have a context each"))
    if not args.input and (args.output or args.column):
        raise UserError(Problem("", "--output and --column go with --input FILE"))
    columns = dict(pair.partition("=")[::2] for pair in args.column)
    if "" in columns.values():
        raise UserError(Problem("--column", "write it as text=NAME_IN_THE_FILE"))
    _quiet_libraries()
    from bertkit.inference import load

    predictor = load(args.source, task=args.task)
    if args.input:
        count = predict_file(predictor, args.source, args.input, args.output, columns)
        print(f"{count:,} rows" + (f" in {args.output}" if args.output else ""), file=sys.stderr)
        return
    rows = [{"question": text, "context": _text(args.context)} if args.context else text for text in args.rest]
    for text, answer in zip(args.rest, predictor.stream(rows), strict=True):
        print(json.dumps({"text": text, "answer": answer}, ensure_ascii=False) if args.json else shown(text, answer))


def _embed(args: argparse.Namespace) -> None:
    from bertkit.embed import embed_features, embed_file

    _quiet_libraries()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        if args.layers:
            from bertkit.features import Features

            features = Features(args.source, layers=tuple(args.layers), combine=args.combine, pool=args.pool)
            count = embed_features(features, args.input, args.output, column=args.column)
        else:
            from bertkit.retrieval.models import kept_vectors

            count = embed_file(kept_vectors(args.source, args.side), args.input, args.output, column=args.column)
    for warning in said:
        print(f"warning: {warning.message}", file=sys.stderr)
    print(f"{count:,} vectors in {args.output}", file=sys.stderr)


def _mine(args: argparse.Namespace) -> None:
    from bertkit.retrieval.mining import mine_file
    from bertkit.retrieval.models import dual_encoder

    _quiet_libraries()
    model = dual_encoder(args.source)
    count = mine_file(model, args.data, args.split, args.output, form=args.form, count=args.count, skip=args.skip)
    print(f"{count:,} rows in {args.output}", file=sys.stderr)


def _cache(args: argparse.Namespace) -> None:
    from bertkit.embed import cache_table, clear_cache

    if args.action == "show" and args.days is not None:
        raise UserError(Problem("", "--days goes with clear"))
    print(clear_cache(args.days) if args.action == "clear" else cache_table())


def _index(args: argparse.Namespace) -> None:
    from bertkit.retrieval.commands import index_file
    from bertkit.retrieval.models import dual_encoder

    _quiet_libraries()
    print(index_file(args.source, args.store, dual_encoder, documents=args.documents, delete=args.delete))


def _search(args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from bertkit.retrieval.commands import search_store, shown
    from bertkit.retrieval.models import dual_encoder, reranker

    _quiet_libraries()
    hits = search_store(
        args.store,
        args.query,
        dual_encoder,
        top_k=args.top_k,
        filter=args.filter,
        hybrid=args.hybrid,
        exact=args.exact,
        rerank=reranker(args.rerank) if args.rerank else None,
        model=args.model,
    )
    for hit in hits if args.json else ():
        print(json.dumps(asdict(hit), ensure_ascii=False, default=str))
    if not args.json:
        print(shown(hits))
