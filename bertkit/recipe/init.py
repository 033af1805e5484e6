"""`init`: a first recipe for rows, with what was guessed of them and why."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.data.layout import layout_of
from bertkit.data.python_inputs import data_section
from bertkit.data.python_rows import store_rows
from bertkit.data.readers import reader_of
from bertkit.data.scripts import share
from bertkit.data.sources import files_at, open_source
from bertkit.errors import UserError
from bertkit.files import read_json
from bertkit.recipe import shipped_recipes
from bertkit.recipe.guess import Column, Guess, guess, length
from bertkit.recipe.recipe import Recipe, parse_data_spec, parse_layout
from bertkit.recipe.yaml import parse, written
from bertkit.sections import MEMORY, DataSpec
from bertkit.text import Json, counted, json_line

MOST_ROWS = 5000  # that are looked at
ENGLISH = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL = "jhu-clsp/mmBERT-small"  # docs/languages.md
LETTERS = 0.998  # the share of a to z in English
SIZES = (64, 128, 256, 512)  # tokens
TOKENS = 1.5  # of a word
CONTEXT = 171  # words of a window that a question and a part of its context need
LARGEST_RATE = 5e-5  # of other encoders than MiniLM
FEW = 64  # rows per label: docs/few-shot.md
SHIPPED = {  # task -> the recipe whose settings are for few rows, and for many
    "text-classification": ("quickstart", "cola-minilm"),
    "token-classification": ("ner-quickstart", "conll2003-crf-minilm"),
    "question-answering": ("qa-quickstart", "squad-minilm"),
    "sentence-similarity": ("similarity-quickstart", "stsb-cosine-minilm"),
    "retrieval": ("retrieval-quickstart", "scifact-minilm"),
    "text-ranking": ("rerank-quickstart", "stsb-cross-minilm"),
}
NUMBERS = ("learning_rate", "num_train_epochs", "per_device_train_batch_size")
HELD_OUT = {"validation": 0.1}  # split -> share of train, where the source has no such split
ABOUT = {  # key -> its comment
    "model": "the encoder",
    "data": "the rows",
    "delimiter": "between fields",
    "encoding": "of the file",
    "header": "the file has none",
    "columns": "what the task reads: the column that has it",
    "missing_labels": "rows without a label are left out",
    "validation": "the share of rows that is held out, to choose the best checkpoint",
}


class Look(NamedTuple):
    """What a source holds. table: of its first rows. layout: keys of `data:` that it needs. splits: its
    own.
    """

    table: dict[str, Column]
    layout: Json
    splits: Collection[str]


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
        """The text of the recipe for this file, to whose folder its paths are relative."""
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
                lines.append(f"  {_line(key, kept, comments[key])}")
        return "\n".join(lines) + "\n"


def init(
    data: Any,
    *,
    text: Sequence[str] = (),
    label: str | None = None,
    task: str | None = None,
    model: str | None = None,
    layout: Sequence[str] = (),
) -> FirstRecipe:
    """A first recipe for a file, a folder with train.csv and the like, or rows such as a DataFrame.

    text: the column of texts, or two of them; label: the column that is learned; task, model: in place of
    those that are chosen. layout: how the file is written, such as `data.delimiter=;`, where it is not
    recognised. Returns `recipe`, which `bertkit.train` takes, `text(FILE)`, the recipe as YAML, and `why`.
    Raises UserError with the columns that could be meant, and DataError on a file that cannot be read.

    >>> first = bertkit.init("rows.jsonl")
    >>> first.why[:3]
    ['text-classification', 'text: text, median 3 words', 'label: label, 2 values']
    """
    given, rows = data_section(data)
    stated = parse_layout(layout).model_dump(exclude_unset=True, exclude={"source"})
    section = {**given, **stated, **(store_rows(rows) if rows else {})}
    spec = parse_data_spec(section)
    source = Path(str(spec.source))
    if spec.source != MEMORY and not source.exists():
        raise UserError(source, "no such file or folder", "A data set of the Hub needs a recipe by hand.")
    seen = _look(spec, source)
    named = [text] if isinstance(text, str) else text
    chosen = guess(seen.table, named, label, task)
    target = chosen.target
    rows_seen = counted(len(target.cells), "row")
    if len(target.cells) == MOST_ROWS:
        rows_seen = f"the first {rows_seen}"
    inputs = [seen.table[name] for name in chosen.columns.values() if name != target.name]
    sections, comments = _settings(chosen, inputs, model)
    section |= {**seen.layout, "columns": chosen.columns}
    if len(target.values) < len(target.cells) and "answers" not in chosen.columns:
        section["missing_labels"] = "ignore"
    section |= {split: part for split, part in HELD_OUT.items() if split not in seen.splits}
    why = [*chosen.why, rows_seen, *(f"{key}: {json_line(value)}" for key, value in seen.layout.items())]
    order = {"task": sections["task"], "model": sections["model"], "data": section}
    return FirstRecipe({**order, **sections}, {**comments, "source": rows_seen}, why)


def _look(spec: DataSpec, source: Path) -> Look:
    """Raises DataError on a source that cannot be read."""
    layout = Json()
    table = False
    if spec.source != MEMORY and not (source / "qrels").is_dir():
        file = files_at(source, spec)["train"][0]
        layout = layout_of(file, spec)
        table = reader_of(file, spec).name in ("csv", "tsv", "xlsx") and spec.header is True
    spec = spec.model_copy(update=layout)
    parts = open_source(spec, None, ())
    rows = [row for _, row in islice(parts["train"][0].rows, MOST_ROWS)]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: Column(name, [row.get(name) for row in rows]) for name in names}
    if table and any(column.is_class and column.cells.count(name) > 1 for name, column in columns.items()):
        header = {"header": [f"column{number}" for number in range(1, len(names) + 1)]}
        again = _look(spec.model_copy(update=header), source)
        return again._replace(layout=layout | header)
    return Look(columns, layout, parts)


def _settings(
    chosen: Guess, inputs: Sequence[Column], model: str | None
) -> tuple[dict[str, Json], dict[str, str]]:
    """The sections `task`, `model` and `training`, and comments on them."""
    task = dict(chosen.task)
    name = task["name"]
    target = chosen.target
    texts = (cell for column in inputs for cell in column.values if isinstance(cell, str))
    english = share(texts, "A-Za-z") >= LETTERS
    encoder = model or (ENGLISH if english else MULTILINGUAL)
    lengths = sorted(sum(map(length, row)) for row in zip(*(column.cells for column in inputs), strict=True))
    most = lengths[int(0.95 * (len(lengths) - 1))]
    needed = TOKENS * max(most, CONTEXT if name == "question-answering" else 0)
    size = next((size for size in SIZES if size >= needed), SIZES[-1])
    config = Path(encoder, "config.json")
    if config.is_file():
        size = min(size, read_json(config).get("max_position_embeddings", size))
    which = "multilingual: the texts are not English" if not english else "small, for English texts"
    comments = {
        "task": "of the columns below",
        "name": "as you said" if model else which,
        "max_length": f"tokens; 95 % of the rows have at most {counted(most, 'word')}",
    }
    if name == "question-answering":
        task["stride"] = 3 * size // 8
    if name == "token-classification" and "scheme" not in task:
        task["head"] = "crf"
    sections = {"task": task, "model": {"name": encoder, "max_length": size}}
    few = len(target.cells) < MOST_ROWS
    labels = target.labels if {"label", "labels"} & chosen.columns.keys() else []
    if name == "text-classification" and few and len(labels) < FEW * len({*labels}):
        task["method"] = "contrastive"
        comments["task"] = f"contrastive, as under {FEW} rows per label: docs/few-shot.md"
        return sections, comments
    shipped = SHIPPED[name][0 if few else 1]
    settings = parse(shipped_recipes()[shipped].read_bytes()).data["training"]
    training = {key: settings[key] for key in NUMBERS}
    comments["training"] = f"those of the recipe {shipped}"
    if encoder != ENGLISH:
        training["learning_rate"] = min(training["learning_rate"], LARGEST_RATE)
        comments["training"] += f", at most {LARGEST_RATE} for other encoders"
    return {**sections, "training": training}, comments


def _line(key: str, value: Any, comment: str) -> str:
    """A key, its value and a comment on one line."""
    return f"{written({key: value}, flow=True).strip()[1:-1]}  # {comment}"
