"""What a finished run folder says of itself: the only thing that report and comparison are made from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from bertkit.errors import ModelError, Problem
from bertkit.files import read_json
from bertkit.run import Run
from bertkit.tasks import get_task

if TYPE_CHECKING:
    from bertkit.recipe.recipe import Recipe

Row: TypeAlias = Mapping[str, Any]

TEXT_COLUMNS = (("text",), ("text_a", "text_b"), ("question", "context"), ("query", "document"), ("anchor", "positive"))
COUNTED = 2000  # texts whose word pieces are counted
RESULTS = ("task", "headline", "splits", "baselines", "seeds", "over_seeds", "verified", "expected")
DATA = ("rows", "fingerprints", "findings")
ENVIRONMENT = ("python", "versions", "device", "precision")


@dataclass(frozen=True)
class Lengths:
    """Word pieces of a split's texts, special tokens included.

    pieces: `(texts,)`, of the first 2,000 rows. limit: of one window. truncated: rows whose end the model did not read,
    of all rows of the split.
    """

    pieces: tuple[int, ...]
    limit: int
    truncated: int


@dataclass(frozen=True)
class Facts:
    """A run folder, read once. Local folders in recipe and findings are cut off their paths."""

    name: str
    recipe: Recipe
    recipe_text: str
    results: Mapping[str, Any]
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    log: tuple[Row, ...]  # metrics.jsonl
    options: Mapping[str, Any]  # of the settled task, as its own `Options` read them from model/config.json
    split: str  # the split whose answers are looked at: test, else validation, else the only one
    rows: tuple[Row, ...] = field(repr=False)  # its rows, each with its `answer`; none where predictions are gone
    lengths: Lengths | None
    transitions: tuple[tuple[float, ...], ...] | None  # of a CRF, `(tags, tags)`, from row to column
    explanations: Mapping[str, Any] = field(default_factory=dict, repr=False)  # explanations.json, where it is there

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.results["task"]["name"])

    @property
    def headline(self) -> str:
        """The metric that picked the checkpoint."""
        return str(self.results["headline"])

    @property
    def scores(self) -> Mapping[str, Any]:
        """`rows`, `metrics`, `intervals` and details of the split that is looked at."""
        return dict(self.results["splits"][self.split])


def read_facts(folder: str | Path) -> Facts:
    """Read a finished run folder.

    Raises ModelError where it is not one, or where a file does not state what it must, with what is missing;
    UserError where a file is damaged.
    """
    run = Run(Path(folder))
    if not run.finished:
        what, fix = "is not a finished run: it has no results.json", "Train it to its end, with --resume."
        raise ModelError(Problem(str(run.folder), what, fix))
    recipe, results = run.recipe, _stating(run.folder / "results.json", RESULTS)
    settings = _stating(run.model / "config.json", ("bertkit",))["bertkit"]
    split = next((name for name in ("test", "validation") if name in results["splits"]), next(iter(results["splits"])))
    # Of a corpus the answers are counts, which the results have summed up.
    read = () if results["task"]["name"] == "pretraining" else _lines(run.folder / "predictions" / f"{split}.jsonl")
    rows = tuple(read)
    public = _shortener(recipe)
    data = dict(_stating(run.folder / "data.json", DATA))
    data["findings"] = [{**each, "what": public(each["what"]), "fix": public(each["fix"])} for each in data["findings"]]
    return Facts(
        name=run.folder.resolve().name,
        recipe=recipe,
        recipe_text=public((run.folder / "recipe.yaml").read_text(encoding="utf-8")),
        results=results,
        data=data,
        environment=_stating(run.folder / "environment.json", ENVIRONMENT),
        log=tuple(_lines(run.folder / "metrics.jsonl")),
        options=_options(run.model / "config.json", settings),
        split=split,
        rows=rows,
        lengths=_lengths(run, settings, rows),
        transitions=_transitions(run, settings),
        explanations=_explanations(run.folder / "explanations.json"),
    )


@contextmanager
def understood(folder: str | Path) -> Iterator[None]:
    """Within the block, a value of another kind or shape than those that bertkit writes is a ModelError."""
    from jinja2 import TemplateError

    kinds = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, StopIteration)
    try:
        yield
    except (*kinds, TemplateError) as error:
        what = f"a file of it does not hold what bertkit writes there ({type(error).__name__}: {error})"
        fix = "It was edited, or written by another version of bertkit: train it again. If not, it is a bug of bertkit."
        raise ModelError(Problem(str(folder), what, fix)) from error


def texts_of(row: Row) -> tuple[str, ...]:
    """The texts of a row that the model read, in order; of tagged words the sentence."""
    for names in TEXT_COLUMNS:
        if all(row.get(name) is not None for name in names):
            return tuple(str(row[name]) for name in names)
    return (" ".join(row["tokens"]),) if "tokens" in row else ()


def _stating(path: Path, facts: Iterable[str]) -> Mapping[str, Any]:
    """The mapping of a JSON file, which must state these facts."""
    if not path.is_file():
        raise ModelError(Problem(str(path), "is missing", "The run folder is not whole: train it again."))
    found = read_json(path)
    missing = [name for name in facts if name not in found] if isinstance(found, Mapping) else list(facts)
    if missing:
        fix = "It was edited, or written by another version of bertkit: train it again."
        raise ModelError([Problem(str(path), f"does not state `{name}`", fix) for name in missing])
    return dict(found)


def _options(path: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task's options, in their own types."""
    given = settings.get("task") or {}
    try:
        return dict(get_task(given.get("name", "")).Options.model_validate(given))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["bertkit", "task", *map(str, first["loc"])])
        fix = "It was edited, or written by another version of bertkit."
        raise ModelError(Problem(str(path), f"{place}: {first['msg']}", fix)) from error


def _lines(path: Path) -> Iterator[Row]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ModelError(Problem(f"{path}:{number}", f"is damaged: it is not JSON ({error})")) from error


def local_paths(recipe: Recipe) -> list[str]:
    """The absolute paths that a recipe names, the longest first."""
    found = {text for text in _strings(recipe.model_dump(mode="json")) if text.startswith("/") and len(text) > 1}
    return sorted(found, key=lambda path: (-len(path), path))


def _shortener(recipe: Recipe) -> Callable[[str], str]:
    """A function that cuts the recipe's own absolute paths in a text to their last part: a report is handed on."""
    paths = local_paths(recipe)

    def shortened(text: str) -> str:
        for path in paths:
            text = text.replace(path, Path(path).name)
        return text

    return shortened


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _explanations(path: Path) -> Mapping[str, Any]:
    return _stating(path, ("examples", "neighbours")) if path.is_file() else {}


def _lengths(run: Run, settings: Mapping[str, Any], rows: tuple[Row, ...]) -> Lengths | None:
    """Counted anew with the model's own tokenizer, so that runs of any age have them."""
    file = run.model / "tokenizer.json"
    texts = [texts for row in rows[:COUNTED] if (texts := texts_of(row))]
    if not file.is_file() or not texts or "max_length" not in settings:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Query and document are read apart from each other; the document is what a limit cuts.
    alone = settings["task"]["name"] in ("sentence-similarity", "retrieval")
    given = [each[-1] if alone or len(each) == 1 else each for each in texts]
    pieces = tuple(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(given))
    truncated = sum(bool(row["answer"].get("truncated")) for row in rows)
    return Lengths(pieces, settings["max_length"], truncated)


def _transitions(run: Run, settings: Mapping[str, Any]) -> tuple[tuple[float, ...], ...] | None:
    file = run.model / "crf.safetensors"
    if "crf" not in settings.get("beside", {}) or not file.is_file():
        return None
    from safetensors.numpy import load_file

    return tuple(tuple(map(float, row)) for row in load_file(file)["transitions"])
