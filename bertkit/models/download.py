"""A model of the Hub in the local cache: at one commit, each file with the hash that the Hub states.

huggingface_hub's `verify_repo_checksums` asks the Hub for hashes and expects all of its files; here only some are
fetched, and the cache must be verified offline too: the name of a file's blob is its hash.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import errors, snapshot_download
from huggingface_hub.utils.sha import git_hash

from bertkit.errors import ModelError, Problem
from bertkit.files import sha256
from bertkit.models.hub_errors import FAILURES, persistently, refuse


def snapshot(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """The cache's folder of a Hub model at exactly one commit; its name is the commit.

    revision: a commit, tag or branch; by default the main branch. patterns: of the files that are fetched.
    A file whose hash differs is fetched once more. Where the Hub cannot be reached, the cache is used. Raises
    ModelError.
    """
    folder = _fetched(name, revision, patterns)
    if _remove_damaged(folder):
        folder = _fetched(name, folder.name, patterns)
        if damaged := _remove_damaged(folder):
            what = f"{name!r} arrived damaged, twice: {', '.join(damaged)} (the hash differs)"
            fix = "Nothing was stored. Try again later, or from another network."
            raise ModelError(Problem("model.name", what, fix))
    return folder


def _fetched(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    wanted = list(patterns)
    try:
        return Path(persistently(lambda: snapshot_download(name, revision=revision, allow_patterns=wanted)))
    except errors.HFValidationError as error:
        what, fix = f"{name!r} is neither a folder nor a Hub id", "Write a folder with config.json, or owner/model."
        raise ModelError(Problem("model.name", what, fix)) from error
    except errors.RevisionNotFoundError:
        what, fix = f"{name!r} has no revision {revision!r}", "Name a commit, tag or branch of that model."
        raise ModelError(Problem("model.revision", what, fix)) from None
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            refuse(error.__cause__, "model.name", name)
        what = f"{name!r} is not in the local cache, and the Hub cannot be reached"
        fix = "Name a local folder, or fetch it once while online."
        raise ModelError(Problem("model.name", what, fix)) from None
    except FAILURES as error:
        refuse(error, "model.name", name)


def _remove_damaged(folder: Path) -> list[str]:
    """Remove, and name, the files of a snapshot whose hash is not the Hub's: the name of the blob in the cache."""
    damaged = []
    for link in sorted(folder.rglob("*")):
        if link.is_symlink():  # where the system has no links, there is no hash to compare with
            stated = Path(os.readlink(link)).name
            if len(stated) in (40, 64) and stated != content_hash(link, large=len(stated) == 64):
                damaged.append(link)
    for link in damaged:
        link.resolve().unlink(missing_ok=True)  # files with the same content share a blob
        link.unlink()
    return [str(link.relative_to(folder)) for link in damaged]


def content_hash(file: Path, *, large: bool) -> str:
    """The Hub's hash of a file, in hexadecimal: sha256 for files that it stores as large, else git's sha1 of a blob."""
    return sha256(file) if large else git_hash(file.read_bytes())
