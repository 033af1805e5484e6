"""What tasks with one vector per text share: options, features, the model, and cosines as answers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import Field

from bertkit.data.schema import Answer, Finding
from bertkit.data.table import numbers
from bertkit.encoding.texts import encode_texts
from bertkit.errors import ModelError, Problem
from bertkit.evaluation import similarity
from bertkit.tasks.base import Batch, Task, TaskOptions
from bertkit.tasks.labels import length_findings

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.encoding.padding import Arrays
    from bertkit.models.encoder import Encoder
    from bertkit.models.heads.vectors import Layout

logger = logging.getLogger(__name__)

MIDDLE = 0.5  # the threshold where nothing fitted one


class VectorOptions(TaskOptions):
    """How a text becomes a vector, and how vectors are learned."""

    pooling: Literal["mean", "cls", "max"] = Field("mean", description="Over the tokens of the last layer.")
    dense: int = Field(0, ge=0, le=65_536, description="Outputs of a dense layer after the pooling. 0: none.")
    activation: Literal["Identity", "Tanh", "ReLU", "GELU", "Sigmoid"] = Field(
        "Identity", description="Of the dense layer, by torch.nn's name."
    )
    bias: bool = Field(True, description="Of the dense layer.")
    normalize: bool = Field(True, description="Normalise vectors to length 1.")
    scale: float = Field(20.0, gt=0, description="Factor on cosines: 1 / temperature.")
    overflow: Literal["truncate", "error"] = Field(
        "truncate", description="Texts longer than max_length: truncated, or refused."
    )
    query_prefix: str = Field("", description="Prepended to queries and anchors, such as `query: `.")
    document_prefix: str = Field("", description="Prepended to documents, positives and negatives.")
    mini_batch: int | None = Field(
        None, ge=1, description="Texts that go through the encoder at a time, so that a large batch fits (GradCache)."
    )

    @property
    def layout(self) -> Layout:
        """The modules behind the encoder."""
        from bertkit.models.heads.vectors import Layout

        return Layout(self.pooling, self.dense, self.activation, self.bias, self.normalize)

    def described(self) -> str:
        """Such as `mean pooling, dense 256, unit length`."""
        parts = [f"{self.pooling} pooling", f"dense {self.dense}" if self.dense else "", "unit length" * self.normalize]
        return ", ".join(part for part in parts if part)


QUERIES, DOCUMENTS = ("anchor", "query"), ("positive", "negative", "document")  # the columns that get a prefix


def encode_sides(
    tokenizer: PreTrainedTokenizerBase, sides: Mapping[str, Sequence[str]], options: VectorOptions, max_length: int
) -> dict[str, list[Any]]:
    """Column -> its texts; one feature a text: the sides of a row one after the other.

    Beside the columns of `encode_texts`: `side`, from 0, and `same`, a number that equal texts share.
    """
    encoded = []
    for number, (name, texts) in enumerate(sides.items()):
        prefix = options.query_prefix * (name in QUERIES) + options.document_prefix * (name in DOCUMENTS)
        read = [prefix + text for text in texts] if prefix else texts
        columns = encode_texts(tokenizer, read, None, max_length=max_length, overflow=options.overflow, stride=0)
        columns["side"] = [number] * len(texts)
        columns["same"] = [_number(text) for text in texts]
        encoded.append(columns)
    rows = range(len(next(iter(sides.values()))))
    return {name: [columns[name][row] for row in rows for columns in encoded] for name in encoded[0]}


def _number(text: str) -> int:
    """64 bits that equal texts share, in whatever chunk, process or run."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class TextVector(NamedTuple):
    """A text's vector `(size,)`, and the classifier's weight `(classes, 3 size)` and bias, the same for all texts."""

    vector: np.ndarray
    classifier: tuple[np.ndarray, np.ndarray] | None


V = TypeVar("V", bound=VectorOptions)


class VectorTask(Task[V]):
    """A task whose model gives each text a vector: an encoder in the layout of sentence-transformers."""

    sides: ClassVar[Sequence[str]]  # columns of texts, in the order of a row's features

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[V, int | None]:
        """The model's own modules.json and prompts, or mean pooling and none; cosines, no threshold, truncation.

        Raises ModelError on modules that bertkit does not support.
        """
        from bertkit.models.heads.vectors import read_layout
        from bertkit.models.untrusted import read_object

        folder = Path(str(config.name_or_path))
        layout, longest, lowercased = read_layout(folder)
        if lowercased and tokenizer.tokenize("A") != tokenizer.tokenize("a"):
            what = "its texts are lower-cased for a case-sensitive tokenizer, which bertkit does not do"
            raise ModelError(Problem(str(folder / "sentence_bert_config.json"), what))
        file = folder / "config_sentence_transformers.json"
        settings = read_object(file) if file.is_file() else {}
        prompts = settings.get("prompts") or {}
        if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
            raise ModelError(Problem(str(file), "its prompts are not texts by name"))
        if prompts.get(settings.get("default_prompt_name")):
            what = "%s: its default prompt %r is used for queries or documents only, if it is theirs"
            logger.warning(what, folder, prompts[settings["default_prompt_name"]])
        prefixes = {f"{side}_prefix": prompts[side] for side in ("query", "document") if prompts.get(side)}
        options: Any = cls.Options.model_validate({"name": cls.name, **layout._asdict(), **prefixes})
        return options, longest

    def encode(self, rows: Dataset) -> Dataset:
        """One feature a text, the sides of a row one after the other; see `encode_sides`."""
        from datasets import Dataset

        texts = {name: rows[name][:] for name in self.sides if name in rows.column_names}
        return Dataset.from_dict(encode_sides(self.tokenizer, texts, self.options, self.max_length))

    def units(self, features: Dataset) -> ArrayLike:
        """The texts of a row are trained on together."""
        return numbers(features, "row")

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from length_findings(features, split, self.max_length, windows=False)

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        return build(encoder, self.options, new_head=new_head)

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        """The dense layer and the classifier, where the model has them."""
        from bertkit.models.heads.vectors import DENSE

        places = {"dense": f"{DENSE}/model", "classifier": "classifier"}
        return {places[name]: module for name, module in model.named_children() if name in places}

    def extra_files(self, model: Any) -> Mapping[str, Any]:
        """What sentence-transformers reads besides the model."""
        from bertkit.models.heads.vectors import files

        prompts = {"query": self.options.query_prefix, "document": self.options.document_prefix}
        settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
        layout = files(self.options.layout, model.config.hidden_size, self.max_length)
        return {**layout, "config_sentence_transformers.json": settings}

    def forward(self, model: Any, batch: Batch) -> Any:
        return forward(super().forward, model, batch, self.options.mini_batch)

    def in_batch_loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Multiple-negatives ranking over anchors, positives and, where given, negatives, `()`."""
        import torch

        from bertkit.models.heads import vector_losses

        a, b, c = (outputs["vectors"][batch["side"] == side] for side in range(3))
        texts = torch.cat([batch["same"][batch["side"] == side] for side in range(3)])
        return vector_losses.in_batch(a, b, c, texts, self.options.scale)

    def count(self, batch: Batch) -> float:
        """Rows."""
        return float((batch["side"] == 0).sum())

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`vectors`, `(texts, size)`, and `weight` and `bias` of the classifier where there is one, fp32."""
        return {name: outputs[name].float() for name in ("vectors", "weight", "bias") if name in outputs}

    def items(self, arrays: Arrays) -> Sequence[TextVector]:
        classifier = (arrays["weight"], arrays["bias"]) if "weight" in arrays else None
        return [TextVector(vector, classifier) for vector in arrays["vectors"]]


def build(encoder: Encoder, options: VectorOptions, *, classes: int = 0, new_head: bool = True) -> PreTrainedModel:
    """AutoModel with the layout behind it, and a classifier over (u, v, |u - v|) where there are classes."""
    from torch import nn
    from transformers import AutoModel

    from bertkit.models.encoder import load_extra_module, load_model
    from bertkit.models.heads.vectors import DENSE, attach

    layout = options.layout
    model: Any = load_model(encoder, AutoModel, {}, new_head=new_head)
    if "pooler" in dict(model.named_children()) and model.pooler is not None:
        model.pooler.requires_grad_(False)  # nothing reads it
    attach(model, layout)
    if layout.dense and (not new_head or (encoder.folder / DENSE).is_dir()):
        load_extra_module(encoder, f"{DENSE}/model", model.dense)
    if classes:
        model.classifier = nn.Linear(3 * (layout.dense or model.config.hidden_size), classes)
        nn.init.normal_(model.classifier.weight, std=0.02)
        nn.init.zeros_(model.classifier.bias)
        if not new_head:
            load_extra_module(encoder, "classifier", model.classifier)
        # The classifier's own tensors go with the vectors: which texts are pairs, the loss and decode know.
        model.register_forward_hook(_with_classifier)
    return model  # type: ignore[no-any-return]


def _with_classifier(model: Any, inputs: Any, outputs: Any) -> Any:
    # Clones: DDP takes a parameter that is an output for one that is done with.
    return {**outputs, "weight": model.classifier.weight.clone(), "bias": model.classifier.bias.clone()}


def forward(run: Callable[[Any, Batch], Any], model: Any, batch: Batch, mini_batch: int | None) -> Mapping[str, Tensor]:
    """The model's outputs; with `mini_batch`, while it learns, computed in parts and again in the backward pass.

    That is GradCache (Gao et al. 2021): the batch's memory is that of a part, its gradients are those of the whole.
    """
    import torch

    outputs: Mapping[str, Tensor]
    texts = len(batch["input_ids"])
    if mini_batch is None or texts <= mini_batch or not torch.is_grad_enabled():
        outputs = run(model, batch)
        return outputs
    from torch.utils.checkpoint import checkpoint

    from bertkit.models.cpu_kernels import faster

    def part(piece: Batch) -> Mapping[str, Tensor]:
        with faster(piece["input_ids"].device):  # entered here, since the second pass is outside of the step's
            made: Mapping[str, Tensor] = run(model, piece)
            return made

    parts = []
    for start in range(0, texts, mini_batch):
        piece = {name: values[start : start + mini_batch] for name, values in batch.items()}
        width = int(piece["attention_mask"].sum(1).max())
        cut = {n: v[:, :width] if v.ndim == 2 else v for n, v in piece.items()}
        parts.append(checkpoint(part, cut, use_reentrant=False))
    return {**parts[0], "vectors": torch.cat([each["vectors"] for each in parts])}


def stacked(items: Sequence[TextVector]) -> np.ndarray:
    """`(texts, size)` fp32. Raises ModelError when vectors are not finite."""
    import numpy as np

    every = np.stack([item.vector for item in items])
    bad = int((~np.isfinite(every)).any(axis=1).sum())
    if bad:
        what = f"its vectors are not finite for {bad} of {len(every)} texts"
        raise ModelError(Problem("the model", what, "Its weights are damaged, or its training diverged."))
    return every


def decode(
    items: Sequence[TextVector], features: Dataset, labels: Sequence[str], threshold: float | None, ranked: bool
) -> list[Answer]:
    """Vectors, or cosines of the sides; and `truncated`. Raises ModelError when vectors are not finite.

    labels: what pairs are called, by the classifier or by the threshold. ranked: are the sides anchors and positives?
    """
    import numpy as np

    sides = max(features["side"][:]) + 1
    every = stacked(items)
    lost = np.asarray(features["lost"][:]).reshape(-1, sides).sum(axis=1) > 0
    table = every.astype(np.float64).reshape(-1, sides, every.shape[1])
    if sides == 1:
        answers: list[Answer] = [{"vector": vector.tolist()} for vector in every]
    elif items[0].classifier is not None:
        answers = _classified(table, items[0].classifier, labels)
    else:
        unit = table / np.maximum(np.linalg.norm(table, axis=-1, keepdims=True), 1e-12)
        answers = by_cosine(unit.transpose(1, 0, 2), labels, threshold, ranked)
    return [answer | {"truncated": cut} for answer, cut in zip(answers, lost.tolist(), strict=True)]


def by_cosine(sides: Sequence[Any], labels: Sequence[str], threshold: float | None, ranked: bool) -> list[Answer]:
    """Answers from the unit vectors of each side, `(rows, size)` each, dense or sparse; arguments as for `decode`."""
    import numpy as np

    def rowwise(a: Any, b: Any) -> list[float]:
        return np.asarray(np.clip((a * b).sum(axis=1), -1, 1)).ravel().tolist()

    answers: list[Answer] = [{"score": score} for score in rowwise(sides[0], sides[1])]
    if len(labels) == 2:
        limit = MIDDLE if threshold is None else threshold
        answers = [answer | {"label": labels[answer["score"] >= limit]} for answer in answers]
    if ranked:
        table = sides[0] @ sides[1].T
        places = similarity.places(table if isinstance(table, np.ndarray) else table.toarray())
        answers = [answer | {"rank": place} for answer, place in zip(answers, places, strict=True)]
    if len(sides) > 2:
        worse = rowwise(sides[0], sides[2])
        answers = [answer | {"negative_score": score} for answer, score in zip(answers, worse, strict=True)]
    return answers


def cosine_answers(sides: Sequence[Any], chunk_size: int, *, ranked: bool) -> list[Answer]:
    """`by_cosine` of any number of rows, a chunk at a time, as a model's answers are."""
    starts = range(0, sides[0].shape[0], chunk_size)
    chunks = (by_cosine([side[i : i + chunk_size] for side in sides], [], None, ranked) for i in starts)
    return [answer for chunk in chunks for answer in chunk]


def _classified(table: np.ndarray, classifier: tuple[np.ndarray, np.ndarray], labels: Sequence[str]) -> list[Answer]:
    """The classifier's probabilities for each pair, `(pairs, 2, size)`."""
    import numpy as np
    from scipy.special import softmax

    u, v = table[:, 0], table[:, 1]
    weight, bias = (part.astype(np.float64) for part in classifier)
    logits = np.concatenate([u, v, np.abs(u - v)], axis=1) @ weight.T + bias
    answers = []
    for row in softmax(logits, axis=1).tolist():
        best = max(range(len(row)), key=row.__getitem__)
        answers.append({"label": labels[best], "score": row[best], "scores": dict(zip(labels, row, strict=True))})
    return answers
