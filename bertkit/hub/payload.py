"""The files of a push: RUN/model, after checks that they are complete, safe and without private data."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, Problem, UserError
from bertkit.files import read_json
from bertkit.report.card import LEADERBOARD, write_card
from bertkit.report.facts import local_paths
from bertkit.run import Run

logger = logging.getLogger(__name__)

CARD = "README.md"
# what a model folder has: paths in it; and `extra_weights` of its config.json
PUSHED = f"""
    {CARD} {LEADERBOARD} config.json generation_config.json model.safetensors
    model.safetensors.index.json model-?????-of-?????.safetensors tokenizer.json tokenizer_config.json
    special_tokens_map.json added_tokens.json vocab.txt vocab.json merges.txt spiece.model
    sentencepiece.bpe.model modules.json sentence_bert_config.json config_sentence_transformers.json
    [0-9]_*/config.json [0-9]_*/model.safetensors
""".split()
# what loaders of such a folder also read: of CRFs, peft, sentencepiece and sentence-transformers
READ = [
    *PUSHED,
    *"crf.safetensors adapter_config.json adapter_model.safetensors tokenizer.model".split(),
    "sentence_*_config.json",
]
MIN_PATH_LENGTH = 6  # a shorter path may occur in a text by chance
TOKEN = re.compile("(hf_|api_org_)[A-Za-z0-9]{30,}")
ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|/)")  # of JSON; more backslashes in JSON that is a text of JSON


def payload(run: Run, repo_id: str) -> dict[str, Path]:
    """The files that a push of this run uploads, by their paths in the repository; its card is generated
    again.

    Files that no model folder has are left out, and named in the log. Raises ModelError with all problems: no
    results, links and damaged files, a card that cannot be made or is invalid, local paths or a token in a
    file, a folder that does not load.
    """
    run.require_finished()
    problems = _problems(lambda: write_card(run, repo_id))
    present = {
        file.relative_to(run.model).as_posix(): file
        for file in sorted(run.model.rglob("*"))
        if not file.is_dir()
    }
    try:  # the weights beside model.safetensors
        extra = set(read_json(run.model / "config.json")["bertkit"]["extra_weights"].values())
    except (OSError, UserError, KeyError, TypeError, AttributeError):
        extra = set()  # `load` reports what is wrong with it
    files = {path: file for path, file in present.items() if path in extra or fits(path, PUSHED)}
    if left := present.keys() - files.keys():
        logger.warning("not uploaded, as no model folder has them: %s", ", ".join(sorted(left)))
    problems += [problem for file in files.values() for problem in _unsafe(file)]
    if not problems:
        from bertkit.inference.predictor import load

        problems = [*_private(run, files), *_problems(lambda: load(run.model))]
    if problems:
        raise ModelError(dict.fromkeys(problems))  # a damaged file stops the card too
    return files


def fits(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns fits the path: `*` and `?` stand for what is within one folder."""
    return any(path.count("/") == pattern.count("/") and fnmatchcase(path, pattern) for pattern in patterns)


def _problems(call: Callable[[], Any]) -> list[Problem]:
    """The problems of the UserError that a call raises."""
    try:
        call()
    except UserError as error:
        return list(error.problems)
    return []


def _unsafe(file: Path) -> Iterator[Problem]:
    # of a hard link, the other name is unknown
    if file.is_symlink() or not file.is_file() or file.stat().st_nlink > 1:
        yield Problem(
            str(file), "is a link, or not a regular file", "Replace it with a copy of the file, or remove it."
        )
    elif file.suffix == ".json":
        yield from _problems(lambda: read_json(file))


def _private(run: Run, files: dict[str, Path]) -> Iterator[Problem]:
    """Problems of files with a local path or a token."""
    from huggingface_hub import get_token

    folders = {str(run.folder.resolve()), f"{Path.home()}/", *local_paths(run.recipe)}
    token = get_token()
    for path, file in files.items():
        # all that the file states, or the header of safetensors; as it is, then without JSON's escapes
        with file.open("rb") as raw:
            size = int.from_bytes(raw.read(8), "little") if file.suffix == ".safetensors" else -1
            text = raw.read(size).decode(errors="replace")
        text += ESCAPE.sub(lambda escape: chr(int(escape[1], 16)) if escape[1] else "/", text)
        for folder in sorted(
            folder for folder in folders if len(folder) >= MIN_PATH_LENGTH and folder in text
        ):
            yield Problem(str(file), f"names a folder of this machine: {folder}", f"Remove it from {path}.")
        if (token and token in text) or TOKEN.search(text):
            yield Problem(
                str(file), "contains a token of the Hub", f"Remove it from {path}, and revoke the token."
            )
