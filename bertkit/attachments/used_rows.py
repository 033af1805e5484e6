"""Training only the rows of the word embedding that the training data use.

The other rows have no gradient: AdamW leaves their moments at zero and shrinks all of them by the same
factor. So that factor is all there is to know about them, and gradients and moments are needed for the used
rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, final

import pyarrow.compute as pc
import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from bertkit.encoding.padding import fills
from bertkit.engine.arguments import Arguments
from bertkit.engine.attachment import Attachment, Draft, Steps
from bertkit.engine.checkpoint import other_optimizer
from bertkit.errors import RecipeError, UserError
from bertkit.tasks.base import Task
from bertkit.text import Record

USED_ROWS_FILE = (
    "used_embeddings.safetensors"  # in a checkpoint: `ids` of the trained rows, `decay` of the others
)
# they update each number by itself, with decoupled weight decay
OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_fused",
)
FEATURES_AT_A_TIME = 4096
WORTHWHILE = 1_000_000  # bytes


@final
class UsedEmbeddings(Attachment):
    """Trains the used rows alone where `training.used_embeddings` says so, or where it pays."""

    asked: bool | None  # `training.used_embeddings`
    shape: tuple[int, ...] = ()  # (tokens, width) of an embedding that can be trained by rows
    rows: UsedRows | None = None  # while it trains, if not all rows are trained

    def join(self, draft: Draft) -> bool:
        self.asked = draft.args.used_embeddings
        try:
            self.shape = word_embedding(draft.model, draft.args).weight.shape
        except ValueError as error:
            if self.asked:
                raise RecipeError(
                    "training.used_embeddings", f"has no effect: {error}", "Remove it."
                ) from error
        return True

    def summarize(self, features_by_task: Iterable[tuple[Task, Dataset]]) -> str | None:
        if not self.shape:
            return None
        used = len(token_ids(features_by_task, self.shape[0]))
        counts = f"word embedding: {used:,} of {self.shape[0]:,} tokens are used"
        saves = saved(self.shape, used) / 1e6
        if not pays(self.shape, used, self.asked):
            return f"{counts}, and all are trained"
        return (
            f"{counts}, and only these are trained: {abs(saves):,.0f} MB "
            f"{'less' if saves >= 0 else 'more'} memory"
        )

    def start(self, trainer: Steps, checkpoint: Path | None) -> None:
        """Put the rows into the word embedding's place: those that the data use and a checkpoint has
        trained.
        """
        model = trainer.model
        args = trainer.args
        self.rows = None
        wanted = (
            Path(checkpoint, USED_ROWS_FILE).is_file() if checkpoint else args.used_embeddings is not False
        )
        if not wanted:
            return
        try:
            whole = word_embedding(model, args)
        except ValueError as reason:
            if checkpoint:
                raise other_optimizer(checkpoint) from reason
            return
        ids = token_ids(trainer.data.features_by_task, whole.num_embeddings)
        decay = 1.0
        if whole.padding_idx is not None and whole.padding_idx not in ids:
            ids = torch.cat([ids, torch.tensor([whole.padding_idx])])
        if checkpoint:
            before = load_file(Path(checkpoint, USED_ROWS_FILE))
            ids = torch.cat([before["ids"], ids[~torch.isin(ids, before["ids"])]])
            decay = float(before["decay"])
        elif not pays(whole.weight.shape, len(ids), args.used_embeddings):
            return
        self.rows = UsedRows(whole, ids, decay)
        _replace(model, whole, self.rows)

    def wrap_optimizer(self, optimizer: Any, trainer: Steps) -> Any:
        if self.rows:
            optimizer.register_step_post_hook(self.rows.shrink)
        return optimizer

    def restore_optimizer(self, optimizer: Any) -> None:
        if self.rows:
            self.rows.extend(optimizer)

    def save_files(self) -> Record:
        return {USED_ROWS_FILE: {"ids": self.rows.ids, "decay": self.rows.others.decay}} if self.rows else {}

    def finish(self, model: Any) -> None:
        if self.rows:  # the best checkpoint, which is loaded next, has the whole embedding
            self.rows.restore(model)
            self.rows = None


class OtherRows(NamedTuple):
    """The embedding's other rows, kept in a tuple so that DDP does not register them."""

    whole: nn.Embedding  # the whole one, with the weights from before the training
    decay: nn.Parameter  # (), fp64: the factor that weight decay has left of them


class UsedRows(nn.Embedding):
    """In place of a word embedding in training: the rows of the tokens that the training data have.

    In evaluation, and in the model's `state_dict`, it is the whole embedding.
    """

    def __init__(self, whole: nn.Embedding, ids: Tensor, decay: float) -> None:
        """ids: of these tokens, `(rows,)`, in any order. decay: see `OtherRows`."""
        table = whole.weight.detach()
        ids = ids.to(table.device)
        places = torch.full((len(table),), -1, device=table.device)
        places[ids] = torch.arange(len(ids), device=table.device)
        padding = None if whole.padding_idx is None else int(places[whole.padding_idx])
        super().__init__(len(ids), whole.embedding_dim, padding, _weight=table[ids])
        # plain tensors: DDP would send buffers in every step
        self.ids = ids
        self.places = places
        self.others = OtherRows(
            whole, nn.Parameter(torch.tensor(decay, dtype=torch.float64), requires_grad=False)
        )

    def forward(self, input: Tensor) -> Tensor:
        """The tokens' vectors, `(…, width)`. Raises UserError in training where a token has no row here."""
        places = self.places.index_select(0, input.reshape(-1)).view(input.shape)
        absent = places < 0
        if self.training:
            if not input.is_cuda and absent.any():  # without waiting for CUDA, whose kernel asserts it
                raise UserError(
                    "training.used_embeddings",
                    f"the tokens with ids {sorted({*input[absent].tolist()})[:8]} are in no training row",
                    "Set training: {used_embeddings: false}, and report this.",
                )
            return embedding(places, self.weight, self.padding_idx)
        vectors = embedding(places.clamp(min=0), self.weight)
        vectors[absent] = self.others.whole.weight.detach()[input[absent]] * self.others.decay
        return vectors

    def table(self) -> Tensor:
        """A copy of the whole table as it is now, `(tokens, width)`."""
        whole = self.others.whole.weight.detach() * self.others.decay
        return whole.index_copy_(0, self.ids, self.weight.detach())

    def shrink(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Weight decay of the other rows: a hook that runs after each step of an optimizer."""
        if self.weight.grad is not None:
            group = next(group for group in optimizer.param_groups if _among(group["params"], self.weight))
            self.others.decay.mul_(1 - group["lr"] * group["weight_decay"])

    def extend(self, optimizer: Any) -> None:
        """Add moments of zero to the state from a checkpoint, for tokens that the data have only now."""
        state = optimizer.state[self.weight]
        for name, rows in state.items():
            if rows.ndim:
                state[name] = pad(rows, (0, 0, 0, len(self.ids) - len(rows)))

    def restore(self, model: Any) -> None:
        """Put the whole embedding, with all that was learned, back into the model."""
        whole = self.others.whole
        whole.weight.detach().copy_(self.table())
        _replace(model, self, whole)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.table()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        name = f"{prefix}weight"
        if (table := state_dict.get(name)) is None:
            return super()._load_from_state_dict(state_dict, prefix, *rest)  # which says so
        super()._load_from_state_dict({**state_dict, name: table[self.ids.to(table.device)]}, prefix, *rest)
        table = table.to(self.weight.device)
        if not torch.equal(self.table(), table):  # a run that was begun with other weights
            self.others.whole.weight.detach().copy_(table / self.others.decay)


def _replace(model: nn.Module, old: nn.Embedding, new: nn.Embedding) -> None:
    """Put one embedding in the place of another, wherever the model has it."""
    new.train(old.training)
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if child is old:
                setattr(module, name, new)


def word_embedding(model: Any, args: Arguments) -> nn.Embedding:
    """The embedding whose used rows can be trained alone.

    Raises ValueError with the reason where the result would differ from training the whole table.
    """
    if args.optim not in OPTIMIZERS:
        raise ValueError("it needs AdamW (optim: adamw_torch or adamw_torch_fused) or muon")
    if args.fp16:
        raise ValueError("fp16 leaves out updates, and with them weight decay")
    if args.neftune_noise_alpha is not None:
        raise ValueError("neftune_noise_alpha changes the word embedding itself")
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        embedding = None
    if (
        type(embedding) is not nn.Embedding
        or embedding.max_norm
        or embedding.scale_grad_by_freq
        or embedding.sparse
    ):
        raise ValueError("the model has no word embedding, or an unusual one")
    if not embedding.weight.requires_grad:
        raise ValueError("the word embedding is not trained")
    if sum(_among(module.parameters(recurse=False), embedding.weight) for module in model.modules()) > 1:
        raise ValueError("the word embedding shares its weights with another part of the model")
    return embedding


def _among(parameters: Iterable[Tensor], weight: Tensor) -> bool:
    return any(parameter is weight for parameter in parameters)


def token_ids(features_by_task: Iterable[tuple[Task, Dataset]], rows: int) -> Tensor:
    """The ids below `rows` of the tokens that these tasks' features have, of special tokens and padding,
    `(ids,)`.
    """
    ids = set()
    for task, features in features_by_task:
        if task.schema.corpus:  # masked tokens are also replaced by any others
            return torch.arange(rows)
        ids |= {*task.tokenizer.all_special_ids, int(fills(task.tokenizer, {})["input_ids"])}
        columns = features.select_columns(["input_ids"]).with_format("arrow")
        for part in columns.iter(FEATURES_AT_A_TIME):
            ids |= {*pc.unique(pc.list_flatten(part["input_ids"])).to_pylist()}
    # a model may not know all special tokens
    return torch.tensor(sorted(number for number in ids if number < rows))


def saved(shape: tuple[int, ...], used: int) -> int:
    """Bytes of memory that training the used rows alone saves; below 0, those that it takes. shape: of the
    table.

    Each used row has a weight, a gradient and two moments beside the whole table, instead of three more such
    tables.
    """
    rows, width = shape
    return 4 * width * (3 * rows - 4 * used)


def pays(shape: tuple[int, ...], used: int, asked: bool | None) -> bool:
    """Whether the used rows are trained alone. asked: `training.used_embeddings`."""
    return saved(shape, used) >= WORTHWHILE if asked is None else asked
