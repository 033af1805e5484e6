"""bertkit.Classifier, beside scikit-learn's checks of estimators and its cross-validation."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
import small
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks

import bertkit
from bertkit.errors import DataError

TEXTS = [small.text(number, number % 2) for number in range(24)]
SETTINGS = {"epochs": 1, "max_length": 64, "explain": False, "verify": False}


def test_it_answers_in_the_classes_that_were_given(tiny_encoder: Path, tmp_path: Path) -> None:
    y = [(7, 30)[number % 2] for number in range(len(TEXTS))]
    folder = tmp_path / "runs" / "mine"
    classifier = bertkit.Classifier(tiny_encoder, output_dir=folder, validation=0.25, settings=SETTINGS).fit(TEXTS, y)
    assert classifier.classes_.tolist() == [7, 30]
    assert classifier.run_.folder.parent == folder
    probabilities = classifier.predict_proba(np.array(TEXTS[:5]))
    answers = bertkit.load(classifier.run_.folder)(TEXTS[:5])
    assert probabilities.tolist() == [[answer["scores"][name] for name in ("7", "30")] for answer in answers]
    assert classifier.predict(TEXTS[:5]).tolist() == [int(answer["label"]) for answer in answers]
    assert classifier.predict([]).shape == (0,)


def test_scikit_learn_takes_it(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    classifier = bertkit.Classifier(tiny_encoder, validation=0.25, settings=SETTINGS)
    for check in ("get_params_invariance", "set_params", "estimator_cloneable", "estimator_repr", "mixin_order"):
        getattr(estimator_checks, f"check_{check}")("Classifier", clone(classifier))
    for check in ("valid_tag_types", "no_attributes_set_in_init", "do_not_raise_errors_in_init_or_set_params"):
        getattr(estimator_checks, f"check_{check}")("Classifier", clone(classifier))
    scores = cross_val_score(classifier, TEXTS, np.arange(len(TEXTS)) % 2 == 1, cv=2, error_score="raise")
    assert scores.shape == (2,)
    gc.collect()
    assert [*tmp_path.glob("bertkit-*")] == [], "a temporary run goes with its estimator"


def test_what_it_refuses(tiny_encoder: Path, tmp_path: Path) -> None:
    classifier = bertkit.Classifier(tiny_encoder, output_dir=tmp_path / "runs")
    with pytest.raises(NotFittedError):
        classifier.predict(TEXTS)
    small.raises(DataError, "y: 1 class, where two or more are expected", classifier.fit, TEXTS, [1] * len(TEXTS))
    small.raises(DataError, "row 2: None, where text is expected", classifier.fit, ["a", None], [0, 1])
    small.raises(ValueError, "inconsistent numbers of samples", classifier.fit, TEXTS, [0, 1])
    with pytest.raises(bertkit.RecipeError, match="lerning_rate"):
        clone(classifier).set_params(settings={"lerning_rate": 1}).fit(TEXTS[:4], [0, 1, 0, 1])
    assert [*tmp_path.iterdir()] == []
