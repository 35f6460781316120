"""Checks the text of a query before Spark starts, which takes long.

Only certain errors are refused here: an open quote or bracket, a misspelt first word, a table that
cannot exist. Spark checks everything else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from firnmq.errors import InvalidArgument, TopicNotFound

_TOKEN: Final = re.compile(
    r"""
    (?P<gap>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<text>\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |`(?P<quoted>(?:[^`]|``)*)`
    |(?P<word>[A-Za-z_]\w*)
    |(?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_FIRST_WORDS: Final = ("SELECT", "WITH", "FROM", "VALUES", "DESCRIBE", "SHOW", "EXPLAIN")
_OTHER_FIRST_WORDS: Final = frozenset({"DESC", "SET", "USE", "TABLE", "SYNC"})
"""Statements whose first words look like one of those above."""
_QUERIES: Final = frozenset({"SELECT", "WITH", "FROM"})
_NO_TABLES: Final = frozenset({"LATERAL", "VALUES", "TABLE", "SELECT", "STREAM", "UNNEST"})
_PAIRS: Final = {")": "(", "]": "["}


class Token(NamedTuple):
    kind: str
    """`word`, `quoted` (in backticks), `text` or `mark` (one character)."""
    text: str

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words


def tokens_of(query: str) -> list[Token]:
    found = []
    for match in _TOKEN.finditer(query):
        kind = match.lastgroup
        assert kind is not None
        if kind != "gap":
            found.append(Token(kind, match[kind].replace("``", "`")))
    return found


def names_in(query: str) -> set[str]:
    """Everything in a query that may be the name of a topic."""
    return {token.text for token in tokens_of(query) if token.is_name}


def check_text(query: str) -> None:
    """Refuses a query that no parser can accept."""
    tokens = tokens_of(query)
    if not tokens:
        raise InvalidArgument("query", "is empty")
    opened: list[str] = []
    for token in tokens:
        if token.kind != "mark":
            continue
        if token.text in ("'", '"', "`"):
            raise InvalidArgument("query", f"has a {token.text} that is not closed")
        if token.text in _PAIRS.values():
            opened.append(token.text)
        elif token.text in _PAIRS and (not opened or opened.pop() != _PAIRS[token.text]):
            raise InvalidArgument("query", f"has a {token.text} that closes nothing")
    if opened:
        raise InvalidArgument("query", f"has a {opened[-1]} that is not closed")
    first = tokens[0].text.upper()
    if tokens[0].kind == "word" and first not in {*_FIRST_WORDS, *_OTHER_FIRST_WORDS}:
        from difflib import get_close_matches

        closest = get_close_matches(first, _FIRST_WORDS, n=1, cutoff=0.8)
        if closest:
            raise InvalidArgument(
                "query", f"begins with {tokens[0].text}; did you mean {closest[0]}?"
            )


def check_tables(query: str, known: Collection[str]) -> None:
    """TopicNotFound if the query reads a table that is neither known nor made by the query."""
    tokens = tokens_of(query)
    made = {  # WITH name AS (…), WITH name (columns) AS (…).
        token.text.lower()
        for token, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if token.is_name and (second.text == "(" or (second.is_word("AS") and third.text == "("))
    }
    for name in _tables_read(tokens):
        if name.lower() not in known and name.lower() not in made:
            raise TopicNotFound(name)


def _tables_read(tokens: list[Token]) -> Iterator[str]:
    """The plain names behind FROM and JOIN. Only those of a SELECT: `extract(day FROM time)` and
    `a IS DISTINCT FROM b` read nothing, and a name with a dot or a bracket is no topic."""
    end = Token("mark", "")
    groups = [tokens[0].text.upper()]  # The first word of each bracket that is open.
    for at, token in enumerate(tokens):
        following = tokens[at + 1] if at + 1 < len(tokens) else end
        if token == Token("mark", "("):
            groups.append(following.text.upper())
        elif token == Token("mark", ")"):
            groups.pop()
        elif token.is_word("FROM", "JOIN") and groups[-1] in _QUERIES:
            beyond = tokens[at + 2] if at + 2 < len(tokens) else end
            is_plain = following.is_name and not following.is_word(*_NO_TABLES)
            is_comparison = at > 0 and tokens[at - 1].is_word("DISTINCT")
            if is_plain and not is_comparison and beyond.text not in (".", "("):
                yield following.text
