"""Tables by task name: they have all tasks, except for those that are listed here, and no others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from bertkit.attachments.soft_targets import SOFT_TARGETS
from bertkit.audits.audit import LABELS
from bertkit.explain.targets import TARGETS
from bertkit.export.extra_outputs import EXTRA_OUTPUTS
from bertkit.report.mistakes import MISTAKES
from bertkit.report.task_pictures import DECISIONS, PICTURES
from bertkit.report.usage import USAGE
from bertkit.serve.answers import ANSWERS
from bertkit.serve.shapes import SHAPES
from bertkit.tasks import TASKS

VECTORS = ("sentence-similarity", "retrieval")
TABLES: dict[str, tuple[Mapping[str, Any], Collection[str]]] = {
    "audits/audit": (LABELS, ("retrieval", "text-ranking", "text2text-generation", "pretraining")),
    "explain/targets": (TARGETS, ()),
    "export/extra_outputs": (EXTRA_OUTPUTS, ("question-answering", *VECTORS, "text2text-generation", "pretraining")),
    "report/task_pictures, reliability": (
        DECISIONS,
        ("retrieval", "text-ranking", "text2text-generation", "pretraining"),
    ),
    "report/mistakes": (MISTAKES, ("pretraining",)),
    "report/task_pictures": (PICTURES, ("text2text-generation", "pretraining")),
    "report/usage": (USAGE, ()),
    "serve/answers": (ANSWERS, ()),
    "serve/shapes": (SHAPES["/"], ()),
    "attachments/soft_targets": (SOFT_TARGETS, ()),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_tasks(name: str) -> None:
    table, missing = TABLES[name]
    assert set(table).isdisjoint(missing)
    assert {*table, *missing} == {task.name for task in TASKS}
