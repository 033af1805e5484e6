"""Validation by pydantic with its errors as sentences, and "did you mean"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bertkit.text import KeyPath, dotted, short_repr

MAX_LISTED = 12  # choices in a sentence


class KeyProblem(NamedTuple):
    """Something wrong with the value at a key path."""

    path: KeyPath
    what: str
    fix: str = ""


MEANT = {  # what people write -> the name that bertkit has for it
    alias: name
    for name, aliases in {
        "text-classification": "classification classify classifier sentiment sentiment-analysis "
        "regression multi-label multilabel",
        "token-classification": "ner named-entity-recognition pos tagging tagger chunking slot-filling",
        "question-answering": "qa extractive-qa squad",
        "sentence-similarity": "embedding embeddings sentence-embeddings sts similarity feature-extraction",
        "text-ranking": "rerank reranker reranking cross-encoder ranking",
        "retrieval": "dpr bi-encoder dense-retrieval information-retrieval",
        "text2text-generation": "translation summarization seq2seq",
        "pretraining": "mlm masked-lm fill-mask language-modeling",
    }.items()
    for alias in aliases.split()
}


def nearest(name: str, choices: Iterable[str]) -> str:
    """What a name means, or the most similar choice, upper and lower case alike; "" where none is close."""
    by_lower = {choice.lower().strip(): choice for choice in choices}
    if meant := by_lower.get(MEANT.get(name.lower(), "")):
        return meant
    close = get_close_matches(name.lower(), by_lower, n=1) if len(name) <= 80 else []
    return by_lower[close[0]] if close else ""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no name is close."""
    near = nearest(name, choices)
    return f"; did you mean {near!r}?" if near else ""


def unknown_key(path: KeyPath, keys: Iterable[str], homes: Mapping[str, str] = {}) -> KeyProblem:
    """A key that its section does not have.

    homes: key, or a dotted path -> its section, a dotted path where it has another name, or a sentence that
    says what to do instead.
    """
    names = sorted(keys)
    key = str(path[-1])
    if home := homes.get(dotted(path)) or homes.get(key):
        fix = f"Use `{home}`." if "." in home else f"Move it to `{home}:`."
        return KeyProblem(path, "unknown key", home if " " in home else fix)
    near = did_you_mean(key, names)
    fix = f"Known here: {', '.join(names)}." if not near and len(names) <= 25 else ""
    return KeyProblem(path, f"unknown key{near}", fix)


def spelling_hint(value: Any, expected: Iterable[str]) -> str:
    """What to write if text looks like a number or a yes, or a number should be text."""
    expected = set(expected)
    if isinstance(value, str) and expected & {"a number", "a whole number"}:
        bare = value.strip().replace("_", "")
        with suppress(ValueError):
            if math.isfinite(float(bare)):
                return f"Write {bare} without quotes." if bare == value else f"Write {bare}."
        return ""
    if isinstance(value, str) and "true or false" in expected and value.lower() in _YES_OR_NO:
        return f"Write {_YES_OR_NO[value.lower()]}: in YAML 1.2 this word is text."
    if isinstance(value, bool | int | float) and "text" in expected:
        return f'Put quotes around it: "{str(value).lower()}".'
    return ""


def describe(value: Any) -> str:
    """A value in words, such as `the number 5`."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return f"text {short_repr(value)}"
        case int() | float():
            return f"the number {short_repr(value)}"
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return f"an object of type {type(value).__name__}"


_YES_OR_NO = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",  # as pydantic reports it for a union
    "none_required": "null",
}
# key -> what to write in place of a single value
_WRITTEN = {
    "task": "Write task: {{name: {}}}.",
    "model": "Write model: {{name: {}}}.",
    "data": "Write data: {{source: {}}}.",
    "seeds": "Write seeds: [{}] for one seed, or seeds: [1, 2, 3] for three.",
    "early_stopping": "Write early_stopping: {{patience: 3}}.",
    "peft": "Write peft: {{r: 8}}.",
    "freeze": "Write freeze: {{layers: 6}}, or freeze: {{embeddings: true}}.",
    "batching": "Write batching: {{tokens: 4096}}.",
    "distillation": "Write distillation: {{teacher: RUN}}.",
    "hub": "Write hub: {{repo_id: OWNER/MODEL}}.",
    "tasks": "Write tasks: {{NAME: {{task: …, data: …}}}}.",
    "data.columns": "Write columns: {{text: NAME, label: NAME}}.",
    "task.class_weights": "Write auto, which is scikit-learn's `balanced`.",
}
_BOUNDS = {
    "greater_than": "must be more than {gt:.12g}",
    "greater_than_equal": "must be at least {ge:.12g}",
    "less_than": "must be less than {lt:.12g}",
    "less_than_equal": "must be at most {le:.12g}",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "must be at most {max_length} characters long",
    "finite_number": "must be finite",
    "string_pattern_mismatch": 'must be one character, not a quote; | is written as "|", in quotes',
}


def validate(
    model: type[BaseModel],
    data: Any,
    sections: Mapping[str, type[BaseModel]] = {},
    homes: Mapping[str, str] = {},
) -> list[KeyProblem]:
    """What is wrong with `data` as fields of `model`: pydantic's errors as sentences, one per key path.

    sections: key -> type of the section there, in place of the field's. homes: as for unknown_key.
    """
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    try:
        model.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            by_path.setdefault(_key_path(detail, data), []).append(detail)
    inner = {path[:n] for path in by_path for n in range(len(path))}
    problems = []
    for path, details in by_path.items():
        if path in inner:
            # of alternatives such as `text or a mapping`, errors inside the mapping are more specific than
            # `not text`
            continue
        kinds = {detail["type"] for detail in details}
        if "missing" in kinds:
            problems.append(KeyProblem(path, "missing", "Write it; it has no default."))
        elif "extra_forbidden" in kinds:
            section = model
            inside = path[:-1]
            if inside and inside[0] in sections:
                section = sections[str(inside[0])]
                inside = inside[1:]
            problems.append(unknown_key(path, fields_at(section, inside), homes))
        else:
            problems.append(_explain_value(path, details, reduce(getitem, path, data)))
    return problems


def fields_at(kind: Any, path: KeyPath) -> set[str]:
    """The fields of the sections that a type allows at this key path within it."""
    return {name for section in _sections_at(kind, path) for name in section.model_fields}


def _sections_at(kind: Any, path: KeyPath) -> Iterator[type[BaseModel]]:
    """The sections that a field's type allows at this key path within it; several where it has
    alternatives.
    """
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not path:
            yield kind
        elif field := kind.model_fields.get(str(path[0])):
            yield from _sections_at(field.annotation, path[1:])
    else:
        inside = path[1:] if get_origin(kind) in (dict, list) else path
        for part in get_args(kind):
            yield from _sections_at(part, inside)


def _explain_value(path: KeyPath, details: list[ErrorDetails], value: Any) -> KeyProblem:
    bounds = [_BOUNDS[d["type"]].format(**d.get("ctx", {})) for d in details if d["type"] in _BOUNDS]
    if bounds:
        return KeyProblem(path, f"{bounds[0]}, found {short_repr(value)}")
    literals = [d["ctx"]["expected"] for d in details if d["type"] == "literal_error"]
    choices = [name for literal in literals for name in re.findall(r"'([^']*)'", literal)]
    if any(d["loc"][-1] == "[key]" for d in details):
        return unknown_key(path, choices)
    expected = [_EXPECTED[d["type"]] for d in details if d["type"] in _EXPECTED]
    if not expected and not choices:
        return KeyProblem(path, details[0]["msg"].removeprefix("Value error, "))
    many = len(choices) > MAX_LISTED
    names = [*([f"one of {len(choices)} values"] if many else map(repr, choices)), *dict.fromkeys(expected)]
    listed = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    near = did_you_mean(value, choices) if isinstance(value, str) else ""
    fix = f"Known here: {', '.join(choices)}." if many else spelling_hint(value, expected)
    if isinstance(value, str | int | float) and (written := _WRITTEN.get(dotted(path))):
        fix = written.format(MEANT.get(str(value), value))
        if str(value).lower() in ("false", "no", "off", "none"):
            fix = "Remove it."
    return KeyProblem(path, f"expected {listed}, found {describe(value)}{near}", fix)


def _key_path(detail: ErrorDetails, data: Any) -> KeyPath:
    """pydantic's location without the names of the types it tried, which stand between the keys."""
    path: list[int | str] = []
    for key in detail["loc"]:
        with suppress(LookupError, TypeError):
            data = data[key]
            path.append(key)
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else tuple(path)
