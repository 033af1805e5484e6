"""What tasks with one vector per text share: options, features and the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from bertkit import processes
from bertkit.data.on_disk import numbers
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Finding, warn
from bertkit.encoding.padding import mask_of, model_inputs
from bertkit.encoding.texts import encode_texts
from bertkit.errors import ModelError, UserError, require_finite
from bertkit.models.encoder import Encoder
from bertkit.models.untrusted import CORRECT, read_object
from bertkit.sections import Count
from bertkit.tasks.base import Batch, Reduced, Restored, Task, TaskOptions
from bertkit.tasks.fields import READ, Key, form
from bertkit.text import Json, Record

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel

    from bertkit.models.heads.vector_head import Layout

WIDE = 64  # tokens of a batch from which on its sides are encoded one by one
VECTOR = form("Vector", "The vector of a text.", Key("vector", "vector", list[float]), *READ)


class VectorOptions(TaskOptions):
    """How a text becomes a vector, and how vectors are learned."""

    pooling: Literal["mean", "cls", "max"] = "mean"
    """Over the tokens of the last layer."""
    dense: int = Field(0, ge=0, le=65_536)
    """Outputs of a dense layer after the pooling. 0: none."""
    activation: Literal["Identity", "Tanh", "ReLU", "GELU", "Sigmoid"] = "Identity"
    """Of the dense layer, by torch.nn's name."""
    bias: bool = True
    """Of the dense layer."""
    normalize: bool = True
    """Normalise vectors to length 1."""
    truncate_dim: int | None = Field(None, ge=1)
    """Keep the first numbers of each vector, after all of the above. null: all of them."""
    dims: Annotated[list[Count], Field(min_length=1)] | None = Field(
        None,
        description="Sizes, such as [384, 128]: the first numbers of vectors are learned and scored as "
        "vectors of "
        "these sizes (Matryoshka), and the largest is kept. null: whole vectors.",
    )
    scale: float = Field(20.0, gt=0)
    """Factor on cosines: 1 / temperature."""
    overflow: Literal["truncate", "error"] = "truncate"
    """Texts longer than max_length: truncated, or refused."""
    query_prefix: str = Field("", max_length=10_000)
    """Prepended to queries and anchors, such as `query: `."""
    document_prefix: str = Field("", max_length=10_000)
    """Prepended to documents, positives and negatives."""

    @property
    def layout(self) -> Layout:
        """The modules behind the encoder."""
        from bertkit.models.heads.vector_head import Layout

        return Layout(self.pooling, self.dense, self.activation, self.bias, self.normalize, self.kept)

    @property
    def kept(self) -> int | None:
        """How many of the first numbers of a vector are kept; None: all of them."""
        return self.truncate_dim or max(self.dims or [0]) or None

    def size(self, hidden: int) -> int:
        """Numbers of a vector, over an encoder with hidden states of this size."""
        size = self.dense or hidden
        return min(size, self.kept or size)


def _sentence_transformers(file: Path, *, unit: bool) -> Json:
    """Prefixes and `truncate_dim` by this file of a model, if it has it. unit: whether its vectors have
    length 1.

    Raises ModelError on settings with which sentence-transformers would compute something else.
    """
    settings = read_object(file) if file.is_file() else {}
    prompts = settings.get("prompts") or {}
    default = settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
        raise ModelError(file, "its `prompts` do not map names to texts", CORRECT)
    if default is not None and (prompt := prompts.get(str(default))):
        what = (
            f"default_prompt_name is {default!r}, but bertkit prepends prompts only to queries and documents"
        )
        raise ModelError(
            file,
            f"{what}, not {prompt!r:.60} to every text",
            "Set it to null in a copy of the model, and prepend the prompt to your own texts.",
        )
    similarity = settings.get("similarity_fn_name") or "cosine"
    size = settings.get("truncate_dim")
    if size is not None and (type(size) is not int or size < 1):
        raise ModelError(
            file, f"truncate_dim: expected a whole number from 1 on, found {size!r:.60}", CORRECT
        )
    if similarity != "cosine" and not (similarity == "dot" and unit and size is None):
        raise ModelError(
            file,
            f"similarity_fn_name is {similarity!r:.60}, but bertkit compares vectors by their cosine",
            "If the cosine suits you, set it there in a copy of the model.",
        )
    prefixes = {f"{side}_prefix": prompts[side] for side in ("query", "document") if prompts.get(side)}
    return {**prefixes, "truncate_dim": size}


def _number(text: str) -> int:
    """64 bits that equal texts share, in whatever chunk, process or run."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


V = TypeVar("V", bound=VectorOptions)


class VectorTask(Task[V]):
    """A task whose model gives each text a vector: an encoder in the layout of sentence-transformers."""

    pipeline = "feature-extraction"

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any) -> Restored:
        """What the model's sentence-transformers files state: modules, prompts, `truncate_dim` and the token
        limit.

        Mean pooling of a model without them. Raises ModelError on modules and settings that bertkit does not
        support.
        """
        from bertkit.models.heads.vector_head import read_layout

        folder = Path(str(config.name_or_path))
        stated = read_layout(folder)
        layout = stated[0]
        longest, lowercased = stated[1:]
        if lowercased and tokenizer.tokenize("A") != tokenizer.tokenize("a"):
            raise ModelError(
                folder / "sentence_bert_config.json",
                "do_lower_case is true for a case-sensitive tokenizer; bertkit does not lower-case texts",
                "Set it to false in a copy of the model, and lower-case your own texts.",
            )
        options = _sentence_transformers(folder / "config_sentence_transformers.json", unit=layout.normalize)
        return {**layout._asdict(), **options}, longest

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        """What every task checks, and whether the encoder had another layout or other prefixes."""
        from bertkit.models.heads.vector_head import read_layout

        yield from super().check(features, split)
        folder = Path(self.tokenizer.name_or_path)
        if split == "train" and (folder / "modules.json").is_file():
            with suppress(ModelError):  # a layout that bertkit does not have
                trained = read_layout(folder)[0][:3]
                if trained != self.options.layout[:3]:
                    layout = "pooling: {}, dense: {}, activation: {}".format(*trained)
                    yield warn(
                        f"the encoder was trained with {layout}", f"To keep them, write  task: {{{layout}}}"
                    )
            with suppress(ModelError):
                stated = _sentence_transformers(folder / "config_sentence_transformers.json", unit=True)
                for name in ("query_prefix", "document_prefix"):
                    if (prefix := stated.get(name, "")) and prefix != getattr(self.options, name):
                        what = f"the encoder was trained with {name} {prefix!r:.60}"
                        yield warn(what, f"To keep it, set task.{name}.")

    def describe(self) -> str:
        """The task in a few words, such as `mean pooling, dense 256, unit length`."""
        dense = f", dense {self.options.dense}" * (self.options.dense > 0)
        unit = ", unit length" * self.options.normalize
        first = f", first {self.options.kept} numbers" * (self.options.kept is not None)
        return f"{self.options.pooling} pooling{dense}{unit}{first}"

    def encode(self, rows: Dataset) -> Columns:
        return self.encode_sides(
            {name: rows[name][:] for name in self.schema.texts if name in rows.column_names}
        )

    def prefix(self, name: str) -> str:
        """What is prepended to the texts of this column, or of this side of a pair: query or document."""
        column = self.schema.columns.get(name)
        side = column.side if column else name
        return self.options.query_prefix * (side == "query") + self.options.document_prefix * (
            side == "document"
        )

    def encode_sides(self, sides: Mapping[str, Sequence[str]]) -> Columns:
        """Column -> its texts; one feature a text: the sides of a row one after the other.

        Besides the columns of `encode_texts`: `side`, from 0, and `same`, a number that equal texts share.
        """
        encoded = []
        for number, (name, texts) in enumerate(sides.items()):
            columns = encode_texts(
                self.tokenizer,
                [texts],
                max_length=self.max_length,
                overflow=self.options.overflow,
                prefix=self.prefix(name),
            )
            columns |= {"side": [number] * len(texts), "same": [_number(text) for text in texts]}
            encoded.append(columns)
        rows = range(len(encoded[0]["row"]))

        def merged(name: str) -> list[Any]:
            return [side[name][row] for row in rows for side in encoded]

        return Columns({name: merged(name) for name in encoded[0]})

    def units(self, features: Dataset) -> np.ndarray:
        """The texts of a row are trained on together."""
        return numbers(features, "row")

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        """AutoModel with the layout behind it."""
        from bertkit.models.heads.vector_head import load_with_layout

        model = load_with_layout(encoder, {}, self.options.layout, new_head=new_head)
        size = self.options.size(model.config.hidden_size)
        if self.options.dims and max(self.options.dims) > size:
            raise UserError(
                "task.dims",
                f"{max(self.options.dims)} exceeds the vector size {size}",
                "Use at most that size, or raise `dense` or `truncate_dim`.",
            )
        return model

    @property
    def sizes(self) -> Sequence[int]:
        return self.options.dims or ()

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        """The dense layer, where the model has it."""
        from bertkit.models.heads.vector_head import DENSE

        return {f"{DENSE}/model": module for name, module in model.named_children() if name == "vector_dense"}

    def extra_files(self, model: Any) -> Record:
        """What sentence-transformers reads besides the model."""
        from bertkit.models.heads.vector_head import files

        prompts = {"query": self.options.query_prefix, "document": self.options.document_prefix}
        settings: Json = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
        settings["truncate_dim"] = self.options.kept
        layout = files(self.options.layout, model.config.hidden_size, self.max_length)
        return {**layout, "config_sentence_transformers.json": settings}

    def forward(self, model: Any, batch: Batch) -> Any:
        """In training each side of a wide batch by itself: queries are not padded like their documents."""
        inputs = model_inputs(self.tokenizer, batch)
        # narrow batches are faster as a whole, and all processes need the same number of passes
        if not model.training or batch["input_ids"].shape[1] < WIDE or processes.world() > 1:
            return model(**inputs)
        import torch

        lengths = mask_of(batch).sum(1)
        rows = [torch.nonzero(batch["side"] == side)[:, 0] for side in range(3)]
        vectors = []
        for of_side in filter(len, rows):
            width = lengths[of_side].max()
            outputs = model(**{name: values[of_side, :width] for name, values in inputs.items()})
            vectors.append(outputs["vectors"])
        return {"vectors": torch.cat(vectors)[torch.cat(rows).argsort()]}

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """`pair_loss`; with `dims` its mean over prefixes of these sizes (Kusupati et al. 2022)."""
        if not self.options.dims:
            return self.pair_loss(outputs, batch)
        cut = ({**outputs, "vectors": outputs["vectors"][:, :size]} for size in self.options.dims)
        losses = [self.pair_loss(shortened, batch) for shortened in cut]
        return sum(losses[1:], losses[0]) / len(losses)

    def pair_loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Multiple-negatives ranking over anchors (or queries), positives and, where given, negatives.

        `vectors` are `(texts, size)`: the sides of a row one after the other, rows in order.
        """
        import torch

        from bertkit.models.heads import losses

        side = batch["side"]
        vectors = outputs["vectors"]
        texts = torch.cat([batch["same"][side == number] for number in range(3)])
        return losses.in_batch(
            vectors[side == 0], vectors[side == 1], vectors[side == 2], texts, self.options.scale
        )

    def count(self, batch: Batch) -> float:
        """Rows."""
        return float((batch["side"] == 0).sum())

    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """`vectors`, `(texts, size)` fp32."""
        return {"vectors": outputs["vectors"].float()}

    def decode(self, items: Sequence[Any], features: Dataset, rows: Dataset) -> list[Answer]:
        """`vector` of a text. Raises ModelError where vectors are not finite."""
        return [{"vector": vector} for vector in stacked(items).tolist()]


def stacked(items: Sequence[Any]) -> np.ndarray:
    """`(texts, size)` fp32. Raises ModelError when vectors are not finite."""
    vectors = np.stack(items)
    require_finite(np.isfinite(vectors).all(axis=1), "texts")
    return vectors
