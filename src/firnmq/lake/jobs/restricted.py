"""Which queries a server runs for its users: those that read topics and nothing else.

Spark's SQL can do whatever its process may: read any file, call any method of Java, run commands.
A query for a user of the node is therefore one that begins with a word that reads, has none of the
words that write or run something, and none of the functions that leave SQL. The session refuses
what words cannot show: files as tables, and variables of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from firnmq.errors import InvalidArgument
from firnmq.lake.jobs.sqltext import tokens_of

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.legacy.allowUntypedScalaUDF": "false",
}
"""Of the session that such queries run in."""
QUERY_CHARS_MAX: Final = 20_000

_FIRST: Final = ("SELECT", "WITH", "FROM", "VALUES")
_WORDS: Final = frozenset(
    {"INSERT", "UPDATE", "DELETE", "MERGE", "TRANSFORM", "OVERWRITE", "DIRECTORY"}
)
_FUNCTIONS: Final = frozenset({"reflect", "java_method", "try_reflect", "identifier"})


def check_reading(query: str) -> None:
    """InvalidArgument if the query may do more than read."""
    if len(query) > QUERY_CHARS_MAX:
        raise InvalidArgument("query", f"may have {QUERY_CHARS_MAX:,} characters")
    # Where Spark's lexer and ours differ, a text or comment could hide words from this one.
    if "\r" in query.replace("\r\n", "\n"):
        raise InvalidArgument("query", "may not have a carriage return without a newline")
    if "${" in query:
        raise InvalidArgument("query", "may not have variables, which begin with ${")
    if "/*+" in query.replace(" ", ""):
        raise InvalidArgument("query", "may not have hints")
    tokens = tokens_of(query)
    if not tokens:
        raise InvalidArgument("query", "is empty")
    if not tokens[0].is_word(*_FIRST) and tokens[0].text != "(":
        raise InvalidArgument("query", f"must begin with one of {', '.join(_FIRST)}")
    for token, following in zip(tokens, [*tokens[1:], tokens[0]], strict=True):
        if token.is_word(*_WORDS):
            raise InvalidArgument(
                "query", f"may not have the word {token.text} here; it only reads"
            )
        if token.is_name and token.text.lower() in _FUNCTIONS:
            raise InvalidArgument("query", f"may not use {token.text}")
        if token.is_word("USING") and following.kind == "text":
            raise InvalidArgument("query", "may not run commands")
        if token.text == "$":
            raise InvalidArgument("query", "may not have a $ outside of texts in quotes")
        if token.text == ";" and token is not tokens[-1]:
            raise InvalidArgument("query", "must be one statement")
