"""A model of the Hub in the local cache, at one commit; errors of huggingface_hub in one line, without
tokens.
"""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import errors, get_token, snapshot_download

from bertkit.errors import ModelError
from bertkit.files import MODEL_FILES

# What huggingface_hub raises: the base classes of its own error are those of its HTTP client and OSError.
FAILURES: tuple[type[BaseException], ...] = (*errors.HfHubHTTPError.__bases__, RuntimeError, ValueError)
LOGIN = "Log in with `hf auth login`, or set HF_TOKEN."


def snapshot(name: str, revision: str | None) -> Path:
    """The cache's folder of a Hub model at exactly one commit; its name is the commit.

    revision: a commit, tag or branch; by default the main branch. Where the Hub cannot be reached, the cache
    is used. Raises ModelError.
    """
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=MODEL_FILES))
    except errors.HFValidationError as error:
        raise ModelError(
            "model.name",
            f"{name!r} is neither a folder nor a Hub id",
            "Use a folder with config.json, or a Hub id: owner/model.",
        ) from error
    except errors.RevisionNotFoundError:
        raise ModelError(
            "model.revision",
            f"{name!r} has no revision {revision!r}",
            "Use a commit, tag or branch of that model.",
        ) from None
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise hub_error(error, "model.name", name) from None
        raise ModelError(
            "model.name",
            f"{name!r} is not in the local Hub cache, and the Hub cannot be reached",
            "Use a local folder, or download the model once while online.",
        ) from None
    except FAILURES as error:
        raise hub_error(error, "model.name", name) from None


def hub_error(error: BaseException, where: str, name: str, after: str = "") -> ModelError:
    """What happened to the model `name`, to be raised `from None`: the library's error repeats the server's
    text.

    after: the state of the Hub, or what to type now.
    """
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    fix = ""
    if not isinstance(error, errors.HfHubHTTPError):
        what = f"{name!r}: {redacted(str(error)) or type(error).__name__}"
        fix = "Try again."
    elif (status := error.response.status_code) == 401 and get_token():
        what = f"the Hub does not accept your token for {name!r} (401)"
        fix = LOGIN
    elif isinstance(error, errors.RepositoryNotFoundError) and not isinstance(error, errors.GatedRepoError):
        what = f"the Hub has no model {name!r} (or it is private)"
        fix = f"Check the spelling. {LOGIN}"
    else:
        what = f"the Hub refuses {name!r} ({status}): {redacted(error.server_message or str(error))}"
    return ModelError(where, what, " ".join(filter(None, (fix, after))))


def redacted(text: str) -> str:
    """The beginning of a text from outside, in one line, without tokens."""
    token = get_token()
    text = text.replace(token, "[token]") if token else text
    return " ".join(re.sub(r"\bhf_\w+|\bBearer\s+\S+", "[token]", text).split())[:200]
