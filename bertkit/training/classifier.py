"""Text classification as an estimator of scikit-learn: `train` behind `fit`, and a predictor behind
`predict`.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self
from uuid import uuid4

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from bertkit.errors import DataError
from bertkit.inference.predictor import load
from bertkit.text import Record
from bertkit.training.train import train
from bertkit.vectors.features import column_of_texts, reading_texts


@dataclass(repr=False, eq=False)  # scikit-learn's own repr, and identity
class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Texts -> one of several classes, by a fine-tuned encoder. Texts are passed as to `bertkit.Features`.

    Args:
        model: A folder, Hub id or installed model, like `model.name` of a recipe.
        output_dir: Each `fit` makes a run folder in it; None: a temporary one, which lives as long as the
            estimator.
        validation: The share of the rows of `fit` that is held out to select the best model.
        settings: Further keyword arguments of `train`, such as `{"epochs": 5, "learning_rate": 1e-4}`.

    >>> classifier = bertkit.Classifier("bert-base-uncased", settings={"epochs": 1})
    >>> texts, labels = [f"{word} film {n}" for n in range(10) for word in ("bad", "good")], [0, 1] * 10
    >>> classifier.fit(texts, labels).predict_proba(["a film"]).shape
    (1, 2)
    """

    model: str | Path
    output_dir: str | Path | None = None
    validation: float = 0.1
    settings: Record | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Train a run, `run_`. X: texts. y: a class for each. Raises UserError."""
        texts = column_of_texts(X)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(texts, labels)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        names = self._names()
        if len(names) < 2:
            raise DataError(
                "y", f"expected two or more classes, found {len(names)}", "Add rows of another class."
            )
        if len(set(names)) < len(names):
            raise DataError("y", f"classes that look alike: {', '.join(sorted(names))}", "Rename them.")
        settings = dict(self.settings or {})
        model = settings.pop("model", {})
        if "data" in settings or not isinstance(model, Mapping):
            raise DataError(
                "settings",
                "contains model or data, which are parameters of the classifier",
                "Set `model` and `validation` of the classifier; settings: {'model': {…}} adds to its model.",
            )
        rows = [{"text": text, "label": names[code]} for text, code in zip(texts, codes, strict=True)]
        if (parent := self.output_dir) is None:
            parent = mkdtemp(prefix="bertkit-")
            weakref.finalize(self, shutil.rmtree, parent, ignore_errors=True)
        folder = Path(parent, f"fit-{uuid4().hex}")
        settings = {"kind": "single-label", **settings, "model": {"name": str(self.model), **model}}
        data = {"train": rows, "validation": self.validation}
        self.run_ = train("text-classification", folder, data=data, **settings)
        self.predictor_ = load(self.run_.folder)
        self.n_features_in_ = 1
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, `(texts, classes)`, in the order of `classes_`. Raises DataError."""
        check_is_fitted(self)
        answers = self.predictor_.stream({"text": text} for text in column_of_texts(X))
        names = self._names()
        scores = [answer["scores"][name] for answer in answers for name in names]
        return np.asarray(scores, dtype=float).reshape(-1, len(self.classes_))

    def _names(self) -> list[str]:
        """The classes as labels of the run: one that is blank is quoted, as a label cannot be empty."""
        return [name if name.strip() else repr(name) for name in map(str, self.classes_)]

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each text, `(texts,)`. Raises DataError."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def __sklearn_tags__(self) -> Any:
        """Texts come in."""
        return reading_texts(super().__sklearn_tags__())
