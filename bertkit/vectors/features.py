"""BERT as a frozen feature extractor: a scikit-learn transformer from texts to vectors (Devlin et al. 2019,
5.3).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from bertkit.cache import fingerprint
from bertkit.data.problems import Problems
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem
from bertkit.inference.settings import MIN_LENGTH, resolve_max_length
from bertkit.models.device import Precision, best_device, best_precision
from bertkit.models.encoder import load_config, load_tokenizer, resolve_encoder
from bertkit.models.untrusted import vet
from bertkit.sections import ModelSpec
from bertkit.text import Json, counted, part_of, short_repr
from bertkit.vectors.cache import CHUNK, Vectors, cached
from bertkit.vectors.layer_reader import Ints, LayerReader, changed

Combine = Literal["concat", "sum", "mean"]
Pool = Literal["mean", "cls", "max", "none"]


@dataclass(repr=False, eq=False)  # scikit-learn's own repr, and identity
class Features(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Texts -> vectors of a frozen encoder, as a scikit-learn transformer. Nothing is trained.

    Texts are a list, array or Series of strings, or a table of one column, as ColumnTransformer passes it.

    Args:
        model: A model folder, a run folder, a Hub id, or a model that is installed as a package.
        layers: Hidden states of the encoder: 0 is the embeddings, 1 the first layer, -1 the last.
        combine: How several layers are combined, token by token: concatenated, summed, or averaged.
        pool: How a text's tokens are pooled, special tokens included, as in sentence-transformers: their
            mean, their maximum, or the first token ("cls"). "none": no pooling, a vector for each word.
        max_length: Tokens read of a text; None: as many as the model allows. Longer texts are cut, with one
            warning per call. With pool="none" they are read in overlapping windows, and nothing is cut.
        batch_size: Texts per batch.
        cache: Keep vectors on disk, so that a text is encoded once; see `bertkit.cache`. Not with
            pool="none".
        precision: "fp32", "bf16" or "fp16"; None: what this machine computes fastest in (`best_precision`).
        revision: The commit, tag or branch of a Hub id.

    >>> bertkit.Features("runs/quickstart", cache=False).fit_transform(["a text", "another", "a third"]).shape
    (3, ...)
    """

    model: str | Path
    layers: Sequence[int] = (-1,)
    combine: Combine = "concat"
    pool: Pool = "mean"
    max_length: int | None = None
    batch_size: int = 32
    cache: bool = True
    precision: Precision | None = None
    revision: str | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameters and the texts; the weights are loaded when the first text is encoded.

        Raises ModelError on invalid parameters, and DataError with the rows that are not text.
        """
        _check(self)
        column_of_texts(X)
        self.reader_ = _reader(clone(self))
        self.files_ = self.reader_.files
        self.params_ = clone(self).set_params(
            revision=self.reader_.encoder.revision, precision=self.reader_.precision
        )
        self.n_features_in_ = 1
        return self

    @cached_property
    def reader_(self) -> LayerReader:
        """The reader that `fit` made; it is not saved, but made again where it is needed. Raises
        ModelError.
        """
        reader = _reader(self.params_)
        if reader.files != self.files_:
            raise changed(reader.encoder)
        return reader

    def __getstate__(self) -> Json:
        """Parameters and other plain values, so that pickle, joblib and skops can save it."""
        return {name: value for name, value in super().__getstate__().items() if name != "reader_"}

    def transform(self, X: Any) -> Vectors | list[Vectors]:
        """Vectors, float32 `(texts, size)`; with pool="none" a list with `(words, size)` for each text.

        The vector of a word is the vector of its first token. A word without tokens, such as a control
        character, has zeros. Raises DataError with the rows that are
        not text.
        """
        check_is_fitted(self)
        if self.reader_.params.pool == "none":
            return [words for texts in _chunks(column_of_texts(X)) for words in self.reader_.words(texts)]
        vectors, lost = self.vectors(X)
        if lost.any():
            dropped = counted(int(lost.sum()), "token")
            cut = part_of(int(np.count_nonzero(lost)), len(lost), "text")
            what = f"{cut} cut at {self.reader_.max_length} tokens; {dropped} dropped."
            advice = "Raise max_length where the model allows it, or split the texts into passages."
            warnings.warn(f"{what} {advice}", stacklevel=3)  # past scikit-learn's wrapper
        return vectors

    def vectors(self, X: Any) -> tuple[Vectors, Ints]:
        """The result of `transform`, and how many tokens of each text were dropped, `(texts,)`, without a
        warning.

        Raises ModelError with pool="none".
        """
        check_is_fitted(self)
        reader = self.reader_
        texts = column_of_texts(X)
        if reader.params.pool == "none":
            raise ModelError("pool", "'none' gives vectors of words, not of texts", "Use mean, cls or max.")
        if not texts:
            return np.zeros((0, reader.size), dtype=np.float32), np.zeros(0, dtype=np.int64)
        if reader.params.cache:
            both = cached(texts, reader.vectors, key=reader.key)
        else:
            both = np.concatenate([reader.vectors(part) for part in _chunks(texts)])
        return np.ascontiguousarray(both[:, :-1]), both[:, -1].astype(np.int64)

    def __sklearn_tags__(self) -> Any:
        """Texts come in; vectors are float32 whatever comes in."""
        tags = reading_texts(super().__sklearn_tags__())
        tags.transformer_tags.preserves_dtype = []
        return tags

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray[Any, Any]:
        """Names `(size,)` such as layer12_0; for summed or averaged layers, sum_0 or mean_0."""
        check_is_fitted(self)
        reader = self.reader_
        combine = reader.params.combine
        blocks = [f"layer{layer}" for layer in reader.layers] if combine == "concat" else [combine]
        return np.asarray(
            [f"{block}_{n}" for block in blocks for n in range(reader.size // len(blocks))], dtype=object
        )


def reading_texts(tags: Any) -> Any:
    """scikit-learn's tags of an estimator, for texts in one dimension, not numbers in two."""
    tags.input_tags.string = tags.input_tags.one_d_array = True
    tags.input_tags.two_d_array = False
    return tags


def _reader(params: Features) -> LayerReader:
    """Raises ModelError if there is no such encoder, or the parameters do not suit it."""
    run = Path(params.model).expanduser() / "model"
    name = str(run if (run / "config.json").is_file() else params.model)
    encoder = resolve_encoder(ModelSpec(name=name, revision=params.revision))
    if params.revision and encoder.origin == "folder":
        raise ModelError("revision", f"{params.model} is a folder, without revisions", "Leave it out.")
    files = fingerprint(encoder.folder)  # computed before they are vetted and read
    vet(encoder.folder)
    config = load_config(encoder.folder)
    tokenizer = load_tokenizer(encoder.folder)
    if config.is_encoder_decoder:
        raise ModelError(
            "model",
            f"a {config.model_type} has a decoder after its encoder",
            "Use an encoder of the BERT family.",
        )
    device = best_device()
    layers = _layers(params.layers, config.num_hidden_layers)
    size = config.hidden_size * (len(layers) if params.combine == "concat" else 1)
    limit = int(resolve_max_length(encoder, tokenizer, params.max_length))
    precision = params.precision or best_precision(device)
    return LayerReader(params, encoder, files, tokenizer, layers, size, limit, device, precision)


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    return (texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK))


def _check(features: Features) -> None:
    """Raise ModelError with all invalid parameters; scikit-learn's own constraints would name only the
    first.
    """

    def is_integer(value: Any) -> bool:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)

    layers = features.layers
    longest = features.max_length
    size = features.batch_size
    choices = {
        "combine": get_args(Combine),
        "pool": get_args(Pool),
        "precision": (None, *get_args(Precision)),
    }
    wrong = {
        name: f"one of {', '.join(map(repr, allowed))}"
        for name, allowed in choices.items()
        if getattr(features, name) not in allowed
    }
    if longest is not None and not (is_integer(longest) and longest >= MIN_LENGTH):
        wrong["max_length"] = f"an integer from {MIN_LENGTH} on"
    if not (is_integer(size) and size >= 1):
        wrong["batch_size"] = "an integer from 1 on"
    if not (isinstance(layers, Sequence | np.ndarray) and len(layers) and all(map(is_integer, layers))):
        wrong["layers"] = "a list of integers, such as [-1] or [-4, -3, -2, -1]"
    if not (isinstance(features.model, str | PathLike) and str(features.model)):
        wrong["model"] = "a folder or a Hub id"
    if wrong:
        values = {name: short_repr(getattr(features, name)) for name in wrong}
        raise ModelError(
            Problem(name, f"expected {what}, found {values[name]}") for name, what in wrong.items()
        )


def _layers(wanted: Sequence[int], count: int) -> tuple[int, ...]:
    """Layers counted from the embeddings, which are 0. Raises ModelError."""
    unknown = [int(layer) for layer in wanted if not -count - 1 <= layer <= count]
    if unknown:
        raise ModelError(
            "layers",
            f"no layer {', '.join(map(str, unknown))}: the encoder has {count}",
            f"Choose 0, the embeddings, to {count} or -1, the last layer.",
        )
    layers = tuple(int(layer) % (count + 1) for layer in wanted)
    if len(set(layers)) < len(layers):
        raise ModelError(
            "layers", f"{list(wanted)} name a layer twice: -1 and {count} are the same", "Remove one."
        )
    return layers


def column_of_texts(X: Any) -> list[str]:
    """The texts of a list, array, Series or table of one column. Raises DataError."""
    fix = "Pass a list, array or Series of texts; in a ColumnTransformer, select one column."
    try:
        values = np.asarray(X, dtype=object)
    except ValueError as error:
        raise DataError("X", f"rows of different sizes: {error}", fix) from error
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        columns = f"{values.shape[1]} columns" if values.ndim == 2 else short_repr(X)
        raise DataError("X", f"expected one column of texts, found {columns}", fix)
    problems = Problems()
    for row, value in enumerate(values, 1):
        if not isinstance(value, str):
            what = f"expected text, found {short_repr(value)}"
            fix = "Replace missing values, e.g. with ''."
            problems.add(f"row {row}", what, fix)
    problems.raise_if_any()
    return [replace_surrogates(text) for text in values]
