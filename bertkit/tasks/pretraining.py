"""Pretraining: masked words and next sentences, from nothing or from a checkpoint, on documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, final

import numpy as np
from pydantic import Field

from bertkit.cache import cache_root
from bertkit.data.on_disk import numbers
from bertkit.data.schema import Answer, Column, Finding, Schema, note, warn
from bertkit.encoding.padding import Arrays, model_inputs
from bertkit.errors import DataError, require_finite
from bertkit.evaluation import pretraining_metrics
from bertkit.evaluation.graded import Scored
from bertkit.evaluation.pretraining_metrics import COUNTED
from bertkit.models.bert.masking import Masking, Pairs, fewer_masks
from bertkit.models.encoder import Encoder
from bertkit.sections import Section
from bertkit.tasks.base import Baselines, Batch, HeldOut, OptionValues, Reduced, Restored, Task, TaskOptions
from bertkit.tasks.fields import PIPELINE, SCORE, Key, Usage, form
from bertkit.tasks.masks import GUESSES, BestTokens, MaskedItem, filled
from bertkit.text import counted

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel


Share = Annotated[float, Field(gt=0, lt=1)]

ID = Key("id", "number", int, "in the vocabulary")
TOKEN = form("Token", "A token for a mask.", Key("token", "text", str), ID, SCORE, line="{token} {score}")
OF_MASKS = Key("masks", "set", [[TOKEN]])
FILLED = form(
    "Filled",
    "A text with its masks filled.",
    Key("filled", "text", str),
    OF_MASKS,
    line="{filled}  ({masks})",
)
MASKED_LOSS = form(
    "MaskedLoss",
    "What was masked in a document and how much of it the model predicted; the loss is a sum in nats.",
    *(Key(name, "number", int) for name in ("masked", "right", "pairs", "pairs_right")),
    Key("loss", "number", float),
)


class MaskSchedule(Section):
    """A share of masked tokens that changes linearly in the course of the training."""

    start: Share
    """Share of tokens to predict when the training begins."""
    end: Share
    """Share when it ends, and in evaluation."""


class PretrainingOptions(TaskOptions):
    """What a recipe may say under `task:`."""

    metrics = frozenset({"mlm_accuracy", "nsp_accuracy"})
    name: Literal["pretraining"]
    nsp: Pairs = "nsp"
    """Second segment: from another document half the time; or none."""
    mask_probability: Share | MaskSchedule = 0.15
    """Share of tokens to predict; `{start: …, end: …}`: changing linearly."""
    whole_word: bool = False
    """Mask all tokens of a word or none."""
    short_sequences: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of examples that are made shorter than max_length on purpose."""


@final
class Pretraining(Task[PretrainingOptions]):
    """BERT's two objectives (Devlin et al. 2019, section 3.1).

    Masks and pairs are sampled again in each epoch, as a pure function of (seed, epoch, example); evaluation
    samples once. The vocabulary's logits are computed at masked positions only. A text that holds the mask
    token is not scored but filled.
    """

    Options = PretrainingOptions
    name = "pretraining"
    schema = Schema(
        columns={"text": Column("text", "a document")},
        inputs=(frozenset({"text"}),),
        targets=("text",),
        corpus=True,
        special_tokens=True,  # `encode` splits all but the mask
    )
    forms = (FILLED, MASKED_LOSS)
    pipeline = "fill-mask"
    no_graph = "which tokens are predicted depends on the masks", "Fine-tune the model, and export that run."
    usage = Usage(
        '"A text with one [MASK] in it."',
        f'{PIPELINE}pipeline("fill-mask", model="PATH_OR_HUB_ID")("A text with one [MASK] in it.")',
        "for texts with any number of masked words, and with the scores of whole documents",
        pipeline,
    )
    chunk_size = 256
    padding: ClassVar[Mapping[str, int]] = {"labels": -100, "mask_order": 0}

    # --- from a recipe, or from a model not trained by bertkit

    @classmethod
    def infer_options(
        cls, options: PretrainingOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Raises DataError where next sentences need a second document."""
        if options.nsp == "nsp" and len(rows) < 2:
            raise DataError(
                "task.nsp",
                "nsp takes sentences from another document, but there is only one",
                "Add documents, or set task.nsp: none.",
            )
        return {}

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any) -> Restored:
        """NSP where its checkpoint was trained with it, masks of 15 %."""
        return {"nsp": "nsp" if "BertForPreTraining" in (config.architectures or []) else "none"}, None

    @property
    def metrics(self) -> Sequence[str]:
        return ["mlm_accuracy"] if self.options.nsp == "none" else ["mlm_accuracy", "nsp_accuracy"]

    def describe(self) -> str:
        """The objectives in words, such as `masked tokens (15 %), next sentences`."""
        pairs = ", next sentences" * (self.options.nsp == "nsp")
        kind = "whole words" if self.options.whole_word else "tokens"
        start, end = self._mask_rates
        share = f"{end:.0%}" if start == end else f"{start:.0%} to {end:.0%}"
        return f"masked {kind} ({share}){pairs}"

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        """How many examples there are, and how full they are."""
        lengths = numbers(features, "length")
        rows = numbers(features, "row")
        if not len(lengths):
            yield Finding("fail", f"{split}: no document has two tokens", "Add longer texts.")
            return
        size = f"{counted(len(lengths), 'example')}, {counted(int(lengths.sum()), 'token')}"
        yield note(f"{split}: {size}, {lengths.mean() / self.max_length:.0%} full")
        if short := int(rows.max()) + 1 - len(np.unique(rows)):
            yield warn(f"{split}: {counted(short, 'document')} of fewer than two tokens left out")
        if self.options.nsp == "nsp" and rows.min() == rows.max():
            yield warn(
                f"{split}: one document, so every pair is real: nsp_accuracy says nothing", "Add documents."
            )
        if cut := int((numbers(features, "lost") > 0).sum()):
            yield warn(
                f"{split}: {counted(cut, 'text')} with given masks, truncated at {self.max_length} tokens",
                "Raise model.max_length.",
            )

    # --- rows -> features -> model

    def encode(self, rows: Dataset) -> Dataset:
        """Documents -> chunks of sentences, without special tokens; see `encode_documents`."""
        from bertkit.data.corpus import DOCUMENTS
        from bertkit.models.bert.pretraining_data import encode_documents

        fields = self.options.model_dump(include={"nsp", "short_sequences"})
        cache = None
        if len(rows) > self.chunk_size:  # a Dataset
            files = [
                Path(file["filename"]) for file in rows.cache_files if file["filename"].endswith(DOCUMENTS)
            ]
            # in which data.corpus has folders of splits
            cache = files[0].parents[2] if files else cache_root()
        return encode_documents(rows, self.tokenizer, self.max_length, cache=cache, **fields)

    def features(self, rows: Dataset) -> Dataset:
        """They are on disk already."""
        return self.encode(rows)

    def examples(
        self, features: Dataset, indices: Sequence[int], draw: tuple[int, int] | None = None
    ) -> dict[str, list[Any]]:
        """Pairs with masks, sampled by (seed, epoch), at the highest share of a schedule; alike in all
        evaluations.
        """
        evaluating, training = self._masking
        return (training if draw else evaluating)(features, indices, *(draw or (0, 0)))

    def scheduled(self, batch: Batch, progress: float) -> Batch:
        """Fewer tokens masked, by the schedule of `mask_probability`."""
        start, end = self._mask_rates
        return batch if start == end else fewer_masks(batch, start + (end - start) * progress)

    def __post_init__(self) -> None:
        """Raises ModelError on a tokenizer without masks."""
        assert self._masking

    @cached_property
    def _masking(self) -> tuple[Masking, Masking]:
        """The random part of an example, in evaluation and in training."""
        start, end = self._mask_rates
        fields = self.options.model_dump(include={"nsp", "whole_word"})
        masking = partial(Masking, self.tokenizer, **fields)
        highest = masking(mask_probability=max(start, end), keep_order=start != end)
        return masking(mask_probability=end), highest

    @property
    def _mask_rates(self) -> tuple[float, float]:
        """The share of masked tokens when a training begins, and when it ends."""
        rate = self.options.mask_probability
        return (rate.start, rate.end) if isinstance(rate, MaskSchedule) else (rate, rate)

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        """Our BERT where the encoder is one; else transformers' masked language model, which knows no
        pairs.
        """
        from bertkit.models.bert.bert import load_for_pretraining

        return load_for_pretraining(encoder, pairs=self.options.nsp != "none", new_head=new_head)

    def forward(self, model: Any, batch: Batch) -> Any:
        """Outputs whose vocabulary logits are those of the chosen positions, `(chosen, vocab)`."""
        from transformers import PreTrainedModel

        from bertkit.models.new_config import MODEL_TYPE

        inputs = model_inputs(self.tokenizer, batch)
        chosen = self.chosen(batch)
        # within DDP or LoRA
        alone = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
        if alone.config.model_type == MODEL_TYPE:
            return model(**inputs, position=chosen)

        def choose(encoder: Any, args: Any, states: Any) -> Any:
            """What the head reads of the encoder's outputs: `(1, chosen, hidden)` instead of all
            positions.
            """
            states.last_hidden_state = states.last_hidden_state[chosen][None]
            return states

        with alone.base_model.register_forward_hook(choose):
            outputs = model(**inputs)
        outputs.prediction_logits = outputs.logits[0]
        return outputs

    def chosen(self, batch: Batch) -> Tensor:
        """Where something is to be predicted, `(batch, length)`: masked by us, or by the user."""
        return (batch["labels"] != -100).logical_or(batch["input_ids"] == self.tokenizer.mask_token_id)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of the masked tokens and of the pairs, `(1,)` or `(2,)`: their means are added up."""
        import torch
        from torch.nn import functional as F

        logits = outputs.prediction_logits.float()
        labels = batch["labels"][self.chosen(batch)]
        words = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
        if self.options.nsp == "none":
            return words[None]
        pairs = outputs.seq_relationship_logits.float()
        next_sentence = batch["next_sentence_label"]
        return torch.stack([words, F.cross_entropy(pairs, next_sentence, reduction="sum")])

    def count(self, batch: Batch) -> tuple[float, ...]:
        """Masked tokens; pairs."""
        targets = ("labels",) if self.options.nsp == "none" else ("labels", "next_sentence_label")
        return tuple(float((batch[name] != -100).sum()) for name in targets)

    # --- outputs -> answers -> scores

    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """`counts`, and for each mask of the user its `feature` and best `pieces` with their `probabilities`.

        outputs: `prediction_logits`, `(chosen, vocab)`, and the pairs', `(features, 2)`.
        """
        import torch
        from torch.nn import functional as F

        chosen = self.chosen(batch)
        feature = chosen.nonzero()[:, 0]
        labels = batch["labels"][chosen]
        logits = outputs.prediction_logits.float()
        counts = torch.zeros(len(chosen), len(COUNTED), device=logits.device)
        sampled = labels != -100  # masks of the user have no label
        right = (logits.argmax(-1) == labels).float()
        losses = F.cross_entropy(logits, labels, reduction="none")
        per_token = torch.stack([sampled.float(), right, losses], 1)
        counts[:, :3] = counts[:, :3].index_add(0, feature[sampled], per_token[sampled])
        next_sentence = batch.get("next_sentence_label")
        if next_sentence is not None and "seq_relationship_logits" in outputs:
            counts[:, 3] = (next_sentence != -100).float()
            counts[:, 4] = (outputs.seq_relationship_logits.argmax(-1) == next_sentence).float()
        best = logits[~sampled].softmax(-1).topk(min(GUESSES, logits.shape[-1]))
        user_masks = {"feature": feature[~sampled], "pieces": best.indices, "probabilities": best.values}
        return {"counts": counts, **user_masks}

    def items(self, arrays: Arrays) -> Sequence[MaskedItem]:
        rows = [MaskedItem(row, []) for row in arrays["counts"]]
        user_masks = zip(
            *(arrays[name].tolist() for name in ("feature", "pieces", "probabilities")), strict=True
        )
        for index, pieces, probabilities in user_masks:
            rows[index].guesses.append((pieces, probabilities))
        return rows

    def decode(self, items: Sequence[MaskedItem], features: Dataset, rows: Dataset) -> list[Answer]:
        """Per document counts of masked tokens and pairs, right ones, and the summed loss in nats; or, for a
        text with masks, `masks` (the best tokens of each, with probabilities) and the `filled` text. Raises
        ModelError.
        """
        sums = np.zeros((len(rows), len(COUNTED)))
        guesses = dict[int, list[BestTokens]]()
        for row, item in zip(features["row"][:], items, strict=True):
            sums[row] += item.counts
            if item.guesses:
                guesses[row] = item.guesses
        require_finite((np.isfinite(row).all() for row in sums), "documents")
        return [
            filled(text, guesses.get(row, ()), self.tokenizer)
            if str(self.tokenizer.mask_token) in text
            else _counts(sums[row])
            for row, text in enumerate(rows["text"])
        ]

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> Scored:
        return pretraining_metrics.scored(answers, pairs=self.options.nsp != "none")

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """Unigrams: the most frequent token everywhere, and the perplexity of train's frequencies."""
        held_out = self.encode(rows)
        sampled = self.examples(held_out, range(min(len(held_out), pretraining_metrics.SAMPLE)))
        return pretraining_metrics.unigrams(self.encode(train), sampled["labels"], len(self.tokenizer))


def _counts(sums: np.ndarray) -> Answer:
    """A document's sums by name, whole numbers but for the loss."""
    by_name = zip(COUNTED, sums.tolist(), strict=True)
    return {name: value if name == "loss" else int(value) for name, value in by_name}
