"""Scripts that are written without blanks between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# A set of a regular expression: the characters of line-break classes ID and SA (Unicode Standard Annex 14), by blocks
UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Burmese, Shan
    "\u1780-\u17ff"  # Khmer
    "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf"  # Tai Le, New Tai Lue, Tai Tham, Tai Viet
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u303c\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u3040-\u312f\u31a0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # kana, bopomofo
)
_LETTER = re.compile(r"[^\W\d_]")
_UNSPACED_LETTER = re.compile(rf"(?=\w)[{UNSPACED}]")
SAMPLE = 100_000  # letters that decide
_BESIDE_NO_BLANK = re.compile(rf"[{UNSPACED}\u3000-\u303f\uff00-\uffef]")  # with East Asian punctuation
_CHARACTER_BY_CHARACTER = re.compile(rf"[{UNSPACED}\uac00-\ud7a3]")  # with syllables of Korean


def mostly_unspaced(texts: Iterable[str]) -> bool:
    """Whether at least half of the first letters of these texts are of scripts written without blanks.

    >>> mostly_unspaced(["昨天他去了 Paris"]), mostly_unspaced(["He went to 北京 yesterday"])
    (True, False)
    """
    letters = unspaced = 0
    for text in texts:
        letters += len(_LETTER.findall(text))
        unspaced += len(_UNSPACED_LETTER.findall(text))
        if letters >= SAMPLE:
            break
    return letters > 0 and 2 * unspaced >= letters


def joined(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The text that tokens are of, and the characters of each in it, end exclusive.

    They are joined by spaces, but not where a token is blank, which says where the spaces are; not beside a character
    of a script written without them; and not where all are single characters, some of them of such a script or Korean.

    >>> joined(["I", "like", "it"])[0], joined(["私", "は", "Tom", "です"])[0], joined(["a", "n", " ", "o", "x"])[0]
    ('I like it', '私はTomです', 'an ox')
    """
    characters = all(len(token) == 1 for token in tokens) and any(map(_CHARACTER_BY_CHARACTER.match, tokens))
    spaced = not characters and not any(map(str.isspace, tokens))
    text, places = "", list[tuple[int, int]]()
    for number, token in enumerate(tokens):
        beside = _BESIDE_NO_BLANK.match(text[-1:]) or _BESIDE_NO_BLANK.match(token)
        if number and spaced and not beside:
            text += " "
        places.append((len(text), len(text) + len(token)))
        text += token
    return text, places
