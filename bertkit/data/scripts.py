"""The scripts of texts: sets of characters, and which of them most letters belong to.

UNSPACED are those written without blanks between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese and others.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache

# A set of a regular expression: the characters of line-break classes ID and SA (Unicode Standard Annex 14), by blocks
UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese, Shan
    "\u1780-\u17ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u303c\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u3040-\u312f\u31a0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # kana, bopomofo
)
HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HANGUL = "\uac00-\ud7a3"  # syllables
LATIN = "A-Za-z\u00aa-\u02af\u1e00-\u1eff"
_LETTER = re.compile(r"[^\W\d_]")
SAMPLE = 100_000  # letters that decide


def share(texts: Iterable[str], script: str) -> float:
    """The share of the first letters of these texts that are in such a set of characters; 0 where there is no letter.

    >>> share(["去了 Paris"], HAN), share(["2024"], LATIN)
    (0.2857142857142857, 0.0)
    """
    member = re.compile(rf"(?=[^\W\d_])[{script}]")
    letters = members = 0
    for text in texts:
        letters += len(_LETTER.findall(text))
        members += len(member.findall(text))
        if letters >= SAMPLE:
            break
    return members / max(letters, 1)


def mostly_unspaced(texts: Iterable[str]) -> bool:
    """Whether at least half of the first letters of these texts are of scripts written without blanks.

    >>> mostly_unspaced(["昨天他去了 Paris"]), mostly_unspaced(["He went to 北京 yesterday"])
    (True, False)
    """
    return share(texts, UNSPACED) >= 0.5


@cache
def marks() -> str:
    """All combining marks (Unicode category M): accents, vowel signs, tones. For `re` they are not in `\\w`."""
    return "".join(code for code in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(code)[0] == "M")
