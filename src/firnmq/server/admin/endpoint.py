"""What the table of endpoints is made of: a path with its method, documents and function."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from firnmq.server.admin.http.places import StreamTurn
from firnmq.server.admin.http.token import Role
from firnmq.server.reading import number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request: what its path, its query and its body say."""

    path: dict[str, str]
    query: dict[str, str]
    body: Any = None

    def number(self, name: str) -> int | None:
        return number_of(self.query, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a query, which may be left out."""

    text: str
    kind: str = "integer"
    """Its type in the OpenAPI document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path and method; `takes` and `gives` are the types of the bodies."""

    method: str
    role: Role
    """What a token needs."""
    path: str
    summary: str
    gives: Any
    answer: Callable[[Call], Awaitable[msgspec.Struct | list[Any]]] | None = None
    stream: Callable[[Call, StreamTurn], AsyncGenerator[bytes, None]] | None = None
    """Instead of `answer`: lines of JSON, each of them a document of type `gives`."""
    events: Callable[[Call], AsyncGenerator[bytes, None]] | None = None
    """Instead of `answer`: server-sent events, whose data are documents of type `gives`. An empty
    piece is a sign of life."""
    takes: type[msgspec.Struct] | None = None
    query: dict[str, Parameter] = field(default_factory=dict)
