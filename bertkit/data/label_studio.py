"""Label Studio's exports, JSON and JSON_MIN, as rows: which field is the text, and what its controls hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from bertkit.data.schema import mapped_columns
from bertkit.data.table import Row
from bertkit.sections import DataSpec
from bertkit.text import short_repr

MALFORMED = (TypeError, LookupError, AttributeError)  # what reading an object raises that is not as its tool writes it
TARGETS = ("spans", "label", "labels", "tags", "tokens", "annotated")  # names that a tool's own fields must not take
_AFTER = ("annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement")  # of JSON_MIN
_BLANKS = re.compile(r"\\n|\s")  # a line break in a region's text is written as a backslash and n


def label_columns(chosen: Sequence[str], single: bool = True) -> Row:
    """`labels`, and `label` where there is exactly one. single: whether there could be a `label`."""
    return {"labels": list(chosen), **({"label": chosen[0]} if single and len(chosen) == 1 else {})}


class Task(NamedTuple):
    """A task with the annotation that is read."""

    data: Row  # its own fields
    results: dict[str, list[Any]] | None  # control tag -> its values; None: nobody annotated the task
    annotations: int  # that were submitted and could have been read


class Fields(NamedTuple):
    """The fields and controls of all tasks: several of one kind where it is not clear which is meant."""

    texts: Sequence[str]
    spans: Sequence[str]
    choices: Sequence[str]
    mapped: Collection[str]  # by the recipe

    @property
    def several(self) -> Mapping[str, Sequence[str]]:
        """Column of a bertkit task -> the fields or controls that it could be, where they are several."""
        could_be = {"text": self.texts, "spans": self.spans, "label": self.choices}
        return {name: names for name, names in could_be.items() if len(names) > 1}


def is_full(item: Any) -> bool:
    """Whether this is a task of a JSON export."""
    return isinstance(item, dict) and isinstance(item.get("data"), dict) and "annotations" in item


def is_minimal(item: Any) -> bool:
    """Whether this is an annotation of a JSON_MIN export."""
    return isinstance(item, dict) and {"annotation_id", "annotator", "lead_time"} <= item.keys()


def full(item: Any) -> Task:
    """The annotation that is the ground truth, else the first; without those that were skipped."""
    done = [each for each in item.get("annotations") or [] if not each.get("was_cancelled")]
    true = [each for each in done if each.get("ground_truth")]
    results: dict[str, list[Any]] = {}
    for result in (true or done or [{}])[0].get("result", []):
        if "from_name" in result:  # relations have none
            results.setdefault(result["from_name"], []).append(result["value"])
    data = {"id": item.get("id"), **item["data"]}
    return Task(data, results if done else None, 1 if true else len(done))


def minimal(item: Any) -> Task:
    """Its keys are the task's fields, `id`, the controls, and those of the annotation, in this order."""
    names = [name for name in item if name not in _AFTER]
    after = names.index("id") + 1 if "id" in names else len(names)
    controls = [name for name in names if (name in names[after:] and name != "text") or _is_value(item[name])]
    data = {name: item[name] for name in names if name not in controls}
    return Task(data, {name: _values(item[name]) for name in controls}, 1)


def _is_value(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(each, dict) and ("choices" in each or _marks(each)) for each in values)


def _values(value: Any) -> list[Any]:
    return [
        {"choices": [each]} if isinstance(each, str) else each
        for each in (value if isinstance(value, list) else [value])
    ]


def _marks(value: Any) -> bool:
    return isinstance(value, dict) and "start" in value and any(name.endswith("labels") for name in value)


def _chosen(values: Iterable[Any]) -> list[str]:
    """The choices for the whole text, not for one of its regions."""
    whole = (value for value in values if isinstance(value, dict) and "start" not in value)
    return list(chain.from_iterable(value.get("choices", []) for value in whole))


def find_fields(objects: Iterable[Any], task_of: Callable[[Any], Task], spec: DataSpec) -> Fields:
    """What the fields and controls of these tasks are."""
    tasks = list[Task]()
    for item in objects:
        with suppress(*MALFORMED):  # reported when its row is read
            tasks.append(task_of(item))
    results = [(name, values) for task in tasks for name, values in (task.results or {}).items()]
    spans = dict.fromkeys(name for name, values in results if any(map(_marks, values)))
    choices = dict.fromkeys(name for name, values in results if _chosen(values))
    return Fields(_texts(tasks, spec), list(spans), list(choices), mapped_columns(spec))


def _texts(tasks: Sequence[Task], spec: DataSpec) -> list[str]:
    """The fields that could be the text: one, if the recipe says which or it is called `text`."""
    names = [name for name in (tasks[0].data if tasks else ()) if name not in (*TARGETS, "id")]
    fields = [name for name in names if all(isinstance(task.data.get(name), str) for task in tasks)]
    named = [name for name in (spec.columns.get("text"), "text") if name in fields]
    return named[:1] or fields


def task_row(task_of: Callable[[Any], Task], fields: Fields, item: Any) -> Row:
    """The row of a task. Raises ValueError on regions that are not of plain text."""
    task = task_of(item)
    texts, spans, choices, mapped = fields
    text = task.data[texts[0]] if len(texts) == 1 else None
    row: Row = {name: value for name, value in task.data.items() if name not in TARGETS}
    row |= {} if text is None else {"text": text}
    if task.results is None:
        return row | {"annotated": False}
    own: Row = {}  # controls by their names, in case the recipe maps one of them
    for name in spans:
        marked = [value for value in task.results.get(name, []) if _marks(value)]
        own[name] = marked if text is None else [_region(text, value) for value in marked]
    for name in choices:
        chosen = _chosen(task.results.get(name, []))
        own[name] = chosen[0] if len(chosen) == 1 else chosen or None
    if len(spans) == 1:
        row["spans"] = own[spans[0]]
    if len(choices) == 1:
        row |= label_columns(_chosen(task.results.get(choices[0], [])))
    row |= {name: value for name, value in own.items() if name not in TARGETS or name in mapped}
    return row | ({"annotations": task.annotations} if task.annotations > 1 else {})


def _region(text: str, value: Any) -> Row:
    """A region as a span: code points, where older versions of Label Studio count UTF-16 code units."""
    start, end, marked = value["start"], value["end"], value.get("text")
    names = next(name for name in value if name.endswith("labels"))
    if names != "labels" or type(start) is not int or type(end) is not int:
        raise ValueError(f"a region has `{names}` from {short_repr(start)}; only regions of plain text can be read")
    units = text[:end].encode("utf-16-le", "surrogatepass")[: 2 * end]
    moved = tuple(len(units[: 2 * place].decode("utf-16-le", "ignore")) for place in (start, end))
    candidates = [(start, end)] if moved == (start, end) else [(start, end), moved]
    if marked is not None:
        wanted = _BLANKS.sub("", marked)
        candidates = [each for each in candidates if _BLANKS.sub("", text[each[0] : each[1]]) == wanted]
    if not candidates:
        there = short_repr(text[start:end])
        raise ValueError(f"the region {short_repr(marked)} is from {start} to {end}, where the text has {there}")
    if len(candidates) > 1 and marked is None:
        what = f"a region from {start} to {end} has no `text`, by which to tell how its characters are counted"
        raise ValueError(f"{what}: before it are characters that are two in JavaScript, such as emoji")
    return {"start": candidates[0][0], "end": candidates[0][1], "label": value["labels"]}
