"""bertkit: fine-tune BERT-family encoders from one recipe, with one decode path."""

from __future__ import annotations

import contextlib
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bertkit.audits.audit import audit
    from bertkit.decisions.calibrate import calibrate
    from bertkit.engine.attachment import Attachment
    from bertkit.errors import DataError, ModelError, RecipeError, UserError
    from bertkit.inference.batch import batch
    from bertkit.inference.evaluate import evaluate
    from bertkit.inference.features import Features
    from bertkit.inference.multitask_predictor import load_tasks
    from bertkit.inference.predictor import Predictor, load
    from bertkit.recipe.recipe import Recipe, load_recipe
    from bertkit.report.view import Run
    from bertkit.tasks import register
    from bertkit.training.classifier import Classifier
    from bertkit.training.train import train

__all__ = [
    "Attachment", "Classifier", "DataError", "Features", "ModelError", "Predictor", "Recipe",
    "RecipeError", "Run", "UserError", "audit", "batch", "calibrate", "evaluate", "load",
    "load_recipe", "load_tasks", "register", "train",
]  # fmt: skip

_MODULES = {
    "audits.audit": "audit",
    "engine.attachment": "Attachment",
    "errors": "DataError ModelError RecipeError UserError",
    "inference.batch": "batch",
    "inference.evaluate": "evaluate",
    "inference.features": "Features",
    "inference.multitask_predictor": "load_tasks",
    "inference.predictor": "Predictor load",
    "recipe.recipe": "Recipe load_recipe",
    "report.view": "Run",
    "tasks": "register",
    "decisions.calibrate": "calibrate",
    "training.classifier": "Classifier",
    "training.train": "train",
}


def _choose_bar() -> None:
    """In a notebook without ipywidgets tqdm takes its plain bar, of which it would warn when it is first imported."""
    if "ipykernel.zmqshell" in sys.modules and "tqdm.auto" not in sys.modules:
        with warnings.catch_warnings(), contextlib.suppress(ModuleNotFoundError):
            warnings.filterwarnings("ignore", "IProgress not found")
            import_module("tqdm.auto")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import bertkit` stays cheap. UserError: a library is missing."""
    for module, names in _MODULES.items():
        if name in names.split():
            _choose_bar()
            try:
                return getattr(import_module(f"bertkit.{module}"), name)
            except ModuleNotFoundError as error:
                raise import_module("bertkit.errors").not_installed(error) from error
    raise AttributeError(f"module 'bertkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
