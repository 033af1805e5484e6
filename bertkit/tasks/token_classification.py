"""Token classification: a tag for every word, and the entities that tags make, by softmax or a CRF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator

from bertkit.data import tagged, tagging, units
from bertkit.data.on_disk import column_values, numbers
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Column, Finding, Schema, note, warn
from bertkit.data.scripts import has_unspaced
from bertkit.data.table import Checked, Table, required
from bertkit.data.word_spans import Unit
from bertkit.encoding.padding import Arrays
from bertkit.encoding.word_windows import encode_words, one_per_token
from bertkit.evaluation import baselines, calibration, word_metrics
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.metrics import PER_LABEL
from bertkit.models.encoder import Encoder, classifier, load_model
from bertkit.models.heads import tagger
from bertkit.sections import Text, Texts
from bertkit.tasks import tags
from bertkit.tasks.base import (
    Baselines,
    Batch,
    HeldOut,
    OptionValues,
    Predict,
    Reduced,
    Restored,
    Task,
    TaskOptions,
    predicted,
)
from bertkit.tasks.class_labels import Temperature, Weights, weight_tensor
from bertkit.tasks.fields import PIPELINE, READ, SPAN, AnswerForm, Key, Usage, form
from bertkit.text import counted

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel

    from bertkit.models.heads.forward_backward import Chain

MANY_WINDOWS = 32  # of one text, which a CRF learns in one batch
CHAIN_LEARNING_RATE = 100.0  # of a CRF's transitions: a factor on the learning rate
SPAN_COLUMNS = ("label", "labels", "annotations", "entities")  # what others call a list of spans
_PLACE = "start and end are characters of the text, end exclusive."
TAG = Key(
    "tag", "label", str, "its tag or label; with `scheme: none`, an empty string for a word without a token"
)
OF_TAGS = Key("scores", "score", dict[str, float], optional=True)
WORD = form("Word", _PLACE, Key("word", "text", str), TAG, OF_TAGS, *SPAN, line="{word}/{tag}")
LABEL = Key("label", "label", str)
ENTITY = form("Entity", _PLACE, Key("text", "text", str), LABEL, *SPAN, line="{label} {text} ({score})")
OF_WORDS = Key("words", "span", [WORD])
OF_ENTITIES = Key("entities", "span", [ENTITY])
_OTHER = "the model learned from tokens that this text was not divided into: it was divided into words"
FLAGS = (*READ, Key("other_words", "mark", bool, _OTHER, optional=True))
WORDS = form("Words", "Words, each with its label.", OF_WORDS, *FLAGS, line="{words}")
ENTITIES = form("Entities", "Tagged words.", OF_WORDS, OF_ENTITIES, *FLAGS, line="{entities}")
# how transformers' pipeline differs, and what bertkit adds to it
_OF_ENTITIES = (
    (
        "# The best tag of each token. Entities as scored above, decoded by the CRF if there is one, need "
        "bertkit."
    ),
    "for whole words and long texts, with calibrated scores of entities",
)
_OF_PLAIN = (
    (
        "# The best label of each token; the label of a word is that of its first token. The path of a CRF "
        "needs bertkit."
    ),
    "one label for each word of texts of any length, with calibrated scores",
)


class TokenClassificationOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: inferred from the data, or fitted on validation."""

    metrics = frozenset([*word_metrics.metric_names([], "BIO"), *PER_LABEL])
    head_settings = ("dropout",)
    name: Literal["token-classification"]
    head: Literal["softmax", "crf"] = "softmax"
    """Each word by itself, or the sentence as a chain."""
    scheme: Literal["BIO", "BIOES", "none"] = "BIO"
    """Entities: the tags that the model learns; data are converted. none: a label for each word."""
    labels: Texts | None = None
    """Types of entities, their tags from O on, or labels of words, in order. null: from train."""
    tags: Annotated[list[Text], Field(min_length=2)] | None = None
    """Tags in the order of their ids. null: O, then those of each type in the scheme's order."""
    data_scheme: Literal["IO", "IOB1", "BIO", "BIOES"] | None = None
    """Of the data. null: inferred."""
    words: Unit | None = None
    """What has a tag in a text: words or characters. null: the coarsest that cuts no entity of train; or
    given, the tokens of train, where text is divided into other words."""
    alignment: Literal["strict", "expand", "contract"] = "strict"
    """Spans that cut a word: refused, expanded to whole words, or shrunk to them."""
    context: Literal["sentence", "document"] = "sentence"
    """document: adjacent sentences fill the window; the loss covers the sentence alone."""
    stride: int = Field(64, ge=0)
    """Tokens that adjacent windows of a long sentence share."""
    class_weights: Weights | None = None
    """Of types and O, or labels. auto: as scikit-learn's `balanced`."""
    temperature: Temperature = None
    """Of the tags' scores, transitions included. null: fitted on validation."""
    word_scores: bool = False
    """Each word has the `scores` of O and all types, or of all labels."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tags.check_names(self.labels, self.tags, self.scheme)
        if self.scheme == "none" and self.words == "characters":
            raise ValueError(
                "words: characters is for entities; labels are of words, or of the tokens that rows give"
            )
        return self


@final
class TokenClassification(Task[TokenClassificationOptions]):
    """Tags for words, each read at its first token (Devlin et al. 2019, section 5.3).

    The model is transformers' own `…ForTokenClassification`. With `head: crf` a linear-chain CRF (Lafferty et
    al. 2001) follows it, saved as `crf.safetensors`. A sentence longer than the window is read
    in several, each word in the one where it has most context; it is one chain all the same.
    """

    Options = TokenClassificationOptions
    name = "token-classification"
    schema = Schema(
        columns={
            "tokens": Column("words", "the words of a sentence", located=True),
            "text": Column("text", "a text, which is split into words", located=True),
            "tags": Column("tags", "one tag per word", answered="words"),
            "spans": Column("spans", "the entities of a text: start, end, label", aliases=SPAN_COLUMNS),
            "document": Column("name", "which document a sentence is from"),
        },
        inputs=(frozenset({"tokens", "text"}), frozenset({"tokens"}), frozenset({"text"})),
        targets=("tags", "spans"),
        context=("document",),
        group_columns={"document": "documents lose sentences, and splits share documents"},
    )
    forms = (WORDS, ENTITIES)
    shares_encoder = True
    pipeline = name
    no_words = "no entity, or no labelled word, was found in it, so there is nothing to explain"
    padding: ClassVar[Mapping[str, int]] = {"heads": -1, "words": -1, "ends": -1, "labels": -1}
    reduce_inputs = ("heads",)

    # --- from a recipe, or from a model not trained by bertkit

    @classmethod
    def schema_of(cls, options: TokenClassificationOptions) -> Schema:
        """The schema; with `scheme: none`, tags are labels of words, and spans are not a target."""
        if options.scheme != "none":
            return cls.schema
        columns = {name: column for name, column in cls.schema.columns.items() if name != "spans"}
        labels = columns["tags"]._replace(holds="word_labels", about="one label per word")
        return replace(cls.schema, columns={**columns, "tags": labels}, targets=("tags",))

    @classmethod
    def decide_options(
        cls, options: TokenClassificationOptions, tables: Mapping[str, Table]
    ) -> tuple[TokenClassificationOptions, list[Finding]]:
        """With `words` as the training rows need it, and `alignment: expand` where a few of their spans cut
        one.
        """
        if options.words is not None or "train" not in tables:
            return options, []
        if options.alignment != "strict" and "tokens" not in tables["train"].values:
            return options.model_copy(update={"words": "words"}), []
        table = tables["train"]
        plain = options.scheme == "none"
        if not plain and not units.has_own_units(table):
            table = cls._tagged(options, table, "train")[0]
        division = units.find_unit(table, plain=plain)
        unit, few = division[:2]
        changes = {
            "words": unit,
            **({"alignment": "expand"} if few and options.alignment == "strict" else {}),
        }
        return options.model_copy(update=changes), division[2]

    @classmethod
    def validate_rows(cls, options: TokenClassificationOptions, table: Table, split: str) -> Checked:
        """Tags in BIO for every row: converted from their scheme, or made of the spans. Labels stay as they
        are.
        """
        table, findings = cls._tagged(
            options, tagged.named_documents(table, wanted=options.context == "document"), split
        )
        if options.scheme == "none" or not (cls._has(table, "spans") or cls._in_other_units(options, table)):
            return table, findings
        table = units.as_spans(table)
        changes = list[Finding]()
        if cls._has(table, "spans"):
            table, changes = tagged.tag_spans(table, split, options.alignment, options.words or "words")
        return table, findings + changes

    @classmethod
    def _in_other_units(cls, options: TokenClassificationOptions, table: Table) -> bool:
        """Whether rows with tokens or tags have others than the model."""
        if "tokens" not in table.values or options.words == "characters":
            return options.words == "characters" or units.is_by_characters(table)
        return options.words != "given" and not units.has_own_units(table)

    @staticmethod
    def _has(table: Table, column: str) -> bool:
        return any(value is not None for value in table.values.get(column, ()))

    @classmethod
    def _tagged(cls, options: TokenClassificationOptions, table: Table, split: str) -> Checked:
        """The rows with the tags that they have in BIO, or with their labels by name."""
        if cls._has(table, "spans") or not cls._has(table, "tags"):
            return table, []
        names = options.tags or options.labels or []
        if options.data_scheme == "IO" and options.labels:
            names = ["O", *(name for name in options.labels if name != "O")]
        findings = list[Finding]()
        if "O" in names or (names and options.scheme == "none"):
            table, findings = tagged.named_tags(table, split, names)
            if options.tags:  # of the model, whose order the file need not have
                fix = "If its numbers have another order, write the tags as text."
                findings = [finding._replace(level="warn", fix=fix) for finding in findings]
        table, changes = tagged.tag_words(
            table, split, "none" if options.scheme == "none" else options.data_scheme
        )
        return table, findings + changes

    @classmethod
    def usage_of(cls, options: TokenClassificationOptions) -> Usage:
        plain = options.scheme == "none"
        settings = "" if plain else ', aggregation_strategy="first"'
        call = f'pipeline("token-classification", model="PATH_OR_HUB_ID"{settings})("your text")'
        note, adds = _OF_PLAIN if plain else _OF_ENTITIES
        return Usage(
            '"your text"',
            f"{PIPELINE}{note}\n{call}",
            f"{adds}, decoded by the CRF if there is one",
            cls.name,
        )

    @classmethod
    def infer_options(
        cls, options: TokenClassificationOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Types, tags and weights. Raises DataError on contradictions."""
        return tags.settle_tags(options, rows, class_names)

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any) -> Restored:
        """Its id2label as tags or labels, softmax, no temperature, single sentences. Raises ModelError."""
        return tags.options_of_config(config), None

    @property
    def types(self) -> list[str]:
        """Entity types, or labels of words; settled before training."""
        return self.options.labels or []

    @property
    def tags(self) -> list[str]:
        """Tags in the order of their ids."""
        return self.options.tags or []

    @property
    def plain(self) -> bool:
        """Whether tags are labels of words, which form no entities."""
        return self.options.scheme == "none"

    @property
    def crf(self) -> bool:
        """Whether a sentence is read as a chain."""
        return self.options.head == "crf"

    @property
    def answers(self) -> Sequence[AnswerForm]:
        return (WORDS if self.plain else ENTITIES,)

    @property
    def known_labels(self) -> frozenset[str] | None:
        return frozenset(self.types)

    @property
    def metrics(self) -> Sequence[str]:
        return word_metrics.metric_names(self.types, self.options.scheme)

    def describe(self) -> str:
        """Head and tags, such as `crf over BIO, 2 types: LOC, PER` or `softmax, 3 labels: ADJ, NOUN,
        VERB`.
        """
        shown = ", ".join(self.types[:10]) + (", …" if len(self.types) > 10 else "")
        around = ", document context" if self.options.context == "document" else ""
        around += ", characters" if self.options.words == "characters" else ""
        scheme, kind = ("", "labels") if self.plain else (f" over {self.options.scheme}", "types")
        return f"{self.options.head}{scheme}{around}, {len(self.types)} {kind}: {shown}"

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from super().check(features, split)
        most = int(np.unique(numbers(features, "row"), return_counts=True)[1].max())
        if most > MANY_WINDOWS and self.crf:
            yield warn(
                f"{split}: a text of {most} windows is trained as one chain, in one batch",
                "If memory runs out, use shorter texts, such as sentences.",
            )
        if cut := int(numbers(features, "cut").sum()):
            yield warn(
                f"{split}: {cut:,} entities begin or end inside a token of {self.tokenizer.name_or_path}: "
                "it cannot find them",
                "Use an encoder with finer tokens.",
            )
        if mute := int(numbers(features, "mute").sum()):
            tagged = "never labelled" if self.plain else "always O"
            yield note(
                f"{split}: {counted(mute, 'word')} without a token (zero-width or control characters): "
                f"{tagged}"
            )

    # --- rows -> features -> model

    def encode(self, rows: Dataset) -> Columns:
        texts, words = units.sentences(rows, self.unit)
        documents = None
        if self.options.context == "document" and "document" in rows.column_names:
            documents = [row if name is None else name for row, name in enumerate(rows["document"])]
        limits = {"max_length": self.max_length, "stride": self.options.stride}
        columns = encode_words(self.tokenizer, texts, words, **limits, documents=documents)
        # labels are of each word, and tokenizers of scripts with spaces rarely join words
        by_characters = self.unit == "characters"
        shared = [not self.plain and (by_characters or has_unspaced(text)) for text in texts]
        columns = one_per_token(columns, shared)
        columns["cut"] = [0] * len(columns["row"])
        if "tags" in rows.column_names:
            groups = tagger.groups_of_rows(columns, len(rows))
            pairs = zip(rows["tags"][:], groups, strict=True)
            cut = dict(enumerate(starmap(tags.cut_entities, pairs)))
            columns["cut"] = [cut.pop(row, 0) for row in columns["row"]]  # counted once, in the first window
        # A model not trained by bertkit may lack some tags: it is only scored.
        learned = set(self.tags) >= set(tagging.tag_names(self.types, self.options.scheme))
        if "tags" in rows.column_names and learned:
            columns["labels"] = tags.window_labels(rows["tags"][:], columns, self.options)
        return Columns(columns)

    def units(self, features: Dataset) -> np.ndarray:
        """All windows of a sentence are trained on together where they are one chain."""
        return numbers(features, "row") if self.crf else super().units(features)

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForTokenClassification

        model = load_model(encoder, AutoModelForTokenClassification, classifier(self.tags), new_head=new_head)
        if not self.crf:
            return model
        from bertkit.models.heads.crf import attach_chain

        return attach_chain(model, len(self.tags), None if new_head else encoder)  # type: ignore[return-value]

    @property
    def learning_rate_factors(self) -> Mapping[str, float]:
        """Transitions start at zero and are few: at the encoder's learning rate they would stay there."""
        return {"crf": CHAIN_LEARNING_RATE} if self.crf else {}

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        return {"crf": model.crf} if self.crf else {}

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each word, or a chain's negative log likelihood; `logits` are `(windows, tokens,
        tags)`.

        With class weights, a chain weighs as much as its words do on average.
        """
        from torch.nn import functional as F

        from bertkit.models.heads.crf import chain_loss

        logits = tagger.word_logits(outputs["logits"], batch).float()
        labels = batch["labels"][batch["heads"] >= 0]
        weight = self.weights(labels)
        if not self.crf:
            return F.cross_entropy(logits, labels, weight, reduction="sum", label_smoothing=label_smoothing)
        if not len(logits):
            return logits.sum()
        return chain_loss(logits, labels, weight, self.constrained(outputs["chain"]), batch)

    def loss_inputs(self, outputs: Any, batch: Batch) -> tuple[Any, Tensor] | None:
        """`logits`, `(windows, tokens, tags)`; tag ids `(windows, tokens)`, -100 but at the first token of a
        word.
        """
        if self.crf:
            return None
        heads = batch["heads"]
        window, _ = (heads >= 0).nonzero(as_tuple=True)
        labels = batch["input_ids"].new_full(batch["input_ids"].shape, -100)
        labels[window, heads[heads >= 0]] = batch["labels"][heads >= 0]
        return replace(outputs, logits=outputs.logits.float()), labels

    def constrained(self, chain: Chain) -> Chain:
        """The chain without the transitions that the scheme forbids."""
        from bertkit.models.heads import crf

        return crf.constrain(chain, self.tags, plain=self.plain)

    def count(self, batch: Batch) -> float:
        """Words, or the sum of their weights."""
        labels = batch["labels"][batch["heads"] >= 0]
        weight = self.weights(labels)
        return float(len(labels)) if weight is None else float(weight[labels].sum())

    def weights(self, like: Tensor) -> Tensor | None:
        """Class weights `(tags,)`, on the device of `like`; None where all count the same."""
        return weight_tensor(
            self.options.class_weights, [tags.type_of(tag, self.options.scheme) for tag in self.tags], like
        )

    # --- outputs -> answers -> scores

    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """`emissions`, `words` and a chain's `transitions`, `start` and `end`; see `reduced_words`."""
        from bertkit.models.heads.crf import reduced_words

        return reduced_words(outputs, batch, crf=self.crf)

    def extra_outputs(self, reduced: Reduced) -> Reduced:
        """`tags` and `scores`, `(windows, words)`: the most probable tag and its probability; nothing for a
        CRF.
        """
        if self.crf:  # its best path is added by `bertkit.exports.viterbi`
            return {}
        best = (reduced["emissions"] / (self.options.temperature or 1)).softmax(-1).max(-1)
        return {"tags": best.indices, "scores": best.values}

    def items(self, arrays: Arrays) -> Sequence[tagger.Emissions]:
        return tagger.window_emissions(arrays, len(self.tags), crf=self.crf)

    def decode(self, items: Sequence[tagger.Emissions], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `words`, each a {word, tag, start, end, score}; unless the scheme is none,
        `entities`, each a {text, label, start, end, score}; and `truncated`, which is never true. Words have
        `scores` if the options say so; `other_words` is there where a model that learned from tokens was
        given a text.

        start, end: characters of the row's text; of its words joined by spaces, where it has no text. A
        word's score is the posterior of its tag; an entity's is that of its words' tags together, and of
        ending there: with a CRF, of exactly this entity. Raises ModelError when the model's outputs are not
        finite.
        """
        texts, words = units.sentences(rows, self.unit)
        _, scores = tagger.words_of_rows(items, features, len(rows), len(self.tags))
        temperature = self.options.temperature or 1.0
        best = tagger.decode_tags(scores, items[0].chain, self.tags, temperature, plain=self.plain)
        groups = tagger.groups_of_rows(features, len(rows))
        flags = (
            {"other_words": True}
            if self.options.words == "given" and "tokens" not in rows.column_names
            else {}
        )
        parts = zip(texts, words, groups, best, strict=True)
        return [{**tags.as_answer(*sentence, self.options), **flags} for sentence in parts]

    def fit(self, rows: Dataset, predict: Predict) -> OptionValues:
        """The temperature that makes the gold tags' posteriors most likely, where it is left open."""
        if self.options.temperature is not None:
            return {}
        scores = list[np.ndarray]()
        words = list[list[int]]()
        chain = None
        for items, features, part in predicted(self, rows, predict):
            part_words, part_scores = tagger.words_of_rows(items, features, len(part), len(self.tags))
            scores += part_scores
            words += part_words
            chain = items[0].chain
        gold = tags.tag_ids(rows["tags"][:], words, self.options)

        def decide(temperature: float) -> calibration.BinaryDecisions:
            posteriors = tagger.gold_posteriors(scores, gold, chain, self.tags, temperature, plain=self.plain)
            return calibration.BinaryDecisions.of(posteriors)

        return {"temperature": calibration.best_temperature(decide)}

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> Graded:
        gold = column_values(rows, required(rows, "tags"))
        temperature = self.options.temperature or 1.0
        entities = tagged.given_entities(rows, self.unit)
        return word_metrics.graded(gold, answers, self.types, self.options.scheme, temperature, entities)

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """`lookup`: every word gets the tag that it most often had in train."""
        train = baselines.enough(train)
        seen = units.words_of(train, self.unit), train["tags"][:]
        new = units.words_of(rows, self.unit), rows["tags"][:]
        return {
            "lookup": word_metrics.lookup(
                seen, new, self.types, self.options.scheme, tagged.given_entities(rows, self.unit)
            )
        }

    @property
    def unit(self) -> Unit:
        return "given" if self.plain else self.options.words or "words"
