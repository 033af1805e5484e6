"""Hidden layers of a frozen encoder as vectors of texts, of words and of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bertkit.cache import fingerprint, model_key
from bertkit.data.rows import Columns
from bertkit.data.word_spans import words
from bertkit.encoding.padding import Collator, batches_by_length, mask_of, model_inputs
from bertkit.encoding.texts import encode_texts
from bertkit.encoding.word_windows import encode_words
from bertkit.errors import ModelError
from bertkit.inference.progress import progress
from bertkit.inference.runner import inference
from bertkit.models.device import Precision
from bertkit.models.encoder import Encoder, load_model
from bertkit.vectors.cache import Vectors

if TYPE_CHECKING:
    import torch

Ints = NDArray[np.int64]

STRIDE = 64  # tokens shared by the windows of a long text whose words are read, as in token classification


def changed(encoder: Encoder) -> ModelError:
    """The error for an encoder that is not the one that was fitted."""
    return ModelError(encoder.name, "its files have changed since it was fitted", "Call fit again.")


@dataclass(frozen=True)
class LayerReader:
    """An encoder and how it is used. Its weights are loaded on first use."""

    params: Any  # of `Features`, as they were when it was fitted
    encoder: Encoder
    files: str  # their fingerprint
    tokenizer: PreTrainedTokenizerBase
    layers: tuple[int, ...]  # counted from the embeddings
    size: int  # of a vector
    max_length: int
    device: torch.device
    precision: Precision

    @cached_property
    def model(self) -> Any:
        """The encoder, in evaluation mode. Raises ModelError where its files have changed."""
        from transformers import AutoModel

        if fingerprint(self.encoder.folder) != self.files:
            raise changed(self.encoder)  # they are not those that were vetted
        model: Any = load_model(self.encoder, AutoModel, {}, new_head=True)
        return model.to(self.device).eval()

    @cached_property
    def batch_size(self) -> int:
        """1 where padding changes these layers, so that a vector depends on its text alone. Raises
        ModelError.
        """
        from bertkit.inference.probe import LIMIT, change_by_padding

        change = change_by_padding(self.tokenizer, self.model, self.max_length, layers=self.layers)
        return self.params.batch_size if change <= LIMIT else 1

    @cached_property
    def key(self) -> dict[str, Any]:
        """All that determines the vector of a text."""
        options = {name: getattr(self, name) for name in ("layers", "max_length", "precision")}
        options |= {"combine": self.params.combine, "pool": self.params.pool, "device": self.device.type}
        return model_key(self.encoder.folder) | options | {"model": self.files}

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """`(texts, size + 1)`: the last column is the number of dropped tokens, so that it is cached too."""
        from bertkit.models.heads.vector_head import pool

        columns = encode_texts(self.tokenizer, [texts], max_length=self.max_length)
        rows = np.empty((len(texts), self.size + 1), dtype=np.float32)
        rows[:, -1] = columns["lost"]
        pooling: Any = self.params.pool  # not "none", which goes to `words`
        for indices, pooled in self._hidden(columns, lambda hidden, mask: pool(hidden, mask, pooling)):
            rows[indices, :-1] = pooled
        return rows

    def words(self, texts: Sequence[str]) -> list[Vectors]:
        """`(words, size)` for each text."""
        places = [words(text) for text in texts]
        columns = encode_words(self.tokenizer, texts, places, max_length=self.max_length, stride=STRIDE)
        results = [np.zeros((len(spans), self.size), dtype=np.float32) for spans in places]
        for indices, hidden in self._hidden(columns, lambda hidden, mask: hidden):
            for index, states in zip(indices, hidden, strict=True):
                results[columns["row"][index]][columns["words"][index]] = states[columns["heads"][index]]
        return results

    def _hidden(
        self, columns: Mapping[str, Sequence[Any]], keep: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> Iterator[tuple[Ints, Vectors]]:
        """By batch: indices of features, and what is kept of them.

        keep: their combined layers, `(features, tokens, size)`, and the attention mask -> an array by
        feature.
        """
        import torch

        collate = Collator.of(self.tokenizer, {})
        inputs = Columns(model_inputs(self.tokenizer, columns))
        batches = batches_by_length(columns["length"], self.batch_size, self.device.type == "cpu")
        for indices in progress(batches, "batch", len(batches)):
            batch = collate(inputs[indices.tolist()], self.device)
            with inference(self.device, self.precision):
                states = self.model(**batch, output_hidden_states=True).hidden_states
            chosen = [states[layer].float() for layer in self.layers]
            if self.params.combine == "concat":
                hidden = torch.cat(chosen, dim=-1)
            else:
                hidden = torch.stack(chosen).sum(0) / (len(chosen) if self.params.combine == "mean" else 1)
            yield indices, keep(hidden, mask_of(batch)).cpu().numpy()
