"""Recipe sections that name no task: the model, the data, training, LoRA, freezing, batching, distillation,
the Hub.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator, field_validator

Split = Literal["train", "validation", "test"]
Checkpoints = Literal["keep", "best", "none"]  # which of them a finished run keeps
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]
MEMORY = "memory"  # the source of rows that were given from Python
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what numpy takes
Count = Annotated[int, Field(ge=1)]
Length = Annotated[int, Field(ge=8)]  # tokens
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]

# owner/model
REPO_ID = re.compile(r"(?!.*(--|\.\.|\.git$))(?=.{1,96}$)[A-Za-z0-9][\w.-]*/\w([\w.-]*\w)?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(duration: str) -> float:
    """The seconds in a time such as 90s, 60m or 1.5h."""
    return float(duration[:-1]) * _SECONDS[duration[-1]]


def _duration(value: Any) -> Any:
    if not (isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?[smh]", value, re.ASCII) and seconds(value)):
        raise ValueError(
            f"expected a time of seconds, minutes or hours, such as 90s, 60m or 1.5h; found {value!r}"
        )
    return value


class Section(BaseModel):
    """Immutable, without unknown keys, coercion, or numbers that are not finite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ModelSpec(Section):
    """The encoder: a pretrained one by its name, or a new one from a config and a tokenizer."""

    name: Text | None = None
    """A Hub id, or a folder with weights, config and tokenizer."""
    config: Text | Annotated[dict[str, Any], Field(min_length=1)] | None = None
    """Random weights: a preset, such as mini (BERT) or modernbert-mini; or a config's fields."""
    tokenizer: Text | None = None
    """With `config`: a Hub id, a folder with a tokenizer, or sample:NAME."""
    revision: str | None = None
    """Commit, tag or branch on the Hub. Pin a commit to repeat a run."""
    max_length: Length = 128
    """Tokens per window, special tokens included."""
    pooling: Literal["cls", "mean", "bos", "late"] | None = None
    """With `name`: what the head of a text classification or ranking reads. ModernBERT: cls, mean. EuroBERT:
    bos, mean, late. null: what config.json says."""
    dropout: Share | None = None
    """With `name`: dropout before the output layer of a classification or ranking. null: what config.json
    says. The encoder keeps its own."""

    @property
    def title(self) -> str:
        """The model's name for people."""
        fields = {"preset": self.config} if isinstance(self.config, str) else self.config or {}
        kind = str(fields.get("model_type", "bert"))
        preset = str(fields.get("preset", ""))
        new = (
            preset if "-" in preset else "-".join(filter(None, ["BERT" if kind == "bert" else kind, preset]))
        )
        return self.name or f"a new {new}"


def _share_or_count(value: Any) -> Any:
    if isinstance(value, int | float) and not (0 < value < 1 or (value > 0 and type(value) is int)):
        what = "expected a share of train below 1, such as 0.1, or a whole number of rows from 1"
        raise ValueError(f"{what}; found {value!r}")
    return value


HeldOut = Annotated[Count | Annotated[float, Field(gt=0, lt=1)], BeforeValidator(_share_or_count)]


def _as_it_is(value: Any, check: Callable[[Any], Any]) -> Any:
    """The value, once it is checked: a text that is an object of another class stays one."""
    check(value)
    return value


class DataSpec(Section):
    """The source of the rows, and what their columns mean."""

    source: Text | Annotated[dict[str, Text | Texts], Field(min_length=1)]
    """A Hub id, a folder of split files, one file, sample:NAME, or {split: file or files}. `memory` stands
    for rows that were given from Python, which a run keeps in data/."""
    fingerprint: Text | None = None
    """With `memory`: sha256 over the files of the rows."""
    folder: Annotated[Text, WrapValidator(_as_it_is)] | None = None
    """With `memory`: where the rows are. null: data/ beside the recipe. Not recorded."""
    revision: str | None = None
    """Commit, tag or branch of a Hub data set."""
    subset: str | None = None
    """Configuration of a Hub data set, such as `cola` of nyu-mll/glue."""
    splits: dict[Split, str] | None = None
    """Split -> its name at the source, if it differs."""
    columns: dict[str, str | Texts] = {}
    """Canonical column -> column at the source. Several text columns are joined; `labels` may be several
    columns of 0 and 1, named by their labels."""
    format: Text | None = None
    """null: from the file's name. Quotes group fields in csv, not in tsv."""
    header: bool | list[str] = True
    """true, or the column names of csv, tsv and xlsx without a header. conll: names, or by position."""
    sheet: Text | None = None
    """Of an .xlsx workbook; null: the first."""
    delimiter: Annotated[str, Field(max_length=1, pattern=r'[^"\r\n]')] | None = None
    """null: comma for csv, tab for tsv, tabs or spaces for conll."""
    encoding: str = "utf-8"
    """Of text files: utf-8, cp1252, latin-1, utf-16, or any Python knows."""
    extra_fields: Literal["error", "ignore"] = "error"
    """csv, tsv and xlsx rows with more fields than columns."""
    missing_fields: Literal["error", "ignore"] = "error"
    """csv and tsv rows with fewer fields than columns: stop, or leave them out and report them."""
    validation: HeldOut | None = None
    """Share of train to hold out, or number of its rows, stratified by label, if the source has no such
    split."""
    test: HeldOut | None = None
    """As `validation`: rows that judge the model, the same whatever `validation` is."""
    group_by: Text | None = None
    """A column, such as a customer or a document, whose rows with one value are held out together."""
    by: Text | None = None
    """A column, such as a language or a source: scores are also reported by its values."""
    seed: Seed = 42
    """Seed of the hold-out and of `limit`."""
    limit: Count | dict[Split, Count] | None = None
    """Maximum number of rows per split, sampled by label with `seed`, for quick runs."""
    exclude: Text | Texts | None = None
    """Lists (jsonl, csv) of rows to leave out, by `location` or `id`."""
    relabel: Text | Texts | None = None
    """Lists of rows whose target is replaced by the one in the list."""
    labels: Literal["casefold"] | None = None
    """casefold: labels that differ only in case, blanks or Unicode form become the most frequent one."""
    labels_separator: Text = "|"
    """Between the labels of a row, where `labels` is text."""
    missing_labels: Literal["error", "ignore"] = "error"
    """Rows without a label: stop, or leave them out and report them."""
    unseen_labels: Literal["error", "ignore"] = "error"
    """Labels that train does not have: stop, or drop those rows and report them."""

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            "a".encode(value)
        except (LookupError, ValueError):
            what = "expected a text encoding that Python knows, such as utf-8, cp1252, latin-1 or utf-16"
            raise ValueError(f"{what}; found {value!r}") from None
        return value


class TrainingKeys(Section):
    """What `training:` may have besides the fields of transformers' TrainingArguments."""

    budget: Annotated[str, BeforeValidator(_duration)] | None = None
    """The time that a training takes, evaluations included, such as 90s, 60m or 1.5h."""
    muon_learning_rate: Positive | None = None
    """With optim: muon, of the weight matrices of the layers. null: learning_rate."""
    muon_momentum: Share = 0.95
    """With optim: muon, of the same matrices."""
    used_embeddings: bool | None = None
    """Train only the rows of the word embedding whose tokens the training data have, with the same result.
    null: where that saves at least 1 MB of memory."""


class EarlyStopping(Section):
    """Stop when the selection metric has not improved for a while."""

    patience: Count
    """Evaluations without an improvement before training stops."""
    threshold: float = Field(0.0, ge=0)
    """The smallest difference that counts as an improvement."""


class Lora(Section):
    """LoRA (Hu et al. 2021), by peft; names are LoraConfig's. The head is always trained and saved."""

    r: Count = 8
    """Rank."""
    lora_alpha: Count = 16
    """Scale: lora_alpha / r."""
    lora_dropout: Share = 0.0
    """Dropout before the adapter."""
    target_modules: Literal["all-linear"] | list[str] | None = None
    """null: peft's choice for this architecture. all-linear: every linear layer but the head's."""
    use_rslora: bool = False
    """rsLoRA (Kalajdzievski 2023): the scale is lora_alpha / sqrt(r)."""
    use_dora: bool = False
    """DoRA (Liu et al. 2024): learns magnitudes of weights too."""
    layers_to_transform: list[int] | None = None
    """Layers with adapters, from 0; null: all."""
    rank_pattern: dict[str, int] = {}
    """Modules with another rank: name or regular expression -> r."""
    alpha_pattern: dict[str, int] = {}
    """Modules with another lora_alpha, as rank_pattern."""
    init_lora_weights: Literal[True, "gaussian", "orthogonal"] = True
    """Of A; B begins at zero."""


class Freeze(Section):
    """Parts of the encoder, and of the decoder if there is one, that keep their pretrained weights."""

    embeddings: bool = False
    """Freeze the embeddings too."""
    layers: int = Field(0, ge=0)
    """Number of layers to freeze, from the first; of a decoder too."""


class Batching(Section):
    """Training batches by their number of tokens, instead of a number of rows."""

    tokens: Length
    """Size of a micro-batch: its features x the tokens of the longest."""


class Student(Section):
    """The student, if it is smaller than the model that `model` names."""

    layers: Count
    """Encoder layers to keep, evenly spaced, with the first and the last."""


class Distillation(Section):
    """Learning from a teacher's outputs (Hinton et al. 2015)."""

    teacher: Text
    """A run, a model folder or a Hub id with the same task, labels and tokenizer."""
    temperature: Positive = 2.0
    """Divides the logits of teacher and student."""
    alpha: float = Field(0.5, ge=0, le=1)
    """Weight of the soft loss; the labels' loss has 1 - alpha."""
    student: Student | None = None
    """null: all layers of the model that `model` names."""


class Hub(Section):
    """What the model card states, and whether the trained model is pushed to the Hub."""

    repo_id: str | None = None
    """owner/model. null: nothing is pushed."""
    private: bool = True
    """false: public, once the upload is complete."""
    revision: Text | None = None
    """A branch, created if it does not exist. null: main."""
    benchmark: Text | None = None
    """Task of the benchmark that is data.source, for its leaderboard."""
    license: str | None = None
    """The model's licence, by the Hub's name, such as apache-2.0."""
    language: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Language of the texts: ISO 639 codes such as en, or multilingual."""

    @field_validator("repo_id")
    @classmethod
    def _well_formed(cls, value: str | None) -> str | None:
        if value is not None and not REPO_ID.fullmatch(value):
            raise ValueError(f"expected owner/model, found {value!r}")
        return value
