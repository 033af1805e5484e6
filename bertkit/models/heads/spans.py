"""From start and end logits to spans of a text: masked logits, the exact best spans of a window, and of a
text.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bertkit.text import Json

if TYPE_CHECKING:
    from torch import Tensor


MASKED = -1e4  # the logit of a position where no answer can be; finite, for bf16 and label smoothing


class WindowSpans(NamedTuple):
    """The best spans of one window, and its score for `no answer here`."""

    scores: np.ndarray  # (spans,) fp32, best first
    first: np.ndarray  # (spans,): tokens of the context
    last: np.ndarray  # (spans,)
    null: float


class Candidates(NamedTuple):
    """The best spans of a whole context, best first."""

    scores: list[float]
    spans: list[tuple[int, int]]  # characters of the context, end exclusive
    null: float

    def probabilities(self, temperature: float, *, unanswerable: bool) -> tuple[list[float], float]:
        """Softmax over the candidates, and over `no answer` where there may be none."""
        scores = [*self.scores, *([self.null] if unanswerable else [])]
        if not scores:
            return [], 0.0
        top = max(scores)
        gains = [math.exp((score - top) / temperature) for score in scores]
        total = math.fsum(gains)
        probabilities = [gain / total for gain in gains]
        return (probabilities[:-1], probabilities[-1]) if unanswerable else (probabilities, 0.0)


def masked_logits(
    start_logits: Tensor, end_logits: Tensor, batch: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Start and end logits `(windows, tokens)` fp32, masked except for the context and the first special
    token.
    """
    import torch

    at = torch.arange(start_logits.shape[1], device=start_logits.device)
    place = batch["place"][:, None]
    readable = ((at >= place) & (at < place + batch["count"][:, None])) | (at == 0)
    starts, ends = (logits.float().masked_fill(~readable, MASKED) for logits in (start_logits, end_logits))
    return starts, ends


def best_spans(
    starts: Tensor, ends: Tensor, batch: dict[str, Tensor], *, n_best: int, max_answer_length: int
) -> dict[str, Tensor]:
    """The best spans of each window, from `masked_logits`: exact, and among equal spans the first in the
    text.

    `scores`, best first and -inf after the last, `(windows, spans)`; `spans`, `(windows, spans, 2)`, the
    first and the last token of the context; and `null`, `(windows,)`, the score for no answer.
    """
    import torch
    from torch.nn import functional as F

    width = max_answer_length
    offset = (batch["place"] - batch["low"])[:, None]
    tokens = torch.arange(starts.shape[1], device=starts.device) - offset
    central = (tokens >= batch["first"][:, None]) & (tokens < batch["end"][:, None])
    inside = (tokens >= batch["low"][:, None]) & (tokens < (batch["low"] + batch["count"])[:, None])
    null = starts[:, 0] + ends[:, 0]
    # Wide enough for `n_best` starts in windows of any width, which an exported graph takes for granted.
    starts = F.pad(starts.masked_fill(~central, -torch.inf), (0, n_best), value=-torch.inf)
    ends = F.pad(ends.masked_fill(~inside, -torch.inf), (0, n_best + width - 1), value=-torch.inf)
    # The n best spans begin at the n starts that are best with their best end. Sorts are stable: with topk,
    # which
    # of equal spans (bf16 has many) are taken would depend on the padding.
    # In two dimensions, since torch.export takes the size that max_pool1d is given for fixed.
    best = starts + F.max_pool2d(ends[:, None], (1, width), 1)[:, 0]
    few = best.sort(dim=1, descending=True, stable=True).indices[:, :n_best].sort(dim=1).values
    after = few[..., None] + torch.arange(width, device=few.device)
    ends = ends.gather(1, after.flatten(1)).reshape(after.shape)
    ordered = (starts.gather(1, few)[..., None] + ends).flatten(1).sort(dim=1, descending=True, stable=True)
    scores = ordered.values[:, :n_best]
    at = ordered.indices[:, :n_best]
    first = few.gather(1, at // width) - offset
    return {"scores": scores, "spans": torch.stack([first, first + at % width], dim=-1), "null": null}


def window_spans(arrays: Mapping[str, np.ndarray]) -> list[WindowSpans]:
    """What `best_spans` returned, one item per window."""
    finite = (arrays["scores"] != -math.inf).sum(axis=1).tolist()
    table = zip(arrays["scores"], arrays["spans"], arrays["null"].tolist(), finite, strict=True)
    return [WindowSpans(scores[:n], spans[:n, 0], spans[:n, 1], null) for scores, spans, null, n in table]


def best_of_windows(
    windows: Sequence[WindowSpans], starts: np.ndarray, ends: np.ndarray, context: str, n_best: int
) -> Candidates:
    """The best spans over all windows of a context, without the spaces that some tokenizers count to their
    tokens.

    starts, ends: `(tokens,)`, the characters of each token of the context, end exclusive.
    """
    scores = np.concatenate([window.scores for window in windows])
    best = np.argsort(-scores, kind="stable")[:n_best]
    first = np.concatenate([window.first for window in windows])[best]
    last = np.concatenate([window.last for window in windows])[best]
    borders = zip(scores[best].tolist(), starts[first].tolist(), ends[last].tolist(), strict=True)
    kept = []
    spans = []
    for score, start, end in borders:
        text = context[start:end]
        bare = text.strip()
        if len(bare) < len(text):
            start += len(text) - len(text.lstrip())
            end = start + len(bare)
        if bare:
            # marks that a tokenizer strips, and so leaves out of its tokens
            while end < len(context) and unicodedata.category(context[end])[0] == "M":
                end += 1
            kept.append(score)
            spans.append((start, end))
    return Candidates(kept, spans, min(window.null for window in windows))


def merge_texts(spans: Sequence[tuple[int, int]], probabilities: Sequence[float], context: str) -> list[Json]:
    """{answer, start, end, score} of each text among these spans, best first; scores of equal texts are
    summed.
    """
    merged: dict[str, Json] = {}
    for (start, end), probability in zip(spans, probabilities, strict=True):
        text = context[start:end]
        first = merged.setdefault(text, {"answer": text, "start": start, "end": end, "score": 0.0})
        first["score"] = min(first["score"] + probability, 1.0)  # all candidates may be one text
    return sorted(merged.values(), key=lambda answer: -answer["score"])
