"""bertkit.Classifier, beside scikit-learn's checks of estimators and its cross-validation."""

import gc
import tempfile
from functools import partial

import numpy as np
import pandas
import pytest
import small
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks
from small import raised, raises

import bertkit
from bertkit.errors import DataError

TEXTS = [small.text(number, number % 2) for number in range(24)]
SETTINGS = {"epochs": 1, "max_length": 64, "explain": False, "verify": False}


def test_it_answers_in_the_classes_that_were_given(tiny_encoder, tmp_path):
    y = [(7, 30)[number % 2] for number in range(len(TEXTS))]
    folder = tmp_path / "runs/mine"
    classifier = bertkit.Classifier(tiny_encoder, output_dir=folder, validation=0.25, settings=SETTINGS).fit(
        TEXTS, y
    )
    assert classifier.classes_.tolist() == [7, 30]
    assert classifier.run_.folder.parent == folder
    probabilities = classifier.predict_proba(np.array(TEXTS[:5]))
    answers = bertkit.load(classifier.run_.folder)(TEXTS[:5])
    assert probabilities.tolist() == [[answer["scores"][name] for name in ("7", "30")] for answer in answers]
    assert classifier.predict(TEXTS[:5]).tolist() == [int(answer["label"]) for answer in answers]
    assert classifier.predict([]).shape == (0,)


@pytest.mark.parametrize(
    "classes", [("a|b", "c/d"), ("1.5", "2"), ("", "a"), (" ", "\n"), (1.0, 2.0), (False, True)]
)
def test_any_class_of_scikit_learn_comes_back_as_it_was(classes, tiny_encoder):
    y = np.array([classes[number % 2] for number in range(len(TEXTS))])
    settings = {"model": {"max_length": 32}, "task": {"method": "head"}, "explain": False, "verify": False}
    classifier = bertkit.Classifier(tiny_encoder, validation=0.25, settings=settings).fit(TEXTS, y)
    assert classifier.run_.recipe.model.max_length == 32
    predicted = classifier.predict(TEXTS)
    assert predicted.dtype == y.dtype
    assert set(predicted.tolist()) == set(y.tolist())
    assert classifier.score(TEXTS, y) > 0.8


def test_a_label_column_with_its_kind_holds_any_names(tiny_encoder, tmp_path):
    rows = [{"text": text, "label": ("1.5", "a|b")[number % 2]} for number, text in enumerate(TEXTS)]
    frame = pandas.DataFrame(rows)
    fractions = frame.assign(label=[(1.5, 2)[number % 2] for number in range(len(TEXTS))])
    for data, names in ((frame, ["1.5", "a|b"]), (fractions, ["1.5", "2"])):
        train = partial(
            bertkit.train, "text-classification", data={"train": data, "validation": 0.25}, model=tiny_encoder
        )
        run = train(tmp_path / names[1] / "run", kind="single-label", **SETTINGS)
        assert list(run.load()("a cat")["scores"]) == names
        assert bertkit.evaluate(run.folder, data)["rows"] == len(data)
        raises(DataError, "map the column as", train, tmp_path / "none", **SETTINGS)


def test_scikit_learn_takes_it(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    classifier = bertkit.Classifier(tiny_encoder, validation=0.25, settings=SETTINGS)
    checks = (
        "get_params_invariance set_params estimator_cloneable estimator_repr mixin_order valid_tag_types "
    )
    checks += "no_attributes_set_in_init do_not_raise_errors_in_init_or_set_params"
    for check in checks.split():
        getattr(estimator_checks, f"check_{check}")("Classifier", clone(classifier))
    scores = cross_val_score(classifier, TEXTS, np.arange(len(TEXTS)) % 2 == 1, cv=2, error_score="raise")
    assert scores.shape == (2,)
    gc.collect()
    assert [*tmp_path.glob("bertkit-*")] == [], "a temporary run goes with its estimator"


def test_what_it_refuses(tiny_encoder, tmp_path):
    classifier = bertkit.Classifier(tiny_encoder, output_dir=tmp_path / "runs")
    raised(NotFittedError, classifier.predict, TEXTS)
    raises(DataError, "y: expected two or more classes, found 1", classifier.fit, TEXTS, [1] * len(TEXTS))
    raises(DataError, "row 2: expected text, found None", classifier.fit, ["a", None], [0, 1])
    raises(ValueError, "inconsistent numbers of samples", classifier.fit, TEXTS, [0, 1])
    with pytest.raises(bertkit.RecipeError, match="lerning_rate"):
        clone(classifier).set_params(settings={"lerning_rate": 1}).fit(TEXTS[:4], [0, 1, 0, 1])
    for more in ({"data": {"validation": 0.1}}, {"model": "other"}):
        other = clone(classifier).set_params(settings=SETTINGS | more)
        raises(
            DataError,
            "settings: contains model or data, which are parameters of the classifier",
            other.fit,
            TEXTS,
            [0, 1] * 12,
        )
    twice = ["", "''"] * 12
    raises(DataError, "classes that look alike", clone(classifier).fit, TEXTS, twice)
    assert [*tmp_path.iterdir()] == []
