"""Recipe sections that name no task: the model, the data, LoRA, freezing, batching, distillation, the Hub."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

Split = Literal["train", "validation", "test"]


Text = Annotated[str, Field(min_length=1)]


Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what numpy takes


LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*", re.ASCII)


LANGUAGE = re.compile(r"[a-z]{2,3}|multilingual|code", re.ASCII)  # ISO 639-1, -2 and -3, and the Hub's two words


REPO_ID = re.compile(r"(?!.*(--|\.\.|\.git$))(?=.{1,96}$)[A-Za-z0-9][\w.-]*/\w([\w.-]*\w)?", re.ASCII)  # owner/model


class Section(BaseModel):
    """Immutable, without unknown keys, coercion, or numbers that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSpec(Section):
    """The encoder: a pretrained one by its name, or a new one from a config and a tokenizer."""

    name: Text | None = Field(
        None, description="A Hub id, or a folder with config.json, model.safetensors and a tokenizer."
    )
    config: Text | Annotated[dict[str, Any], Field(min_length=1)] | None = Field(
        None, description="Random weights: tiny, mini, small, medium, base, large; or BertConfig's fields."
    )
    tokenizer: Text | None = Field(None, description="With `config`: a Hub id, or a folder with a tokenizer.")
    revision: str | None = Field(None, description="Commit, tag or branch on the Hub. Pin a commit to repeat a run.")
    max_length: int = Field(128, ge=8, description="Word pieces per window, special tokens included.")

    @property
    def title(self) -> str:
        """What people call it."""
        new = self.config if isinstance(self.config, str) else (self.config or {}).get("preset")
        return self.name or f"a new BERT{f'-{new}' if new else ''}"


class DataSpec(Section):
    """Where the rows come from and what their columns mean."""

    source: Text | Annotated[dict[str, Text | Annotated[list[Text], Field(min_length=1)]], Field(min_length=1)] = Field(
        description="A Hub id, a folder of split files, one file, sample:NAME, or {split: file or files}."
    )
    revision: str | None = Field(None, description="Commit, tag or branch of a Hub data set.")
    subset: str | None = Field(None, description="Configuration of a Hub data set, such as `cola` of nyu-mll/glue.")
    splits: dict[Split, str] | None = Field(None, description="Split -> its name at the source, where it differs.")
    columns: dict[str, str] = Field(default_factory=dict, description="Canonical column -> column at the source.")
    format: Literal["csv", "tsv", "json", "jsonl", "parquet", "conll", "txt", "lines"] | None = Field(
        None, description="null: from the file's name (.gz and .xz are looked through)."
    )
    header: bool | list[str] = Field(
        True, description="csv/tsv: true, or the column names of files without a header. conll: names, or by position."
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        description="csv/tsv/conll; null: comma, tab for tsv, tabs or blanks for conll.",
    )
    quoting: bool | None = Field(None, description="csv/tsv: do quotes group fields? null: yes for csv, no for tsv.")
    extra_fields: Literal["error", "ignore"] = Field("error", description="csv/tsv rows with more fields than columns.")
    validation: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Share of train to hold out, stratified by label, where the source has no validation split.",
    )
    seed: Seed = Field(42, description="Seed of the hold-out and of `limit`.")
    limit: Annotated[int, Field(ge=1)] | dict[Split, Annotated[int, Field(ge=1)]] | None = Field(
        None, description="At most so many rows per split, drawn with `seed`, for quick runs."
    )
    unseen_labels: Literal["error", "ignore"] = Field(
        "error", description="Labels that train does not have: stop, or leave those rows out and report them."
    )


class EarlyStopping(Section):
    """Stop when the headline metric has not risen for a while."""

    patience: int = Field(ge=1, description="Evaluations without a gain before training stops.")
    threshold: float = Field(0.0, ge=0, description="A smaller gain does not count.")


class Lora(Section):
    """LoRA (Hu et al. 2021), by peft; names are LoraConfig's. The head is always trained and saved."""

    r: int = Field(8, ge=1, description="Rank.")
    lora_alpha: int = Field(16, ge=1, description="Scale: lora_alpha / r.")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before the adapter.")
    target_modules: list[str] | None = Field(None, description="null: peft's choice for this architecture.")


class Freeze(Section):
    """Parts of the encoder that keep their pretrained weights."""

    embeddings: bool = Field(False, description="The embeddings too.")
    layers: int = Field(0, ge=0, description="The first so many encoder layers.")


class Batching(Section):
    """Training batches by what they weigh, in place of a number of rows."""

    tokens: int = Field(ge=8, description="Slots of a micro-batch: its features x the word pieces of the longest.")


class Student(Section):
    """The model that learns, where it is not all of the one that `model` names."""

    layers: int = Field(ge=1, description="Encoder layers that are kept, evenly spaced, the first and the last too.")


class Distillation(Section):
    """Learning from a teacher's outputs (Hinton et al. 2015)."""

    teacher: Text = Field(description="A run, a model folder or a Hub id, for the same task, labels and word pieces.")
    temperature: float = Field(2.0, gt=0, description="What the logits of teacher and student are divided by.")
    alpha: float = Field(0.5, ge=0, le=1, description="The soft loss's share; the labels' loss has the rest.")
    hidden: bool = Field(False, description="Is the cosine of the last hidden states learned too?")
    student: Student | None = Field(None, description="null: all layers of the model that `model` names.")


class Hub(Section):
    """What the model card states of the model, and a push of it to the Hub, once it is trained."""

    repo_id: str | None = Field(None, description="owner/model. null: nothing is pushed.")
    private: bool = Field(True, description="false: everybody may see it, once all is there.")
    revision: Text | None = Field(None, description="A branch, made where it is missing. null: main.")
    create_pr: bool = Field(False, description="A pull request instead of a commit.")
    predictions: bool = Field(False, description="Push RUN/predictions too, which repeats the rows of the data.")
    report: bool = Field(False, description="Push RUN/report.html too, which repeats some rows of the data.")
    license: str | None = Field(None, description="The model's, by the Hub's name for it, such as apache-2.0.")
    language: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="Of the texts: ISO 639 codes such as en, or multilingual."
    )

    @field_validator("repo_id")
    @classmethod
    def _named(cls, given: str | None) -> str | None:
        if given is not None and not REPO_ID.fullmatch(given):
            raise PydanticCustomError("repo_id", "expected owner/model, found {given}", {"given": repr(given)})
        return given

    @field_validator("license")
    @classmethod
    def _licensed(cls, given: str | None) -> str | None:
        if given is not None and not LICENSE.fullmatch(given):
            what = "expected a licence by the Hub's name, such as apache-2.0, mit or other; found {given}"
            raise PydanticCustomError("license", what, {"given": repr(given)})
        return given

    @field_validator("language")
    @classmethod
    def _coded(cls, given: str | list[str] | None) -> str | list[str] | None:
        for code in [given] if isinstance(given, str) else given or []:
            if not LANGUAGE.fullmatch(code):
                what = "expected an ISO 639 code such as en, or multilingual; found {given}"
                raise PydanticCustomError("language", what, {"given": repr(code)})
        return given
