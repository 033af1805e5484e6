"""The server's log as JSON: one object a line, without texts, keys and messages of exceptions."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from bertkit.serve.batcher import traceback_without_message

REQUESTS = logging.getLogger("bertkit-requests")  # not below `bertkit`: silent unless the log is JSON


class JsonFormatter(logging.Formatter):
    """`time`, `level` and `message` of a record; `traceback` of an exception; the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1]:
            line["traceback"] = traceback_without_message(record.exc_info[1])
        return json.dumps(line | vars(record).get("request", {}))


def log_as_json() -> None:
    """Log all messages of this process as JSON to stderr, with warnings, and a line for each request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().handlers = [handler]
    logging.getLogger("bertkit").handlers = []
    logging.captureWarnings(True)
    REQUESTS.setLevel(logging.INFO)
