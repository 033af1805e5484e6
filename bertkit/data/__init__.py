"""Data: from the `data:` section of a recipe to checked rows in canonical columns."""

from bertkit.data.checks import check, log_findings
from bertkit.data.columns import label_names
from bertkit.data.loading import load
from bertkit.data.on_disk import fingerprint
from bertkit.data.reader import OpenFile, Reader
from bertkit.data.readers import read_rows, read_stream
from bertkit.data.table import Data

__all__ = [
    "Data", "OpenFile", "Reader", "check", "fingerprint", "label_names", "load", "log_findings", "read_rows",
    "read_stream",
]  # fmt: skip
