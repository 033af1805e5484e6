"""The tasks of bertkit: one file each, listed in TASKS."""

from __future__ import annotations

from bertkit.errors import Problem, RecipeError
from bertkit.tasks.base import Task
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.question_answering import QuestionAnswering
from bertkit.tasks.retrieval import Retrieval
from bertkit.tasks.sentence_similarity import SentenceSimilarity
from bertkit.tasks.text2text_generation import Text2TextGeneration
from bertkit.tasks.text_classification import TextClassification
from bertkit.tasks.text_ranking import TextRanking
from bertkit.tasks.token_classification import TokenClassification

TASKS: tuple[type[Task], ...] = (
    TextClassification,
    TokenClassification,
    QuestionAnswering,
    SentenceSimilarity,
    Retrieval,
    TextRanking,
    Text2TextGeneration,
    Pretraining,
)


def get_task(name: str) -> type[Task]:
    """The task of this name. Raises RecipeError."""
    for task in TASKS:
        if task.name == name:
            return task
    raise RecipeError(Problem("task.name", f"no task {name!r}", f"Known: {', '.join(task.name for task in TASKS)}."))
