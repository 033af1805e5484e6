"""The files of a push: RUN/model, after checks that they are complete, safe and without private data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import ModelError, Problem, UserError
from bertkit.files import read_json, sha256
from bertkit.models.untrusted import shapes_of
from bertkit.report.card import write_card
from bertkit.report.facts import local_paths
from bertkit.run import Run
from bertkit.text import first_line

# safetensors, JSON, the card, and the vocabularies of tokenizers
PUSHED = ("*.safetensors", "*.json", "README.md", "vocab.txt", "merges.txt", "*.model")
CARD, REPORT = "README.md", "report.html"
MIN_PATH_LENGTH = 6  # a shorter path may occur in a text by chance
TOKEN = re.compile("(hf_|api_org_)[A-Za-z0-9]{30,}")


class Item(NamedTuple):
    """A file: its path in the repository, its local path, its size in bytes and its sha256."""

    path: str
    file: Path
    size: int
    sha256: str


def payload(run: Run, repo_id: str, *, predictions: bool = False, report: bool = False) -> list[Item]:
    """The files that a push of this run uploads, by path; the card is generated again for this repository.

    predictions: include RUN/predictions, which repeat rows of the data. report: include RUN/report.html.
    Raises ModelError with all problems: no results, files that are neither safetensors, JSON nor a tokenizer's, a card
    that cannot be made or is invalid, local paths or a token in a file, a folder that does not load.
    """
    if not run.finished:
        what, fix = "is not a finished run: it has no results.json", "Name the folder that `bertkit train` wrote."
        if (run.folder / "recipe.yaml").is_file():
            fix = f"Finish it: bertkit train {run.folder}/recipe.yaml --output-dir {run.folder} --resume"
        raise ModelError(Problem(str(run.folder), what, fix))
    problems = _problems(lambda: write_card(run, repo_id))
    files = {str(file.relative_to(run.model)): file for file in sorted(run.model.rglob("*")) if not file.is_dir()}
    problems += [problem for path, file in files.items() for problem in _unsafe(path, file)]
    files |= {REPORT: run.folder / REPORT} if report else {}
    if report and not (run.folder / REPORT).is_file():
        problems.append(Problem(str(run.folder / REPORT), "is missing", f"Make it: bertkit report {run.folder}"))
    if not problems:
        from bertkit.inference.predictor import load

        problems = [*_card(run.model / CARD), *_private(run, files), *_problems(lambda: load(run.model))]
    if problems:
        raise ModelError(dict.fromkeys(problems))  # a damaged file stops the card too
    if predictions:
        files |= {f"predictions/{file.name}": file for file in sorted((run.folder / "predictions").glob("*.jsonl"))}
    return hashed(files.items())


def hashed(files: Iterable[tuple[str, Path]]) -> list[Item]:
    """Files, by their paths in the repository, with their current sizes and hashes."""
    return [Item(path, file, file.stat().st_size, sha256(file)) for path, file in files]


def _problems(call: Callable[[], Any]) -> list[Problem]:
    """The problems of the UserError that a call raises."""
    try:
        call()
    except UserError as error:
        return list(error.problems)
    return []


def _unsafe(path: str, file: Path) -> Iterator[Problem]:
    if file.is_symlink() or not file.is_file():
        yield Problem(str(file), "is a link, or not a regular file", "Replace it by the file itself, or remove it.")
    elif not any(fnmatch(file.name, pattern) for pattern in PUSHED) or file.name.startswith("."):
        what = "is neither safetensors, JSON nor a tokenizer's file"
        yield Problem(str(file), what, f"Remove {path} from the model.")
    elif file.suffix == ".json":
        yield from _problems(lambda: read_json(file))
    elif file.suffix == ".safetensors":
        yield from _problems(lambda: shapes_of(file))


def _card(file: Path) -> Iterator[Problem]:
    """Problems that huggingface_hub, offline, and the Hub's page have with the card."""
    from huggingface_hub import ModelCardData
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    front = re.match(r"---\n(.*?\n)---\n", file.read_text(encoding="utf-8"), re.DOTALL)
    try:
        stated: Any = ModelCardData(**YAML(typ="safe", pure=True).load(front[1] if front else "{}"))
        data = stated.to_dict()
    except (ValueError, TypeError, YAMLError) as error:
        yield Problem(str(file), f"the card's metadata are not valid: {first_line(error)}")
        return
    for key in ("library_name", "pipeline_tag"):
        if not isinstance(data.get(key), str):
            yield Problem(str(file), f"the card's metadata have no {key}")


def _private(run: Run, files: dict[str, Path]) -> Iterator[Problem]:
    """Problems of files with a local path or a token."""
    from huggingface_hub import get_token

    folders = {str(run.folder.resolve()), f"{Path.home()}/", *local_paths(run.recipe)}
    token = get_token()
    for path, file in files.items():
        text = _text(file)
        for folder in sorted(folder for folder in folders if len(folder) >= MIN_PATH_LENGTH and folder in text):
            yield Problem(str(file), f"names a folder of this machine: {folder}", f"Remove it from {path}.")
        if (token and token in text) or TOKEN.search(text):
            yield Problem(str(file), "contains a token of the Hub", f"Remove it from {path}, and revoke the token.")


def _text(file: Path) -> str:
    """What a file states, as text: all of it, or the header of safetensors; JSON as it is, then without escapes."""
    weights = file.suffix == ".safetensors"
    with file.open("rb") as raw:
        text = raw.read(int.from_bytes(raw.read(8), "little") if weights else -1).decode(errors="replace")
    if not weights and file.suffix != ".json":
        return text
    return text + json.dumps(json.loads(text, object_pairs_hook=list), ensure_ascii=False)  # with repeated keys
