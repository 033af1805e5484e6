"""The models of several tasks that were trained together, answering at once: the encoder reads each text
once.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np

from bertkit.data.python_rows import frame_rows, is_frame
from bertkit.data.schema import Answer
from bertkit.data.values import has_columns
from bertkit.encoding.padding import fills, pad
from bertkit.errors import ModelError, UserError
from bertkit.files import read_json
from bertkit.inference.display import read_together
from bertkit.inference.predictor import Predictor, Row, in_chunks, load
from bertkit.inference.runner import on_cpu
from bertkit.models.device import Precision
from bertkit.models.trained_parts import encoder_parts, share_encoder
from bertkit.recipe.recipe import MultiTaskRecipe, read
from bertkit.tasks.base import with_input_flags
from bertkit.text import Record
from bertkit.validation import did_you_mean

logger = logging.getLogger(__name__)


class CachedEncoder:
    """An encoder that, within `keeping`, computes the first call after each `forget`, and returns its outputs
    to the next ones.
    """

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.outputs: list[Any] | None = None

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        # only some heads of Longformer ask for global attention
        if self.outputs is None or inputs.get("global_attention_mask") is not None:
            return self.forward(*args, **inputs)
        self.outputs = self.outputs or [self.forward(*args, **inputs)]
        return self.outputs[0]

    def forget(self) -> None:
        """The next call is computed."""
        self.outputs = []

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """After the block, each call is computed, as for one task alone."""
        try:
            yield
        finally:
            self.outputs = None


@final
@dataclass(frozen=True)
class MultiTaskPredictor:
    """The predictors of several tasks over one encoder. Answers are dicts: name of the task -> its answer."""

    tasks: Mapping[str, Predictor]
    encoder: CachedEncoder

    def only(self, *names: str) -> MultiTaskPredictor:
        """This model for these tasks only, such as those that read the columns of your rows. Raises
        UserError.
        """
        for name in names:
            if name not in self.tasks:
                raise UserError(
                    "",
                    f"no task {name!r}{did_you_mean(name, self.tasks)}",
                    f"Choose among {', '.join(self.tasks)}.",
                )
        return MultiTaskPredictor({name: self.tasks[name] for name in names}, self.encoder)

    def __call__(self, rows: Row | Sequence[Row], /) -> dict[str, Answer] | list[dict[str, Answer]]:
        """The answers to one text or row, or the list of those to several. rows: as for `stream`."""
        return next(self.stream([rows])) if isinstance(rows, str | Mapping) else list(self.stream(rows))

    def cells(self, answer: Answer, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """The answers of the tasks as columns of a table, as `Predictor.cells`, after the task's name."""
        return chain.from_iterable(
            self.tasks[name].cells(part, f"{prefix}{name}.") for name, part in answer.items()
        )

    def stream(self, rows: Iterable[Row], start: int = 0) -> Iterator[dict[str, Answer]]:
        """Answers in the rows' order, in constant memory. Raises DataError on a row without the columns of a
        task.

        rows, start: as for `Predictor.stream`; each row has the columns of every task.
        """
        tasks = self.tasks

        def answers(chunk: Sequence[Row], start: int) -> Iterator[dict[str, Answer]]:
            columns = {name: part.canonical(chunk, start) for name, part in tasks.items()}
            features = {name: part.task.encode(columns[name]) for name, part in tasks.items()}
            items = self._items(features)
            by_task = {}
            for name, part in tasks.items():
                decoded = part.task.decode(items[name], features[name], columns[name])
                by_task[name] = map(part.rule, with_input_flags(decoded, features[name]))
            return (dict(zip(by_task, row, strict=True)) for row in zip(*by_task.values(), strict=True))

        first = next(iter(tasks.values()))
        if is_frame(rows):
            rows = frame_rows(rows, set().union(*(part.reads for part in tasks.values())))
        return in_chunks(first.rows_of(rows), first.task.chunk_size, answers, start)

    def reading(self, row: Row) -> MultiTaskPredictor:
        """This model for the tasks whose columns this row has, with a warning of the others; if none has, for
        all.
        """
        fields = {"text": row} if isinstance(row, str) else row
        readers = dict.fromkeys(
            name
            for name, part in self.tasks.items()
            for names in part.task.inputs
            if has_columns(fields, names, part.columns)
        )
        if not readers:
            return self
        for name, part in self.tasks.items():
            if name not in readers:
                logger.warning("task %s is left out: it needs %s", name, read_together(part.task))
        return self.only(*readers)

    def _items(self, features: Record) -> dict[str, list[Any]]:
        """The items of each task's features. What several tasks read alike goes through the encoder once."""
        items = {name: [None] * len(encoded) for name, encoded in features.items()}
        runners = {name: part.predict_features for name, part in self.tasks.items()}
        first = next(iter(runners.values()))
        with first.inference(), self.encoder.keeping():
            for names, together in _group_by_input(self.tasks, features).items():
                lengths = [features[names[0]]["length"][indices[0]] for indices in together]
                for batch in first.batches(lengths):
                    self.encoder.forget()
                    for place, name in enumerate(names):
                        task = runners[name].task
                        chosen = [together[at][place] for at in batch.tolist()]
                        arrays = pad(
                            task.examples(features[name], chosen), fills(task.tokenizer, task.padding)
                        )
                        decoded = task.items(on_cpu(runners[name].run(arrays)))
                        for index, item in zip(chosen, decoded, strict=True):
                            items[name][index] = item
        return items


def tasks_of_run(folder: Path) -> list[str]:
    """The names of the tasks of a finished run of several tasks; of any other folder, none."""
    results = folder / "results.json"  # folders of other programs may have one too
    several = results.is_file() and (folder / "recipe.yaml").is_file() and not (folder / "model").is_dir()
    return list(read_json(results).get("tasks", ())) if several else []


def load_any(
    source: str | Path, task: str | None, revision: str | None, decisions: Record, **others: Any
) -> Predictor | MultiTaskPredictor:
    """The predictor of one task, with these decisions; or of a run of several.

    others: further options that several tasks do not take. Raises ModelError, and UserError where they are
    set.
    """
    if not tasks_of_run(Path(source).expanduser()):
        return load(source, revision=revision, task=task).with_decisions(**decisions)
    of_one = {"task": task, "revision": revision, **decisions, **others}
    if taken := [name for name, value in of_one.items() if value is not None]:
        raise UserError(
            source,
            f"a run of several tasks does not support {taken[0]}",
            f"Pass {source}/NAME, the run of one task.",
        )
    return load_tasks(source)


def load_tasks(
    folder: str | Path, *, precision: Precision | None = None, batch_size: int | None = None
) -> MultiTaskPredictor:
    """The predictor of all tasks of a run that `bertkit.train` trained together, with one encoder in memory.

    precision, batch_size: as for `load`. Raises ModelError where the models do not have the same encoder.

    >>> bertkit.load_tasks("runs/multi")("My invoice is wrong, again.")  # doctest: +SKIP
    {'topic': {'label': 'invoices', …}, 'tone': {'label': 'angry', …}}
    """
    file = Path(folder).expanduser() / "recipe.yaml"
    recipe = read(file, check_files=False)
    if not isinstance(recipe, MultiTaskRecipe):
        raise ModelError(folder, "is a run of one task", "Load it with bertkit.load.")
    tasks = {
        name: load(file.with_name(name), precision=precision, batch_size=batch_size) for name in recipe.tasks
    }
    models = {
        name: (part.model, part.task.extra_modules(part.model).values()) for name, part in tasks.items()
    }
    parts = {name: encoder_parts(*arguments) for name, arguments in models.items()}
    first = max(parts, key=lambda name: len(parts[name]))  # a part that others do not have, they do not use
    base = models[first][0].base_model
    shared = dict(base.state_dict())
    for name, (model, _) in models.items():
        kind = type(model.base_model)
        different = [
            key
            for key, tensor in model.base_model.state_dict().items()
            if key.partition(".")[0] in parts[name] and not (key in shared and tensor.equal(shared[key]))
        ]
        if kind is not type(base) or different:
            what = kind.__name__ if kind is not type(base) else different[0]
            raise ModelError(
                file.with_name(name),
                f"its encoder differs from the encoder of {first}: {what}",
                "Load the models one by one: bertkit.load.",
            )
    share_encoder([models[first], *models.values()])
    encoder = CachedEncoder(base.forward)
    for model, _ in models.values():
        model.base_model.forward = encoder
    return MultiTaskPredictor(tasks, encoder)


def _group_by_input(
    tasks: Mapping[str, Predictor], features: Record
) -> Mapping[tuple[str, ...], list[list[int]]]:
    """Tasks -> the indices of the features, one of each task, that give the encoder the same inputs."""
    readers: defaultdict[tuple[Any, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, encoded in features.items():
        inputs = tasks[name].task.tokenizer.model_input_names
        columns = [encoded[column] for column in inputs if column in encoded.column_names]
        seen: Counter[Any] = Counter()
        for index, row in enumerate(zip(*columns, strict=True)):
            key = tuple(np.asarray(values, dtype=np.int32).tobytes() for values in row)
            readers[key, seen[key]].append((name, index))
            seen[key] += 1
    groups: defaultdict[tuple[str, ...], list[list[int]]] = defaultdict(list)
    for group in readers.values():
        groups[tuple(name for name, _ in group)].append([index for _, index in group])
    return groups
