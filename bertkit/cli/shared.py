"""Arguments and set-up that several commands share."""

from __future__ import annotations

import os
from typing import Any

MODEL = "a run folder, a model folder or a Hub id"


def quiet_libraries() -> None:
    """Bars and notices of the libraries below; ours say what matters."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it advises torch as soon as it is imported
    import datasets
    import transformers

    datasets.disable_progress_bars()
    messages: Any = transformers.logging
    messages.set_verbosity_error()
    messages.disable_progress_bar()
