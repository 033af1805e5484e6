"""A model of the Hub in the local cache, at one commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import errors, snapshot_download

from bertkit.errors import ModelError, Problem
from bertkit.models.hub_errors import FAILURES, hub_error


def snapshot(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """The cache's folder of a Hub model at exactly one commit; its name is the commit.

    revision: a commit, tag or branch; by default the main branch. patterns: of the files that are fetched. Where the
    Hub cannot be reached, the cache is used. Raises ModelError.
    """
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except errors.HFValidationError as error:
        what, fix = f"{name!r} is neither a folder nor a Hub id", "Write a folder with config.json, or owner/model."
        raise ModelError(Problem("model.name", what, fix)) from error
    except errors.RevisionNotFoundError:
        what, fix = f"{name!r} has no revision {revision!r}", "Name a commit, tag or branch of that model."
        raise ModelError(Problem("model.revision", what, fix)) from None
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise hub_error(error, "model.name", name) from None
        what = f"{name!r} is not in the local cache, and the Hub cannot be reached"
        fix = "Name a local folder, or fetch it once while online."
        raise ModelError(Problem("model.name", what, fix)) from None
    except FAILURES as error:
        raise hub_error(error, "model.name", name) from None
