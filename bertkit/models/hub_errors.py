"""Errors of the Hub: which requests are repeated, and the sentence that people read.

huggingface_hub repeats single requests with `http_backoff`, but not the metadata requests of `snapshot_download`, nor
a call of several requests; and its waits do not follow a long Retry-After. So whole calls are repeated here.
"""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from httpx2 import ConnectError, HTTPError, NetworkError, RemoteProtocolError, TimeoutException
from huggingface_hub import constants, errors, get_token

from bertkit.errors import ModelError, Problem

T = TypeVar("T")

FAILURES = (HTTPError, OSError, RuntimeError, ValueError)  # what huggingface_hub raises
WAITS = (1.0, 4.0)  # seconds before the second and the third try
PATIENCE = 60.0  # seconds; the longest Retry-After that is followed
BROKEN = (NetworkError, RemoteProtocolError, TimeoutException, json.JSONDecodeError)  # an answer that did not arrive
TEMPORARY = (408, 409, 429, 500, 502, 503, 504)
LOGIN = "Log in with `hf auth login`, or set HF_TOKEN."
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OFFLINE = "Unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE."
NO_ANSWER = (  # among the causes of an error, what it means, and what to do; the first that applies
    (errors.OfflineModeIsEnabled, "{name!r} cannot be reached: offline mode is on", OFFLINE),
    (errors.HFValidationError, "{name!r} is not a Hub id", "Write owner/model."),
    (ConnectError, "{name!r}: {endpoint} cannot be reached", "Try again when there is a network."),
    (HTTPError, "{name!r}: the connection to the Hub broke repeatedly", "Try again."),
)


def persistently(call: Callable[[], T]) -> T:
    """The result of the call, which is tried three times where the failure is temporary."""
    for seconds in WAITS:
        try:
            return call()
        except FAILURES as error:
            wait(error, seconds)
    return call()


def wait(error: Exception, seconds: float) -> None:
    """Wait before another try, as long as the Hub requests. Raises the error where another try would not help."""
    response = _answer(error)
    delay = response.response.headers.get("Retry-After", "") if response else ""
    seconds = max(seconds, float(delay) if delay.isdigit() else 0.0)
    if not _is_temporary(error) or seconds > PATIENCE:
        raise error
    time.sleep(seconds)


def _is_temporary(error: Exception) -> bool:
    if response := _answer(error):
        return response.response.status_code in TEMPORARY
    causes = list(_chain(error))
    if any(isinstance(cause, ConnectError) for cause in causes):
        return False  # there is no network: the cache answers at once
    return any(isinstance(cause, BROKEN) for cause in causes)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _answer(error: BaseException) -> errors.HfHubHTTPError | None:
    """The Hub's response, among the causes of the error."""
    return next((cause for cause in _chain(error) if isinstance(cause, errors.HfHubHTTPError)), None)


def refused(error: BaseException) -> bool:
    """Whether the Hub answered and refused; without an answer, the request may have been carried out."""
    return _answer(error) is not None


def redacted(text: str) -> str:
    """The first line of a text from outside, without tokens."""
    token = get_token()
    text = text.replace(token, "[token]") if token else text
    lines = re.sub(r"\bhf_\w+|\bBearer\s+\S+", "[token]", text).strip().splitlines()
    return lines[0][:200] if lines else ""


def refuse(error: Exception, where: str, name: str, after: str = "") -> NoReturn:
    """Raise ModelError that says in a sentence what happened to the model `name`.

    after: the state of the Hub, or what to type now. The library's error is not chained: it repeats the server's text.
    """
    what, fix = _explained(error, name)
    raise ModelError(Problem(where, what, " ".join(filter(None, (fix, after))))) from None


def _explained(error: Exception, name: str) -> tuple[str, str]:
    if response := _answer(error):
        return _refusal(response, name)
    causes = list(_chain(error))
    for kind, what, fix in NO_ANSWER:
        if any(isinstance(cause, kind) for cause in causes):
            return what.format(name=name, endpoint=constants.ENDPOINT), fix
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in FULL:
            what = f"{name!r} does not fit on the disk: {cause.strerror}"
            return what, "Free some space; HF_HOME sets the folder of the cache."
    return f"{name!r}: {redacted(str(causes[-1]))}", ""


def _refusal(error: errors.HfHubHTTPError, name: str) -> tuple[str, str]:
    """The meaning of the Hub's status code, and what to do about it."""
    status, headers = error.response.status_code, error.response.headers
    if isinstance(error, errors.GatedRepoError):
        return f"{name!r} requires its terms to be accepted", f"Accept them on the Hub's page of {name}, and log in."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name!r} has no such revision", "Name a commit, tag or branch of that model."
    if status == 401 and get_token():
        return f"the Hub does not accept your token for {name!r} (401)", LOGIN
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return f"the Hub has no model {name!r} (or it is private)", f"Check the spelling. {LOGIN}"
    if status == 403:
        what = f"your token may not do this with {name!r} (403)"
        return what, "Log in as a user with this permission, with a token that has it: hf auth login."
    if status in (409, 412):
        return f"another client is changing {name!r} at the same time ({status})", "Try again."
    if status == 429:
        return "too many requests to the Hub (429)", f"Try again in {headers.get('Retry-After') or 'some'} seconds."
    if status >= 500:
        return f"the Hub is failing: it answered {status} repeatedly for {name!r}", "Try again later."
    message = redacted(error.server_message or "")
    return f"the Hub refuses {name!r} ({status}){f': {message}' if message else ''}", ""
