"""Token classification: a tag for every word, and the entities that they make, by softmax or a CRF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, final

from pydantic import Field, ValidationError, model_validator

from bertkit.data import tagged, tagging
from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.table import column_values, numbers
from bertkit.encoding.words import encode_words
from bertkit.errors import DataError, ModelError, Problem
from bertkit.evaluation import baselines as simple
from bertkit.evaluation import calibration, entities
from bertkit.evaluation.hf_metrics import compute_user_metric
from bertkit.models.encoder import load_extra_module, load_model
from bertkit.models.heads.tagger import decode_tags, spread, tag_log_likelihood
from bertkit.tasks.base import Batch, Predict, Task, TaskOptions
from bertkit.tasks.labels import length_findings, settle_weights
from bertkit.text import counted

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.data.table import Table
    from bertkit.encoding.padding import Arrays
    from bertkit.models.encoder import Encoder
    from bertkit.models.heads.crf import Chain

Name = Annotated[str, Field(min_length=1)]
MANY_WINDOWS = 32  # of one text: a CRF learns them in one batch


class TokenClassificationOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: found from the data, or fitted on validation."""

    metrics: ClassVar[frozenset[str]] = frozenset(
        {
            *("f1", "precision", "recall", "f1_strict", "precision_strict", "recall_strict", "f1_macro", "accuracy"),
            *("f1/", "precision/", "recall/"),
        }
    )
    name: Literal["token-classification"]
    head: Literal["softmax", "crf"] = Field("softmax", description="Each word by itself, or the sentence as a chain.")
    scheme: Literal["BIO", "BIOES"] = Field("BIO", description="The tags that the model learns; data are converted.")
    labels: Annotated[list[Name], Field(min_length=1)] | None = Field(
        None, description="Types of entities, in order. null: found in train."
    )
    tags: Annotated[list[Name], Field(min_length=2)] | None = Field(
        None, description="Tags in the order of their ids. null: O, then those of each type in the scheme's order."
    )
    data_scheme: Literal["IOB1", "BIO", "BIOES"] | None = Field(None, description="Of the data. null: seen from them.")
    alignment: Literal["strict", "expand", "contract"] = Field(
        "strict", description="Spans that cut a word: refused, grown to whole words, or shrunk to them."
    )
    context: Literal["sentence", "document"] = Field(
        "sentence", description="document: neighbouring sentences fill the window; the loss is the sentence's own."
    )
    stride: int = Field(64, ge=0, description="Word pieces that windows of a long sentence share.")
    class_weights: Literal["auto"] | dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None, description="Weights of the types and of O. auto: n / (classes * count), as scikit-learn's `balanced`."
    )
    constrained: bool = Field(True, description="crf: are forbidden transitions forbidden in training too?")
    chain_learning_rate: float = Field(100.0, gt=0, description="crf: of the transitions, times the learning rate.")
    temperature: Annotated[float, Field(ge=1e-3)] | None = Field(
        None, description="Of the tags' scores, transitions included. null: fitted on validation."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what, names in (("labels", self.labels or []), ("tags", self.tags or [])):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{what}: {', '.join(twice)} more than once")
        known = tagging.tag_names(self.labels, self.scheme) if self.labels else None
        if self.tags and ("O" not in self.tags or (known and not set(self.tags) <= set(known))):
            raise ValueError(f"tags must be O and {self.scheme} tags of the labels, such as B-LOC")
        return self


class Emissions(NamedTuple):
    """What is kept of a window: the scores of the words that it owns, and the chain they stand in."""

    scores: np.ndarray  # (words, tags) fp32
    chain: tuple[np.ndarray, ...] | None  # transitions, start, end; None: every word for itself


@final
@dataclass(frozen=True)
class TokenClassification(Task):
    """Tags for words, each read at its first word piece (Devlin et al. 2019, section 5.3).

    The model is transformers' own `…ForTokenClassification`. With `head: crf` a linear-chain CRF (Lafferty et
    al. 2001) stands behind it, saved beside it as `crf.safetensors`. A sentence longer than the window is read
    in several, each word in the one where it has most context; it is one chain all the same.
    """

    Options: ClassVar[type[TaskOptions]] = TokenClassificationOptions
    name: ClassVar[str] = "token-classification"
    schema: ClassVar[Schema] = Schema(
        columns={
            "tokens": Column("words", "the words of a sentence"),
            "text": Column("text", "a text, whose words are found"),
            "tags": Column("tags", "one tag per word"),
            "spans": Column("spans", "the entities of a text: start, end, label"),
            "document": Column("name", "which document a sentence is from"),
        },
        inputs=(frozenset({"tokens"}), frozenset({"text"})),
        targets=("tags", "spans"),
        context=("document",),
        group_columns={"document": "documents lose sentences, and splits share documents"},
    )
    padding: ClassVar[Mapping[str, int]] = {"heads": -1, "words": -1, "labels": -1}
    reduce_inputs: ClassVar[Sequence[str]] = ("heads",)

    options: TokenClassificationOptions
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    # --- before there is a model

    @classmethod
    def refine(cls, options: TokenClassificationOptions, table: Table, split: str) -> tuple[Table, list[Finding]]:
        """Tags in BIO for every row: converted from their scheme, or made of the spans."""
        table = tagged.named_documents(table, wanted=options.context == "document")
        if any(value is not None for value in table.values.get("spans", ())):
            return tagged.tag_spans(table, split, options.alignment)
        if any(value is not None for value in table.values.get("tags", ())):
            return tagged.tag_words(table, split, options.data_scheme)
        return table, []

    @classmethod
    def prepare(
        cls,
        options: TokenClassificationOptions,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        rows: Dataset,
        class_names: Sequence[str],
    ) -> Self:
        """Settle types, tags and weights from the training rows. Raises DataError on contradictions."""
        found = [type_ for tags in rows["tags"] for type_, _, _ in tagging.entities(tags)]
        named = list(dict.fromkeys(name.partition("-")[2] for name in class_names if "-" in name))
        types = options.labels or named or sorted(set(found))
        if not types:
            raise DataError(Problem("data", "no row of train has an entity: there is nothing to learn"))
        if unknown := sorted(set(found) - set(types)):
            what = f"train has entities that task.labels does not name: {', '.join(unknown[:10])}"
            raise DataError(Problem("task.labels", what, f"It names {', '.join(types)}; add them, or leave it out."))
        if odd := [kind for kind in types if kind == "O" or kind != kind.strip() or not kind.isprintable()]:
            what = (
                f"{', '.join(map(repr, odd))} can be no type of entity: O means none, and blanks at the ends are lost"
            )
            raise DataError(Problem("labels", what, "Rename it in the data."))
        if options.context == "document" and "document" not in rows.column_names:
            what = "context: document needs to know which sentences belong together"
            raise DataError(Problem("task.context", what, "Map a column `document`, or add -DOCSTART- lines."))
        tags = options.tags or tagging.tag_names(types, options.scheme)
        if wrong := sorted(set(tagging.tag_names(types, options.scheme)) ^ set(tags)):
            what = f"{options.scheme} tags of {', '.join(types)} are needed; missing or too many: {', '.join(wrong)}"
            raise DataError(Problem("task.tags", what, "Leave it out, or write them all."))
        counts = Counter(tag.partition("-")[2] or "O" for row in rows["tags"] for tag in row)
        auto = {n: counts.total() / ((len(types) + 1) * max(counts[n], 1)) for n in ["O", *types]}
        settled = {
            "labels": types,
            "tags": tags,
            "class_weights": settle_weights("class_weights", options.class_weights, auto),
        }
        return cls(options.model_copy(update=settled), tokenizer, max_length)

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Self:
        """Defaults for a foreign model: its id2label as tags, softmax, no temperature, single sentences.

        Raises ModelError where its labels are no tags of entities.
        """
        tags = [str(name) for _, name in sorted((config.id2label or {}).items())]
        try:
            scheme = tagging.find_scheme([[tag] for tag in tags])
        except ValueError as error:
            what = f"its labels are not tags such as O, B-LOC, I-LOC: {error}"
            raise ModelError(Problem("config.json, id2label", what)) from error
        if scheme == "BIOES":  # by BILOU's letters, perhaps
            tags = [{"L": "E", "U": "S"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
        types = list(dict.fromkeys(tag.partition("-")[2] for tag in tags if tag != "O"))
        if "O" not in tags or not types:
            raise ModelError(
                Problem("config.json, id2label", f"its labels are {', '.join(tags[:10])}, with no O, or O alone")
            )
        options = {"name": cls.name, "labels": types, "tags": tags, "scheme": "BIOES" if scheme == "BIOES" else "BIO"}
        try:
            return cls(TokenClassificationOptions.model_validate(options), tokenizer, max_length)
        except ValidationError as error:
            what = f"its labels are no set of tags: {error.errors()[0]['msg']}"
            raise ModelError(Problem("config.json, id2label", what)) from error

    @property
    def types(self) -> list[str]:
        """Types of entities; settled since `prepare`."""
        return self.options.labels or []

    @property
    def tags(self) -> list[str]:
        """Tags in the order of their ids; settled since `prepare`."""
        return self.options.tags or []

    @property
    def known_labels(self) -> frozenset[str] | None:
        return frozenset(self.types)

    @property
    def headline(self) -> str:
        return "f1"

    @property
    def emits(self) -> Sequence[str]:
        return entities.metric_names(self.types)

    def describe(self) -> str:
        """Such as `crf over BIO, 4 types: LOC, MISC, ORG, PER`."""
        shown = ", ".join(self.types[:10]) + (", …" if len(self.types) > 10 else "")
        around = ", document context" if self.options.context == "document" else ""
        return f"{self.options.head} over {self.options.scheme}{around}, {len(self.types)} types: {shown}"

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        import numpy as np

        yield from length_findings(features, split, self.max_length, "window")
        most = int(np.unique(numbers(features, "row"), return_counts=True)[1].max())
        if most > MANY_WINDOWS and self.options.head == "crf":
            what = f"{split}: a text of {most} windows is learned as one chain, in one batch"
            yield Finding("warn", what, "If memory runs out, give shorter texts, such as sentences.")
        mute = int(numbers(features, "mute").sum())
        if mute:
            what = f"{split}: {counted(mute, 'word')} of no word piece (zero-width or control characters): O, always"
            yield Finding("note", what)

    # --- text -> features -> model

    def encode(self, rows: Dataset) -> Dataset:
        from datasets import Dataset

        texts, words = tagged.sentences(rows)
        documents = None
        if self.options.context == "document" and "document" in rows.column_names:
            documents = [row if name is None else name for row, name in enumerate(rows["document"])]
        columns = encode_words(
            self.tokenizer,
            texts,
            words,
            max_length=self.max_length,
            stride=self.options.stride,
            documents=documents,
        )
        learned = set(self.tags) >= set(tagging.tag_names(self.types, self.options.scheme))
        if "tags" in rows.column_names and learned:  # a foreign model may lack some tags, and is only scored
            columns["labels"] = self._labels(rows["tags"][:], columns)
        return Dataset.from_dict(columns)

    def _labels(self, gold: Sequence[Sequence[str]], columns: Mapping[str, Sequence[Any]]) -> list[list[int]]:
        """Tag ids of the words of each window. Words that nothing reads are taken out of their entities."""
        read: list[list[int]] = [[] for _ in gold]
        for row, own in zip(columns["row"], columns["words"], strict=True):
            read[row] += own
        # The windows of a sentence share its words out in order, and so its tags.
        known = [iter(self._ids(*pair)) for pair in zip(gold, read, strict=True)]
        return [list(islice(known[row], len(own))) for row, own in zip(columns["row"], columns["words"], strict=True)]

    def _ids(self, tags: Sequence[str], words: Sequence[int]) -> list[int]:
        """The ids of a sentence's gold tags, in BIO, at the words that windows read."""
        ids = {tag: index for index, tag in enumerate(self.tags)}
        return [ids[tag] for tag in tagging.restrict(tags, words, self.options.scheme)]

    def units(self, features: Dataset) -> ArrayLike:
        """All windows of a sentence are learned together where they are one chain."""
        return numbers(features, "row") if self.options.head == "crf" else super().units(features)

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForTokenClassification

        settings = {
            "num_labels": len(self.tags),
            "id2label": dict(enumerate(self.tags)),
            "label2id": {tag: index for index, tag in enumerate(self.tags)},
        }
        model: Any = load_model(encoder, AutoModelForTokenClassification, settings, new_head=new_head)
        if self.options.head == "crf":
            from bertkit.models.heads.crf import CRF

            model.crf = CRF(len(self.tags))
            if not new_head:
                load_extra_module(encoder, "crf", model.crf)
            # A hook, since it also runs inside peft's and DDP's wrappers, and leaves the class as it was.
            model.register_forward_hook(_with_chain)
        return model  # type: ignore[no-any-return]

    @property
    def learning_rate_factors(self) -> Mapping[str, float]:
        """Transitions start at zero and are few: at the encoder's learning rate they would stay there."""
        return {"crf": self.options.chain_learning_rate} if self.options.head == "crf" else {}

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        return {"crf": model.crf} if self.options.head == "crf" else {}

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy of each word, or a chain's negative log likelihood; `logits` are `(windows, pieces, tags)`.

        With class weights, a chain weighs as much as its words do on average.
        """
        import torch
        from torch.nn import functional as F

        flat, labels = _read(outputs["logits"], batch).float(), batch["labels"][batch["heads"] >= 0]
        weight = self._weights(labels)
        if self.options.head == "softmax":
            return F.cross_entropy(flat, labels, weight, reduction="sum", label_smoothing=label_smoothing)
        from bertkit.models.heads import crf

        if not len(flat):
            return flat.sum()
        sentence, place, mask = _sentences(batch)
        scores = flat.new_zeros((*mask.shape, flat.shape[-1])).index_put((sentence, place), flat)
        gold = labels.new_zeros(mask.shape).index_put((sentence, place), labels)
        losses = crf.nll(scores, gold, mask, self._constrained(outputs["chain"]))
        if weight is not None:
            losses = losses * torch.zeros_like(losses).index_add(0, sentence, weight[labels]) / mask.sum(1)
        return losses.sum()

    def _constrained(self, chain: Chain) -> Chain:
        from bertkit.models.heads import crf

        return crf.constrain(chain, crf.forbidden(self.tags)) if self.options.constrained else chain

    def count(self, batch: Batch) -> float:
        """Words, or the sum of their weights."""
        labels = batch["labels"][batch["heads"] >= 0]
        weight = self._weights(labels)
        return float(len(labels)) if weight is None else float(weight[labels].sum())

    def _weights(self, like: Tensor) -> Tensor | None:
        import torch

        given = self.options.class_weights
        if not isinstance(given, dict):
            return None
        return torch.tensor([given[tag.partition("-")[2] or "O"] for tag in self.tags], device=like.device)

    # --- teacher -> student

    @property
    def shared(self) -> Mapping[str, Any]:
        return {"head": self.options.head, "tags": self.tags}

    def soft(self, outputs: Any, batch: Batch) -> Tensor:
        """Logits of the words of each window, `(windows, words * tags)`; behind those of the chain, where there is one:
        `tags` rows of transitions, one of start and one of end."""
        import torch

        logits, heads = outputs["logits"].float(), batch["heads"]
        words: Tensor = logits.gather(1, heads.clamp(min=0)[..., None].expand(-1, -1, logits.shape[-1]))
        if self.options.head == "softmax":
            return words.flatten(1)
        chain = torch.cat([part.float().reshape(-1, len(self.tags)) for part in outputs["chain"]])
        return torch.cat([chain.expand(len(words), -1, -1), words], dim=1).flatten(1)

    def soft_loss(self, outputs: Any, batch: Batch, temperature: float) -> Tensor:
        """KL of each word with its class weight; of a chain, cross-entropy of each word's marginals."""
        from bertkit.models.heads import soft_losses
        from bertkit.models.heads.crf import Chain

        there = batch["heads"] >= 0
        soft = batch["soft"].reshape(len(there), -1, len(self.tags))
        before = len(self.tags) + 2 if self.options.head == "crf" else 0
        theirs = soft[:, before : before + there.shape[1]][there]
        ours = _read(outputs["logits"], batch).float()
        if not len(ours):
            return ours.sum()
        if self.options.head == "softmax":
            losses = soft_losses.kl(ours, theirs, temperature)
        else:
            sentence, place, mask = _sentences(batch)
            chain = Chain(soft[0, : len(self.tags)], soft[0, len(self.tags)], soft[0, len(self.tags) + 1])
            student, teacher = (
                (scores.new_zeros((*mask.shape, len(self.tags))).index_put((sentence, place), scores), own)
                for scores, own in (
                    (ours, self._constrained(outputs["chain"])),
                    (theirs, self._constrained(chain)),
                )
            )
            losses = soft_losses.chain_cross_entropy(student, teacher, mask, temperature)[sentence, place].float()
        weight = self._weights(losses)
        return losses.sum() if weight is None else (losses * weight[batch["labels"][there]]).sum()

    # --- model -> answers

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`emissions`, `(windows, words, tags)`: the scores of the words of each window, of which it has `words`; and
        the chain's `transitions`, `start` and `end`. All but `words` fp32."""
        heads = batch["heads"]
        at = heads.clamp(min=0)[..., None].expand(-1, -1, len(self.tags))
        reduced = {"emissions": outputs["logits"].float().gather(1, at), "words": (heads >= 0).sum(1)}
        if self.options.head == "crf":
            chain = zip(("transitions", "start", "end"), outputs["chain"], strict=True)
            reduced |= {name: part.float() for name, part in chain}
        return reduced

    def kept(self, arrays: Arrays) -> Sequence[Emissions]:
        parts = ("transitions", "start", "end") if self.options.head == "crf" else ()
        tags = arrays["emissions"].shape[-1] if "emissions" in arrays else 0
        if tags != len(self.tags) or not {"words", *parts} <= arrays.keys():
            what = f"gives {', '.join(arrays)} of {tags} tags, which are not what the {len(self.tags)} tags here need"
            raise ModelError(Problem("the model", what, "Its config.json was edited, or is of another model."))
        chain = tuple(arrays[name] for name in parts) or None
        counted = zip(arrays["emissions"], arrays["words"].tolist(), strict=True)
        return [Emissions(emissions[:words], chain) for emissions, words in counted]

    def decode(self, kept: Sequence[Emissions], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `words`, each a {word, tag, score}; `entities`, each a {text, label, start, end, score};
        and `truncated`, which is never true.

        start, end: characters of the row's text; of its words joined by blanks, where it has no text. A word's
        score is the posterior of its tag; an entity's is that of its words' tags together, and of ending there: with
        a CRF, of exactly this entity. Raises ModelError when the model's outputs are not finite.
        """
        texts, places = tagged.sentences(rows)
        read, scores = self._read_words(kept, features, len(rows))
        found = decode_tags(scores, kept[0].chain, self.tags, self._temperature)
        answers = []
        for text, words, own, best in zip(texts, places, read, found, strict=True):
            tags, chances, entities = spread(best, own, len(words))
            cut = [text[start:end] for start, end in words]
            listed = []
            for kind, first, last, score in entities:
                start, end = words[first][0], words[last - 1][1]
                listed.append({"text": text[start:end], "label": kind, "start": start, "end": end, "score": score})
            each = [{"word": w, "tag": t, "score": s} for w, t, s in zip(cut, tags, chances, strict=True)]
            answers.append({"words": each, "entities": listed, "truncated": False})
        return answers

    @property
    def _temperature(self) -> float:
        return self.options.temperature or 1.0

    def _read_words(
        self, kept: Sequence[Emissions], features: Dataset, rows: int
    ) -> tuple[list[list[int]], list[np.ndarray]]:
        """Of each sentence the words that windows read, in order, and their scores `(words, tags)`."""
        import numpy as np

        read: list[list[int]] = [[] for _ in range(rows)]
        parts: list[list[np.ndarray]] = [[np.empty((0, len(self.tags)), dtype=np.float32)] for _ in range(rows)]
        for row, words, window in zip(features["row"][:], features["words"][:], kept, strict=True):
            read[row] += words
            parts[row].append(window.scores)
        scores = [np.concatenate(own) for own in parts]
        bad = sum(not np.isfinite(own).all() for own in scores)
        if kept[0].chain is not None and not all(np.isfinite(part).all() for part in kept[0].chain):
            raise ModelError(Problem("the model", "its CRF is not finite", "Its weights are damaged."))
        if bad:
            what = f"its outputs are not finite for {bad} of {rows} rows"
            raise ModelError(Problem("the model", what, "Its weights are damaged, or its training diverged."))
        return read, scores

    def fit(self, rows: Dataset, predict: Predict) -> Self:
        """The temperature (Guo et al. 2017) that makes the gold tags' posteriors most likely."""
        if self.options.temperature is not None:
            return self
        scores, gold, chain = list[Any](), list[Any](), None
        for kept, features, part in self.chunks(rows, predict):
            read, own = self._read_words(kept, features, len(part))
            scores += own
            gold += [self._ids(*pair) for pair in zip(part["tags"], read, strict=True)]
            chain = kept[0].chain

        def loss(temperature: float) -> float:
            return -tag_log_likelihood(scores, gold, chain, self.tags, temperature)

        found = calibration.best_temperature(loss)
        return replace(self, options=self.options.model_copy(update={"temperature": found}))

    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        return dict(self._graded(answers, rows).scores)

    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        return self._graded(answers, rows).intervals()

    def user_score(self, metric: Any, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """A user's `evaluate.Metric` on lists of tags, such as seqeval's."""
        return compute_user_metric(metric, *self._graded(answers, rows).pairs())

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        """What kinds of errors there are, which types are taken for which, and how well the scores are calibrated."""
        return self._graded(answers, rows).details()

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        """`lookup`: every word gets the tag that it most often had in train; unseen ones O."""
        train = simple.enough(train)
        found = entities.lookup_baseline(tagged.words_of(train), train["tags"][:], tagged.words_of(rows))
        return {"lookup": dict(entities.GradedEntities(rows["tags"][:], found, self.types).scores)}

    def _graded(self, answers: Sequence[Answer], rows: Dataset) -> entities.GradedEntities:
        if "tags" not in rows.column_names:
            what = f"not in the rows, which have {', '.join(rows.column_names)}"
            raise DataError(Problem("column `tags`", what))
        tags, scheme = column_values(rows, "tags"), self.options.scheme
        return entities.GradedEntities.of(tags, answers, self.types, scheme, self._temperature)


def _read(logits: Tensor, batch: Batch) -> Tensor:
    """The logits of the first pieces of all words that the windows own, one after the other: `(words, tags)`."""
    heads = batch["heads"]
    window, _ = (heads >= 0).nonzero(as_tuple=True)
    return logits[window, heads[heads >= 0]]


def _sentences(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Of the words of `_read` each one's sentence and place there, `(words,)`; and where the sentences have words."""
    import torch

    rows = batch["row"][:, None].expand_as(batch["heads"])[batch["heads"] >= 0]
    _, sentence, counts = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
    place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[sentence]
    return sentence, place, torch.arange(int(counts.max()), device=rows.device) < counts[:, None]


def _with_chain(model: Any, inputs: Any, outputs: Any) -> Any:
    chain = model.crf(outputs.logits)
    # DDP takes outputs apart and puts them together again, which the model's own type refuses; and it takes a
    # parameter that is an output for one that is done with.
    return {"logits": outputs.logits, "chain": type(chain)(*(part.clone() for part in chain))}
