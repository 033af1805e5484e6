"""bertkit: fine-tune BERT-family encoders from one recipe, with one decode path."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bertkit.errors import DataError, ModelError, RecipeError, UserError
    from bertkit.evaluation.hf_metrics import as_evaluate_metric
    from bertkit.inference.evaluate import evaluate
    from bertkit.inference.features import Features
    from bertkit.inference.predictor import Predictor, load
    from bertkit.recipe.recipe import Recipe, load_recipe
    from bertkit.run import Run
    from bertkit.training.train import train

_HOMES = {
    "DataError": "errors",
    "Features": "inference.features",
    "ModelError": "errors",
    "Predictor": "inference.predictor",
    "Recipe": "recipe.recipe",
    "RecipeError": "errors",
    "Run": "run",
    "UserError": "errors",
    "as_evaluate_metric": "evaluation.hf_metrics",
    "evaluate": "inference.evaluate",
    "load": "inference.predictor",
    "load_recipe": "recipe.recipe",
    "train": "training.train",
}

__all__ = [
    "DataError",
    "Features",
    "ModelError",
    "Predictor",
    "Recipe",
    "RecipeError",
    "Run",
    "UserError",
    "as_evaluate_metric",
    "evaluate",
    "load",
    "load_recipe",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import bertkit` stays cheap. UserError: a library is missing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    try:
        return getattr(import_module(f"bertkit.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise import_module("bertkit.errors").not_installed(error) from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
