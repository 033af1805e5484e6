"""Text to text: translation, simplification, correction, summaries; an encoder–decoder Transformer of two
BERTs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from pydantic import Field

from bertkit.data.on_disk import numbers
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Column, Finding, Schema, weighed
from bertkit.data.table import required
from bertkit.encoding.padding import mask_of
from bertkit.encoding.pieces import tokenize
from bertkit.encoding.texts import encode_texts, length_findings
from bertkit.errors import ModelError, RecipeError, extras_required, require_finite
from bertkit.evaluation import translation
from bertkit.evaluation.baselines import enough
from bertkit.evaluation.translation import Translations
from bertkit.models.encoder import Encoder
from bertkit.sections import Section
from bertkit.tasks.base import Baselines, Batch, HeldOut, OptionValues, Reduced, Task, TaskOptions
from bertkit.tasks.fields import READ, Key, Usage, form
from bertkit.text import Json, part_of

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedModel

IGNORED = -100  # the label of padding

FINISHED = Key("finished", "mark", bool, "it ended before the limit of generated tokens")
GENERATED = form(
    "Generated", "A text generated from the source.", Key("generated_text", "text", str), FINISHED, *READ
)


class Generation(Section):
    """How answers are generated; names are those of transformers' GenerationConfig."""

    max_new_tokens: int | None = Field(None, ge=1)
    """Tokens of the longest answer; null: 64, or model.max_length if that is lower."""
    num_beams: int = Field(1, ge=1, le=100)
    """Beams of the beam search; 1 is greedy."""


class Text2TextGenerationOptions(TaskOptions):
    """What a recipe may say under `task:`."""

    metrics = frozenset(translation.METRICS)
    name: Literal["text2text-generation"]
    generation: Generation = Generation()
    """How answers are generated."""


@final
class Text2TextGeneration(Task[Text2TextGenerationOptions]):
    """A target text from a source text (Vaswani et al. 2017), trained on the tokens of the target one after
    another.

    The model is transformers' EncoderDecoderModel of two BERTs. With labels `forward` scores the target, and
    without them it generates one, so that `reduce` keeps the ids of the answer and `decode` only spells them.
    """

    Options = Text2TextGenerationOptions
    name = "text2text-generation"
    schema = Schema(
        columns={
            "text": Column("text", "the source"),
            "target": Column("text", "the text to be generated from it", shown=False),
        },
        inputs=(frozenset({"text"}),),
        targets=("target",),
    )
    forms = (GENERATED,)
    pipeline = name
    no_graph = "each token is computed from those before it", "Predict and serve it with torch."
    # its tag is one that transformers 5 has no pipeline for; the Hub lists such models by their others
    usage = Usage(
        '"your text"',
        """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("PATH_OR_HUB_ID")
tokenizer = AutoTokenizer.from_pretrained("PATH_OR_HUB_ID")
inputs = tokenizer("your text", return_tensors="pt", return_token_type_ids=False)
tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)""",
        "the same text, with a mark on a source or an answer that was cut",
    )
    chunk_size = 1024
    padding: ClassVar[dict[str, int]] = {"labels": IGNORED}

    def __post_init__(self) -> None:
        """Raises RecipeError on answers longer than the model's positions, ModelError on a tokenizer without
        ends.
        """
        longest = self.generation["max_new_tokens"]
        if longest > self.max_length:
            raise RecipeError(
                "task.generation.max_new_tokens",
                f"{longest} tokens, but the model generates at most {self.max_length}",
                "Lower it, or raise model.max_length.",
            )
        if self.tokenizer.cls_token_id is None or self.tokenizer.sep_token_id is None:
            raise ModelError(
                "model.name",
                "the tokenizer has no [CLS] or no [SEP] token",
                "Use a BERT.",
            )

    @property
    def generation(self) -> Json:
        """What transformers' `generate` is called with."""
        options = self.options.generation
        return {**options.model_dump(), "max_new_tokens": options.max_new_tokens or min(64, self.max_length)}

    # --- from a recipe, or from a model not trained by bertkit

    @classmethod
    def infer_options(
        cls, options: Text2TextGenerationOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Nothing. Raises UserError where sacrebleu is not installed."""
        with extras_required():
            import sacrebleu  # noqa: F401
        return {}

    def describe(self) -> str:
        """The task in a few words, such as `texts of at most 64 tokens, greedy`."""
        beams = self.options.generation.num_beams
        how = "greedy" if beams == 1 else f"{beams} beams"
        return f"texts of at most {self.generation['max_new_tokens']} tokens, {how}"

    @property
    def metrics(self) -> Sequence[str]:
        return translation.METRICS

    # --- rows -> features -> model -> loss

    def encode(self, rows: Dataset) -> Columns:
        """Sources as the tokenizer's inputs, cut at the end; `labels`, the tokens of the target and [SEP]."""
        columns = encode_texts(self.tokenizer, [rows["text"][:]], max_length=self.max_length)
        if "target" in rows.column_names:
            targets = [encoding.ids for encoding in tokenize(self.tokenizer, rows["target"][:])]
            room = self.max_length - 1
            columns["labels"] = [[*ids[:room], self.tokenizer.sep_token_id] for ids in targets]
            columns["target_length"] = [len(ids) for ids in columns["labels"]]
            columns["lost_target"] = [max(len(ids) - room, 0) for ids in targets]
            spelled = zip(self.spelled(targets), rows["target"][:], strict=True)
            columns["misspelled"] = [text.split() != target.split() for text, target in spelled]
        return Columns(columns)

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        """Lengths of the sources, what of the targets is cut, and what the tokenizer cannot spell."""
        yield from length_findings(features, split, self.max_length, has_windows=False)
        if "lost_target" not in features.column_names:
            return
        rows = len(features)
        most = self.generation["max_new_tokens"]
        for column, largest, what, remedy in (
            ("lost_target", 0, f"truncated at {self.max_length} tokens", "Raise model.max_length."),
            (
                "target_length",
                most + 1,  # with [SEP]
                f"longer than any answer, which has at most {most} tokens",
                "Raise task.generation.max_new_tokens.",
            ),
            (
                "misspelled",
                0,
                "changed by the tokenizer, so that no answer can equal them",
                "Train a byte-level tokenizer, which spells any text.",
            ),
        ):
            if count := int((numbers(features, column) > largest).sum()):
                yield weighed(count, rows, f"{split}: {part_of(count, rows, 'target')} {what}", remedy)

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        """An encoder–decoder as it was saved, or both halves from one BERT (Rothe et al. 2020)."""
        from bertkit.models.bert.warm_start import encoder_decoder

        start = int(self.tokenizer.cls_token_id)
        end = int(self.tokenizer.sep_token_id)
        model = encoder_decoder(encoder, start=start, end=end, new_head=new_head)
        saved: Any = model.generation_config  # so that transformers answers alike
        saved.update(**self.generation)
        return model

    def forward(self, model: Any, batch: Batch) -> Any:
        """With labels the logits of the target, `(tokens, vocab)`; else generated ids, `(texts, length)`."""
        from accelerate.utils.other import extract_model_from_parallel

        from bertkit.models.bert.transformer import generate, shift_right

        inputs = {"input_ids": batch["input_ids"], "attention_mask": mask_of(batch)}
        alone = extract_model_from_parallel(model)
        if "labels" in batch:
            shifted = shift_right(batch["labels"], alone.config)
            return model(**inputs, decoder_input_ids=shifted, position=batch["labels"] != IGNORED)
        return generate(alone, inputs, self.generation)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the target tokens and [SEP], with smoothed labels (Vaswani et al. 2017,
        section 5.4).
        """
        from torch.nn import functional as F

        outputs, labels = self.loss_inputs(outputs, batch)
        return F.cross_entropy(outputs.logits, labels, reduction="sum", label_smoothing=label_smoothing)

    def loss_inputs(self, outputs: Any, batch: Batch) -> tuple[Any, Tensor]:
        """`logits`, `(tokens, vocabulary)`; the ids of the target's tokens and [SEP] of all rows,
        `(tokens,)`.
        """
        return replace(outputs, logits=outputs.logits.float()), batch["labels"][batch["labels"] != IGNORED]

    def count(self, batch: Batch) -> float:
        """Target tokens, [SEP] included."""
        return float((batch["labels"] != IGNORED).sum())

    # --- outputs -> answers -> scores

    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """`tokens`, `(features, tokens)`: the generated ids; -1 where the outputs are not finite."""
        return {"tokens": outputs}

    def decode(self, items: Sequence[Any], features: Dataset, rows: Dataset) -> list[Answer]:
        """Per row `generated_text`; `finished`: it ended before `max_new_tokens`."""
        require_finite(item.min() >= 0 for item in items)
        end = self.tokenizer.sep_token_id
        answers = [item.tolist() for item in items]
        return [
            {"generated_text": text, "finished": end in ids}
            for text, ids in zip(self.spelled(answers), answers, strict=True)
        ]

    def spelled(self, ids: list[list[int]]) -> list[str]:
        """The texts of these tokens, without special ones."""
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> Translations:
        required(rows, "target")
        unfinished = sum(not answer["finished"] for answer in answers)
        return Translations([answer["generated_text"] for answer in answers], rows["target"][:], unfinished)

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """The source itself; the target of the nearest source of train."""
        train = enough(train)
        return translation.baselines(train["text"][:], train["target"][:], rows["text"][:], rows["target"][:])
