"""Label Studio's JSON export as rows: the text, `spans` from regions, and `label` or `labels` from
choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from bertkit.data.offsets import ONE_LINE_END, UTF_16, moved
from bertkit.data.problems import Problems
from bertkit.data.schema import mapped_columns, note, warn
from bertkit.data.table import NumberedRows, Row
from bertkit.sections import DataSpec
from bertkit.text import counted, short_repr, unique

_TITLE = "Label Studio's JSON export"
_EXPORT = "Export it again, as JSON."
_MALFORMED = TypeError, LookupError, AttributeError  # what reading a malformed task raises
_TARGETS = ("spans", "label", "labels", "tags", "tokens")  # names that fields of a task must not take
_BLANKS = re.compile(r"\\n|\s")  # a line break in a region's text is written as a backslash and n


class _Task(NamedTuple):
    number: int
    fields: Row
    results: dict[str, list[Any]] | None  # control tag -> its values; None: nobody annotated the task


def is_export(rows: Any) -> bool:
    """Whether these are the tasks of an export, by the first of them."""
    first = rows[0] if rows else None
    return isinstance(first, dict) and isinstance(first.get("data"), dict) and "annotations" in first


def task_rows(tasks: Sequence[Any], where: str, spec: DataSpec, problems: Problems) -> NumberedRows:
    """The tasks as (number from 1, row), all with the same columns; targets of a task that nobody annotated
    are None.

    Columns are the fields of the tasks, and their controls by name. `text` is the field of this name, or the
    only one that holds texts; `spans` are those of the only control of regions; `label` that of the only
    control of choices, or `labels`, where a task has several. Of several annotations the ground truth is
    read, else the first.
    where: goes before the number of a task in messages. problems: gets what was read, and tasks that are
    malformed.
    """
    read = list[_Task]()
    disputed = 0
    for number, task in enumerate(tasks, 1):
        try:
            annotations = task["annotations"] or []
            done = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
            true = [annotation for annotation in done if annotation.get("ground_truth")]
            results = dict[str, list[Any]]()
            for result in (true or done or [{}])[0].get("result") or ():
                if "from_name" in result:  # relations have none
                    results.setdefault(result["from_name"], []).append(result["value"])
            read.append(_Task(number, {"id": task.get("id"), **task["data"]}, results if done else None))
            disputed += len(done) > 1 and not true
        except _MALFORMED as error:
            problems.add(f"{where}{number}", f"not as {_TITLE} has it: {error!r}", _EXPORT)
    problems.findings.append(note(f"{problems.name}: read as {_TITLE}: {counted(len(tasks), 'task')}"))
    if disputed:
        what = f"{counted(disputed, 'task')} with several annotations, none of them the ground truth"
        fix = "If it is not the right one, mark the ground truth, and export again."
        problems.findings.append(warn(f"{problems.name}: {what}; the first of each was read", fix))
    fields = dict.fromkeys(name for task in read for name in task.fields if name not in _TARGETS)
    others = {name for task in read for name in fields if not isinstance(task.fields.get(name), str)}
    texts = [name for name in fields if name != "id" and name not in others]
    texts = [name for name in (spec.columns.get("text"), "text") if name in texts][:1] or texts
    results_by_name = list(chain.from_iterable((task.results or {}).items() for task in read))
    regions = unique(name for name, results in results_by_name if any(map(_marks, results)))
    choices = unique(name for name, results in results_by_name if _chosen(results))
    several = {name for name, results in results_by_name if len(_chosen(results)) > 1}
    mapped = mapped_columns(spec)
    for number, values, annotated in read:
        row: Row = {name: values.get(name) for name in fields}
        text = values[texts[0]] if len(texts) == 1 else None
        row |= {} if text is None else {"text": text}
        controls: Row = dict.fromkeys([*regions, *choices])
        try:
            if annotated is not None:
                for name in regions:
                    marked = filter(_marks, annotated.get(name, ()))
                    controls[name] = [value if text is None else _region(text, value) for value in marked]
                for name in choices:
                    chosen = _chosen(annotated.get(name, ()))
                    controls[name] = chosen if name in several else next(iter(chosen), None)
        except (ValueError, *_MALFORMED) as error:
            what = str(error) if isinstance(error, ValueError) else f"not as {_TITLE} has it: {error!r}"
            problems.add(f"{where}{number}", what, _EXPORT)
        targets = {"spans": regions, "labels" if several.intersection(choices) else "label": choices}
        row |= {target: controls[names[0]] for target, names in targets.items() if len(names) == 1}
        yield number, row | {n: value for n, value in controls.items() if n not in _TARGETS or n in mapped}


def _marks(value: Any) -> bool:
    return isinstance(value, dict) and "start" in value and any(name.endswith("labels") for name in value)


def _chosen(values: Iterable[Any]) -> list[str]:
    """The choices for the whole text, not for one of its regions."""
    whole = (value for value in values if isinstance(value, dict) and "start" not in value)
    return list(chain.from_iterable(value.get("choices") or () for value in whole))


def _region(text: str, value: Any) -> Row:
    """A region as a span: code points, where older versions of Label Studio count UTF-16 code units."""
    start = value["start"]
    end = value["end"]
    marked = value.get("text")
    names = next(name for name in value if name.endswith("labels"))
    if names != "labels" or type(start) is not int or type(end) is not int:
        raise ValueError(
            f"a region has `{names}` from {short_repr(start)}; only regions of plain text can be read"
        )
    units = (UTF_16, ONE_LINE_END) if "\r\n" in text else (UTF_16,)
    moves = [moved(text, [{"start": start, "end": end}], unit) for unit in units]
    candidates = unique([(start, end), *((span["start"], span["end"]) for (span,) in filter(None, moves))])
    if marked is not None:
        wanted = _BLANKS.sub("", marked)
        candidates = [place for place in candidates if _BLANKS.sub("", text[place[0] : place[1]]) == wanted]
    if not candidates:
        raise ValueError(
            f"the region {short_repr(marked)} is from {start} to {end}, where the text has "
            f"{short_repr(text[start:end])}"
        )
    if len(candidates) > 1 and marked is None:
        what = (
            f"a region from {start} to {end} has no `text`, by which to tell how its characters are counted"
        )
        raise ValueError(f"{what}: before it are emoji or line ends, which tools count as one or as two")
    return {"start": candidates[0][0], "end": candidates[0][1], "label": value["labels"]}
