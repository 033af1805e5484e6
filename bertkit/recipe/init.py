"""`init`: a first recipe for rows, with what was guessed of them and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.layout import layout_of, names_of
from bertkit.data.python_inputs import data_section
from bertkit.data.python_rows import store_rows
from bertkit.data.readers import reader_of
from bertkit.data.scripts import share
from bertkit.data.sources import files_at, open_source, texts_at
from bertkit.data.spelling import variants
from bertkit.data.tagging import without_prefixes
from bertkit.data.values import is_blank
from bertkit.errors import UserError
from bertkit.files import read_json
from bertkit.recipe import shipped_recipes
from bertkit.recipe.guess import NAMES, Column, Guess, guess, length
from bertkit.recipe.recipe import Recipe, parse_data_spec
from bertkit.recipe.yaml import parse, written
from bertkit.sections import MEMORY, DataSpec
from bertkit.text import Json, beginning, counted, json_line

MOST_ROWS = 5000  # that are looked at
ENGLISH = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL = "jhu-clsp/mmBERT-small"  # docs/languages.md
LETTERS = 0.998  # the share of a to z in English
SIZES = (64, 128, 256, 512)  # tokens
TOKENS = 1.5  # of a word
CONTEXT = 256  # tokens that a question and a part of its context need
LARGEST_RATE = 5e-5  # of other encoders than MiniLM
FEW = 64  # rows per label: docs/few-shot.md
SHIPPED = {  # task -> the recipe whose settings are for few rows, and for many
    "text-classification": ("quickstart", "cola-minilm"),
    "token-classification": ("ner-quickstart", "conll2003-crf-minilm"),
    "question-answering": ("qa-quickstart", "squad-minilm"),
    "sentence-similarity": ("similarity-quickstart", "stsb-cosine-minilm"),
    "retrieval": ("retrieval-quickstart", "scifact-minilm"),
}
NUMBERS = ("learning_rate", "num_train_epochs", "per_device_train_batch_size")
HELD_OUT = {"validation": 0.1, "test": 0.1}  # split -> share of train, where the source has no such split
ABOUT = {  # key -> its comment
    "model": "the encoder",
    "data": "the rows",
    "delimiter": "between fields",
    "encoding": "of the file",
    "header": "the file has none",
    "columns": "what the task reads: the column that has it",
    "labels": "those that differ only in case or blanks are one",
    "missing_labels": "rows without a label are left out",
    "labels_separator": "between the labels of a row",
    "validation": "the share of rows that is held out, to choose the best checkpoint",
    "test": "the share of rows that is held out, to judge the model",
}


@dataclass(frozen=True)
class FirstRecipe:
    """A recipe that was guessed. sections: of the recipe, as plain data. comments: section or key -> why.
    why: what was guessed, for people.
    """

    sections: Mapping[str, Json]
    comments: Mapping[str, str]
    why: Sequence[str]

    @property
    def recipe(self) -> Recipe:
        """The recipe, which `bertkit.train` takes."""
        return Recipe(**self.sections)

    def text(self, file: Path) -> str:
        """The text of the recipe for this file, to whose folder its paths are relative.

        Raises UserError for rows from Python, which no file holds.
        """
        if self.sections["data"].get("source") == MEMORY:
            raise UserError("", "rows from Python are in no file", "Pass `recipe` to bertkit.train.")
        comments = {**ABOUT, **self.comments}
        lines = ["# By bertkit init. Every key is explained in docs/recipes.md."]
        for name, section in self.sections.items():
            if name not in ABOUT:
                lines.append(_line(name, section, comments[name]))
                continue
            lines.append(f"{name}:  # {comments[name]}")
            for key, value in section.items():
                moves = key in ("source", "name") and Path(value).exists() and not Path(value).is_absolute()
                kept = f"./{Path(os.path.relpath(value, file.parent)).as_posix()}" if moves else value
                lines.append(f"  {_line(key, kept, comments.get(key, 'as you said'))}")
        return "\n".join(lines) + "\n"


def init(
    data: Any,
    *,
    text: Sequence[str] = (),
    label: str | Sequence[str] = (),
    task: str | None = None,
    model: str | None = None,
    layout: Sequence[str] = (),
) -> FirstRecipe:
    """A first recipe for a file, a folder (train.csv and the like, or texts by label), or rows: a DataFrame.

    text: the column of texts, or two of them; label: the column that is learned, or several of 0 and 1;
    task, model: in place of those that are chosen. layout: how the file is written, such as
    `data.delimiter=;`, where it is not recognised.
    Returns `recipe`, which `bertkit.train` takes, `text(FILE)`, the recipe as YAML, and `why`.
    Raises UserError with the columns that could be meant, and DataError on a file that cannot be read.

    >>> first = bertkit.init("rows.jsonl")
    >>> first.why[:3]
    ['task: text-classification', 'text: text, median 3 words', 'label: label, 2 values']
    """
    section, rows = data_section(data)
    section |= parse_data_spec({"source": "-"}, layout).model_dump(exclude_unset=True, exclude={"source"})
    section |= store_rows(rows) if rows else {}
    if "columns" in section:
        raise UserError("data.columns", "init chooses the columns", "Name them: text=…, label=….")
    spec = parse_data_spec(section)
    if isinstance(spec.source, dict):
        raise UserError("data.source", "several files", "Name one, or the folder that they are in.")
    source = Path(str(spec.source))
    if spec.source != MEMORY and not source.exists():
        raise UserError(source, "no such file or folder", "A data set of the Hub needs a recipe by hand.")
    table, needs = _look(spec, source)
    texts, labels = ([names] if isinstance(names, str) else names for names in (text, label))
    chosen = guess(table, texts, labels, task)
    target = chosen.target
    rows_seen = len(target.cells)
    seen = counted(rows_seen, "row")
    if rows_seen >= MOST_ROWS:
        seen = f"the first {seen}"
    if target.holds == "labels" and target.separator not in (None, "|"):
        needs["labels_separator"] = target.separator
    columns = {canonical: column.source for canonical, column in chosen.columns.items()}
    section = {**section, "columns": columns, **needs, **section}  # in the order that people read
    # an empty text among `labels` is a row without any
    missing = any(cell is None or target.holds != "labels" for cell in target.cells if is_blank(cell))
    if missing and chosen.columns.keys().isdisjoint({"answers", "spans"}):
        section.setdefault("missing_labels", "ignore")
    if target.holds in ("label", "labels") and not target.names and variants(Counter(target.labels)):
        section.setdefault("labels", "casefold")
    sections, comments = _settings(chosen, model)
    why = [*chosen.lines(), seen, *(f"{key}: {json_line(value)}" for key, value in needs.items())]
    if "encoding" in needs:
        cells = chain.from_iterable(column.values for column in chosen.columns.values())
        words = (word for cell in cells for word in str(cell).split() if not word.isascii())
        shown = beginning(" ".join(words), 60)
        why.append(f"in this encoding it reads {shown!r}; if that is wrong, add data.encoding=NAME")
    return FirstRecipe({**sections, "data": section}, {**comments, "source": seen}, why)


def _look(spec: DataSpec, source: Path) -> tuple[dict[str, Column], Json]:
    """The first rows of a source as columns, and the keys of `data:` that it needs. Raises DataError."""
    needs = Json()
    headed = False
    folders = ("qrels", "dataset_dict.json", "state.json")  # of BEIR, and of a data set that was saved
    if spec.source != MEMORY and not any((source / name).exists() for name in folders):
        texts = texts_at(source, spec)
        files = [*filter(None, texts.get("train", {}).values())] or [
            files_at(source, spec).get("train", [source])
        ]
        file = files[0][0]
        if file.is_file():
            needs |= layout_of(file, spec)
            headed = reader_of(file, spec).name in ("csv", "tsv", "xlsx")
            headed &= "header" not in {*needs, *spec.model_fields_set}
    parts = open_source(spec.model_copy(update=needs), None, None)
    if "train" not in parts:
        raise UserError(source, f"no split train; it has {', '.join(parts)}", "Name a file to learn from.")
    rows = [row for _, row in islice(parts["train"][0].rows, MOST_ROWS)]
    table = dict[str, Column]()
    for name in dict.fromkeys(chain.from_iterable(rows)):
        table[name] = Column(name, [row.get(name) for row in rows])
    # a usual name of a column is not taken for a value
    headed &= {*chain.from_iterable(NAMES.values())}.isdisjoint(map(str.casefold, table))
    if headed and any(n and c.is_class and c.cells.count(n) > 1 for n, c in table.items()):
        needs["header"] = names_of(table)
        pairs = zip(needs["header"], table.values(), strict=True)
        table = {name: Column(name, [column.name, *column.cells]) for name, column in pairs}
    return table, needs | {split: share for split, share in HELD_OUT.items() if split not in parts}


def _settings(chosen: Guess, model: str | None) -> tuple[dict[str, Json], dict[str, str]]:
    """The sections `task`, `model` and `training`, and comments on them."""
    columns = chosen.columns
    *inputs, target = columns.values()
    english = share((str(cell) for column in inputs for cell in column.values), "A-Za-z") >= LETTERS
    encoder = model or (ENGLISH if english else MULTILINGUAL)
    read = columns.values() if "positive" in columns else inputs
    cells = [column.cells for column in read]
    lengths = sorted(sum(map(length, row)) for row in zip(*cells, strict=True))
    most = lengths[int(0.95 * (len(lengths) - 1))]
    needed = max(TOKENS * most, CONTEXT if "context" in columns else 0)
    size = next((size for size in SIZES if size >= needed), SIZES[-1])
    config = Path(encoder, "config.json")
    if config.is_file():
        positions = read_json(config).get("max_position_embeddings")
        size = min(size, positions) if isinstance(positions, int) and positions > 0 else size
    task: Json = {"name": chosen.task}
    comments = {
        "task": "by the columns below",
        "max_length": f"tokens; 95 % of the rows have at most {counted(most, 'word')}",
    }
    if not model:
        comments["name"] = "small, for English" if english else "small, for 1,833 languages"
    if "context" in columns:
        task["stride"] = 3 * size // 8
    if "tags" in columns and without_prefixes(target.labels) and not "".join(target.labels).isdecimal():
        task |= {"data_scheme": "IO"} if "O" in target.labels else {"scheme": "none"}
    elif not columns.keys().isdisjoint({"tags", "spans"}):
        task["head"] = "crf"
    sections = {"task": task, "model": {"name": encoder, "max_length": size}}
    few = len(target.cells) < MOST_ROWS
    classes = not columns.keys().isdisjoint({"label", "labels"})
    if few and classes and len(target.labels) < FEW * len({*target.labels}):
        task["method"] = "contrastive"
        comments["task"] = f"contrastive: under {FEW} rows per label, see docs/few-shot.md"
        return sections, comments
    shipped = SHIPPED[chosen.task][0 if few else 1]
    training = parse(shipped_recipes()[shipped].read_bytes()).data["training"]
    numbers = {key: training[key] for key in NUMBERS}
    comments["training"] = f"as in the recipe {shipped}"
    if encoder != ENGLISH:
        numbers["learning_rate"] = min(numbers["learning_rate"], LARGEST_RATE)
    return {**sections, "training": numbers}, comments


def _line(key: str, value: Any, comment: str) -> str:
    """A key, its value and a comment on one line."""
    return f"{written({key: value}, flow=True).strip()[1:-1]}  # {comment}"
