"""The commands that run a trained model: evaluate, calibrate, predict, explain, serve."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import bertkit
from bertkit.cli import shared
from bertkit.cli.shared import argument, column_names, command, flag, one_process, path, say
from bertkit.errors import DataError, UserError, translated
from bertkit.serving.limits import Limits
from bertkit.text import counted, json_line, shell_word

_SETTINGS = argument(
    "rest", "data settings, e.g. data.columns.text=sentence", nargs="*", default=[], metavar="key=value"
)


@command(
    "score a model on a split or a file",
    shared.RUN,
    _SETTINGS,
    argument("--split", "train, validation or test; default: test, else validation, else train"),
    path("--data", "labelled rows in the layout of the run's data"),
    shared.TASK,
    shared.REVISION,
    argument("--rerank", "retrieval: a cross-encoder that reranks the documents found", metavar="MODEL"),
    argument("--depth", "documents per query for --rerank", default=20),
    argument("--by", "a column, such as language: also the scores of each of its values", metavar="COLUMN"),
    shared.JSON,
    example="bertkit evaluate runs/quickstart --split test",
    page="command-line",
)
@one_process
def evaluate(source: str, rest: list[str], data: Path | None, as_json: bool, **options: Any) -> None:
    from bertkit.inference.multitask_predictor import tasks_of_run
    from bertkit.report.score_tables import scores_table

    scores = bertkit.evaluate(source, data=data, overrides=rest, **options)
    if as_json:
        say(json.dumps(scores, indent=2))
        return
    names = tasks_of_run(Path(source).expanduser())
    say("\n\n".join(f"{name}\n{scores_table(scores[name])}" for name in names) or scores_table(scores))


@command(
    "re-fit temperature and thresholds of a trained model",
    argument("source", "a run folder or a model folder", metavar="RUN"),
    _SETTINGS,
    path("--data", "labelled rows in the layout of the run's data; default: the run's validation rows"),
    argument(
        "--precision", "for each label the lowest threshold with this precision", type=float, metavar="X"
    ),
    argument("--recall", "for each label the highest threshold with this recall", type=float, metavar="X"),
    argument("--label", "fit the threshold of this label alone", metavar="NAME"),
    flag("--overall", "one threshold for all labels, with this precision or recall over all answers"),
    shared.JSON,
    example="bertkit calibrate runs/quickstart --precision 0.95 --overall",
    page="decisions",
)
@one_process
def calibrate(source: str, rest: list[str], data: Path | None, as_json: bool, **goal: Any) -> None:
    from bertkit.report.score_tables import calibration_table

    fitted = bertkit.calibrate(source, data, overrides=rest, **goal)
    say(json.dumps(fitted, indent=2) if as_json else calibration_table(fitted))


@command(
    "predict labels, entities or answers for texts or a file",
    shared.RUN,
    argument(
        "rest",
        "texts, or questions about --context; with --input: data.KEY=VALUE",
        nargs="*",
        metavar="TEXT",
    ),
    path("--context", "the text that the questions are about"),
    argument("--input", f"{shared.ROWS}; - reads lines of stdin, rows as JSON or texts", metavar="FILE"),
    path("--output", ".jsonl, .csv or .xlsx; with --format also .conll or .json; default: stdout"),
    flag(
        "--raw-cells",
        "with csv: leave cells as they are, also those that a spreadsheet would run as a formula",
    ),
    shared.COLUMNS,
    shared.SHARD,
    argument(
        "--format",
        "write a row per entity, texts with entities masked, or the files of other tools",
        choices=("entities", "masked", "conll", "label-studio"),
    ),
    *shared.DECISIONS,
    shared.TASK,
    shared.REVISION,
    shared.JSON,
    example="bertkit predict runs/quickstart --input reviews.csv --output answers.csv",
    page="predict",
)
@one_process
def predict(
    source: str,
    rest: list[str],
    context: Path | None,
    input: str | None,
    output: Path | None,
    column: list[str],
    shard: str | None,
    format: str | None,
    task: str | None,
    revision: str | None,
    as_json: bool,
    raw_cells: bool,
    **decisions: Any,
) -> None:
    if not (rest or input) or (input and any(not text.startswith("data.") for text in rest)):
        raise UserError("", "predict needs texts, or --input FILE", "bertkit predict RUN 'some text'")
    if input and context:
        what = "--context works only with TEXT"
        raise UserError("", what, "Leave it out: rows of --input have a context of their own.")
    if not input and (output or column or format or shard or raw_cells):
        what = "--output, --column, --format, --shard and --raw-cells work only with --input FILE"
        raise UserError("", what, shared.WITHOUT)
    if input:
        count = bertkit.predict(
            source,
            input,
            output,
            columns=column_names(column),
            overrides=rest,
            format=format,
            raw_cells=raw_cells,
            shard=shard,
            task=task,
            revision=revision,
            **decisions,
        )
        say(counted(count, "row") + (f" in {output}" if output else ""), file=sys.stderr)
        return
    if Path(source).expanduser().joinpath("recipe.yaml").is_file():
        from bertkit.inference.multitask_predictor import MultiTaskPredictor, load_any

        loaded = load_any(source, task, revision, decisions, context=context)
        predictor = loaded.reading(rest[0]) if isinstance(loaded, MultiTaskPredictor) else loaded
    else:  # no YAML is imported
        predictor = bertkit.load(source, revision=revision, task=task).with_decisions(**decisions)
    _predict_texts(predictor, source, rest, context, as_json)


def _predict_texts(
    predictor: Any, source: str, texts: list[str], context: Path | None, as_json: bool
) -> None:
    from bertkit.inference.display import answer_line, example, read_together
    from bertkit.inference.predictor import Predictor
    from bertkit.text import escape_controls

    alone = isinstance(predictor, Predictor)
    # those of several tasks that do not are left out
    reads = predictor.task.inputs if alone else [frozenset({"text"})]
    if context and alone and {"question", "context"} not in reads:
        what = f"--context is for questions; this model reads {read_together(predictor.task)}"
        raise UserError("", what, "Leave it out.")
    if not context and {"text"} not in reads:
        fix = (
            "Pass the text that the questions are about with --context FILE; or: "
            if "context" in reads[0]
            else ""
        )
        what = f"this model reads {read_together(predictor.task)} together, not a single text"
        raise UserError("", what, fix + example(source, predictor.task, reads))
    failures = (OSError, UnicodeDecodeError)
    with translated(failures, DataError, str(context), "cannot be read", "Use a text file in UTF-8."):
        passage = context.read_bytes().decode("utf-8-sig") if context else ""
    for name in filter(os.path.isfile, texts):
        say(f"note: {name} is read as a text; for the rows of the file: --input {name}", file=sys.stderr)
    rows = [{"question": text, "context": passage} if context else text for text in texts]
    for text, answer in zip(texts, predictor.stream(rows), strict=True):
        both = {"text": text, "answer": answer}
        lines = [answer_line(answer, text, predictor.task.answers)] if alone else [text]
        parts = {} if alone else predictor.tasks
        lines += [
            f"  {name}: {answer_line(answer[name], '', part.task.answers)}" for name, part in parts.items()
        ]
        say(json_line(both) if as_json else "\n".join(map(escape_controls, lines)))


@command(
    "explain which words led to a prediction",
    shared.RUN,
    argument(
        "rest",
        "texts, or the two texts of a pair; with --input: data.KEY=VALUE; default: the report's examples",
        nargs="*",
        default=[],
        metavar="TEXT",
    ),
    path("--input", f"rows: {shared.ROWS}"),
    shared.COLUMNS,
    path("--output", "write an HTML page too"),
    shared.TASK,
    shared.REVISION,
    shared.JSON,
    example='bertkit explain runs/quickstart "Not bad at all."',
    page="explain",
)
@one_process
def explain(
    source: str,
    rest: list[str],
    input: Path | None,
    column: list[str],
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    if input and any(not text.startswith("data.") for text in rest):
        raise UserError("", "explain takes texts or --input FILE, not both", "Leave out one of them.")
    if column and not input:
        raise UserError("", "--column works only with --input FILE", shared.WITHOUT)
    if not rest and not input:
        return _explain_run(source, output=output, json=as_json, **options)
    from bertkit.explanations.terminal import LEGEND, lines
    from bertkit.report.html import write_explanations_page

    explanations = bertkit.explain(
        source, rest, input=input, columns=column_names(column), overrides=rest, **options
    )
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for explanation in explanations:
        if as_json:
            say(json_line(explanation))
        else:
            text = "\n".join(lines(explanation, colour))
            print(text, end="\n\n")  # noqa: T201 - colours of our own, all else escaped
    if not as_json:
        say(LEGEND)
    if output:
        say(write_explanations_page(explanations, source, output), file=sys.stderr)


def _explain_run(source: str, **only_with_texts: Any) -> None:
    if misplaced := [name for name, value in only_with_texts.items() if value]:
        what = f"--{misplaced[0]} works only with texts or --input FILE"
        raise UserError("", what, "bertkit explain RUN 'some text'")
    from bertkit.report.examples import write_explanations
    from bertkit.report.facts import damage_as_error

    with damage_as_error(source):
        say(write_explanations(Path(source)))
    say(f"bertkit report {shell_word(source)} shows them", file=sys.stderr)


def positive_number(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


_limit = partial(argument, type=positive_number)


@command(
    "serve predictions over HTTP",
    shared.MODEL,
    shared.TASK,
    shared.REVISION,
    argument("--host", "default: 127.0.0.1, reachable from this machine only", default="127.0.0.1"),
    argument("--port", "0: any free port; default: 8000", default=8000),
    argument("--store", "a vector store of `bertkit index`, for /search", metavar="STORE"),
    path("--api-key-file", "the key that clients must send; default: the variable BERTKIT_API_KEY"),
    _limit("--max-batch-tokens", "estimated tokens of a row, and of a call", default=Limits.max_batch_tokens),
    _limit("--max-client-batch-size", "rows per request", default=Limits.max_client_batch_size),
    _limit(
        "--max-concurrent-requests",
        "requests in progress, queued ones included; further ones get a 429",
        default=Limits.max_concurrent_requests,
    ),
    _limit("--payload-limit", "bytes of a request's body", default=Limits.payload_limit),
    _limit("--timeout", "seconds to read a body, and again to answer", default=Limits.timeout),
    example="bertkit serve runs/quickstart --port 8000",
    page="serve",
)
@one_process
def serve(**options: Any) -> None:
    bertkit.serve(**options)
