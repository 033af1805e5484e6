"""Special tokens that a text spells out, such as `[SEP]`, are text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def keep_out(tokenizer: PreTrainedTokenizerFast) -> None:
    """Let the tokenizer split those special tokens too that `split_special_tokens` leaves whole.

    Unigram models list them among their pieces and find them in any text; SentencePiece itself does not.
    """
    from tokenizers import Regex, pre_tokenizers

    special = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.pop(str(tokenizer.unk_token), None)  # which any unknown character is
    if not special:
        return
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True  # LUKE's tokenizer takes no `split_special_tokens`
    spelled = backend.encode_batch([*special], add_special_tokens=False)
    backend.encode_special_tokens = tokenizer.split_special_tokens
    whole = [each for (each, index), text in zip(special.items(), spelled, strict=True) if index in text.ids]
    if whole:
        first = "|".join(f"{re.escape(each[0])}(?={re.escape(each[1:])})" for each in whole)
        split = pre_tokenizers.Split(Regex(first), "merged_with_previous")
        before = backend.pre_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence([before, split]) if before else split
