"""For pytest's `-p`: the contract suite of bertkit also runs over the task of this package."""

import cases

NUMBER = {
    word: index % 5 / 4
    for index, word in enumerate(sorted({word for words in cases.TOKENS for word in words}))
}
NUMBERS = [[NUMBER[word] for word in words] for words in cases.TOKENS]
ROWS = {"tokens": cases.TOKENS, "numbers": NUMBERS}
LONG = {name: [row * 3 for row in rows] for name, rows in ROWS.items()}
OPTIONS = {"name": "word-numbers", "stride": 4}
CASES = [
    cases.Case("word-numbers", OPTIONS, ROWS),
    cases.Case("word-numbers-windows", OPTIONS, LONG, max_length=16),
]
cases.CASES += CASES
cases.USUAL += [case.id for case in CASES]
