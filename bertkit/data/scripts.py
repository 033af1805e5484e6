"""The scripts of texts: sets of characters, and which of them most letters belong to.

UNSPACED are those written without blanks between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese and
others.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

# A set of a regular expression: the characters of line-break classes ID and SA (Unicode Standard Annex 14),
# by blocks
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
_BESIDE_NO_BLANK = re.compile(rf"[{UNSPACED}\u3000-\u303f\uff00-\uffef]")  # with East Asian punctuation
_CHARACTER_BY_CHARACTER = re.compile(rf"[{UNSPACED}{HANGUL}]")


def share(texts: Iterable[str], script: str) -> float:
    """The share of the first letters of these texts that are in such a set of characters; 0 where there is no
    letter.

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


def has_unspaced(text: str) -> bool:
    """Whether a character of this text is of a script written without blanks."""
    return not text.isascii() and re.search(f"[{UNSPACED}]", text) is not None


@cache
def of_category(category: str) -> str:
    """All characters of a Unicode category, such as Cf, or M: combining marks, which for `re` are not in
    `\\w`.
    """
    codes = map(chr, range(sys.maxunicode + 1))
    return "".join(code for code in codes if unicodedata.category(code).startswith(category))


def joined(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The text that tokens are of, and the characters of each in it, end exclusive.

    They are joined by spaces, but not beside a character of a script written without them; not where blank
    tokens say where the spaces are; and not where most tokens are single characters, some of them of such a
    script or Korean, unless two are words.

    >>> texts = (["I", "like", "it"], ["私", "は", "Tom", "です"], ["경", "찰", "은", "FBI"])
    >>> tuple(joined(units)[0] for units in texts)
    ('I like it', '私はTomです', '경찰은FBI')
    """
    spelled = any(map(_CHARACTER_BY_CHARACTER.match, tokens))
    spelled = spelled and 3 * sum(map(_is_single, tokens)) >= 2 * len(tokens)
    spaced = spelled or not any(map(str.isspace, tokens)) or any(map(_are_words, tokens, tokens[1:]))
    text = ""
    places = list[tuple[int, int]]()
    for number, token in enumerate(tokens):
        beside = _BESIDE_NO_BLANK.match(text[-1:]) or _BESIDE_NO_BLANK.match(token)
        apart = _are_words(tokens[number - 1], token, both=True) if spelled else spaced
        if number and apart and not beside:
            text += " "
        places.append((len(text), len(text) + len(token)))
        text += token
    return text, places


def _is_single(token: str) -> bool:
    """Whether a token is one character, with its marks."""
    return token != "" and all(unicodedata.category(mark)[0] in "MC" for mark in token[1:])


def _are_words(before: str, token: str, *, both: bool = False) -> bool:
    """Whether letters or digits of two tokens meet, one of which (or both) is longer than a character."""
    longest = min(len(before), len(token)) if both else max(len(before), len(token))
    return longest > 1 and before[-1:].isalnum() and token[:1].isalnum()
