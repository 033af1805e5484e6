"""bertkit: fine-tune BERT-family encoders from one recipe, with one inference code path."""

from __future__ import annotations

import contextlib
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bertkit.audits.audit import audit as audit
    from bertkit.audits.check import check as check
    from bertkit.data.schema import Finding as Finding
    from bertkit.data.sources import samples_folder as samples_folder
    from bertkit.decisions.calibrate import calibrate as calibrate
    from bertkit.engine.attachment import Attachment as Attachment
    from bertkit.errors import (
        DataError as DataError,
        ModelError as ModelError,
        RecipeError as RecipeError,
        UserError as UserError,
    )
    from bertkit.explanations.explain import explain as explain
    from bertkit.exports.program import export as export
    from bertkit.hub.push import push as push
    from bertkit.inference.batch import batch as batch
    from bertkit.inference.evaluate import evaluate as evaluate
    from bertkit.vectors.features import Features as Features
    from bertkit.inference.multitask_predictor import load_tasks as load_tasks
    from bertkit.inference.predict_file import predict as predict
    from bertkit.inference.predictor import Predictor as Predictor, load as load
    from bertkit.models.bert import bert as bert, transformer as transformer
    from bertkit.recipe.init import init as init
    from bertkit.recipe.recipe import Recipe as Recipe, load_recipe as load_recipe
    from bertkit.report.html import compare as compare
    from bertkit.report.view import Run as Run
    from bertkit.retrieval.commands import embed as embed, index as index, search as search
    from bertkit.retrieval.mining import mine as mine
    from bertkit.serving.server import serve as serve
    from bertkit.sweeps.sweep import Sweep as Sweep, sweep as sweep
    from bertkit.tasks import register as register
    from bertkit.tokenizer.train import train_tokenizer as train_tokenizer
    from bertkit.training.classifier import Classifier as Classifier
    from bertkit.training.folds import cross_validate as cross_validate
    from bertkit.training.train import train as train

_MODULES = {
    "audits.audit": "audit",
    "audits.check": "check",
    "data.schema": "Finding",
    "data.sources": "samples_folder",
    "decisions.calibrate": "calibrate",
    "engine.attachment": "Attachment",
    "errors": "DataError ModelError RecipeError UserError",
    "explanations.explain": "explain",
    "exports.program": "export",
    "hub.push": "push",
    "inference.batch": "batch",
    "inference.evaluate": "evaluate",
    "vectors.features": "Features",
    "inference.multitask_predictor": "load_tasks",
    "inference.predict_file": "predict",
    "inference.predictor": "Predictor load",
    "models.bert": "bert transformer",
    "recipe.init": "init",
    "recipe.recipe": "Recipe load_recipe",
    "report.html": "compare",
    "report.view": "Run",
    "retrieval.commands": "embed index search",
    "retrieval.mining": "mine",
    "serving.server": "serve",
    "sweeps.sweep": "Sweep sweep",
    "tasks": "register",
    "tokenizer.train": "train_tokenizer",
    "training.classifier": "Classifier",
    "training.folds": "cross_validate",
    "training.train": "train",
}
__all__ = sorted(" ".join(_MODULES.values()).split())


def _choose_bar() -> None:
    """In a notebook without ipywidgets tqdm takes its plain bar, of which it would warn when it is first
    imported.
    """
    if "ipykernel.zmqshell" in sys.modules and "tqdm.auto" not in sys.modules:
        with warnings.catch_warnings(), contextlib.suppress(ModuleNotFoundError):
            warnings.filterwarnings("ignore", "IProgress not found")
            import_module("tqdm.auto")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import bertkit` stays cheap. UserError: a library is
    missing.
    """
    for module, names in _MODULES.items():
        if name in names.split():
            _choose_bar()
            try:
                home = import_module(f"bertkit.{module}")
                return vars(home)[name] if name in vars(home) else import_module(f"{home.__name__}.{name}")
            except ModuleNotFoundError as error:
                raise import_module("bertkit.errors").not_installed(error) from error
    raise AttributeError(f"module 'bertkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
