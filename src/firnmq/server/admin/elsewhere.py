"""Requests of HTTP clients that another node must answer: it gets the request and answers as if the
client had asked it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from firnmq.cluster.peers import Served
from firnmq.errors import FirnError
from firnmq.server.admin.endpoint import Call, Endpoint
from firnmq.server.admin.others import OtherNodes
from firnmq.server.documents import Failure

_OPERATION: Final = "admin"
_TIMEOUT_S = 60.0


class _Forwarded(msgspec.Struct, frozen=True, array_like=True):
    method: str
    endpoint: str
    """Its path as the table of endpoints has it."""
    path: dict[str, str]
    query: dict[str, str]
    body: bytes
    """JSON; empty if there is none."""


class _Answered(msgspec.Struct, frozen=True, array_like=True):
    status: int
    document: bytes


Describe = Callable[[FirnError, str], tuple[Failure, int]]


class Elsewhere:
    """Both sides of it."""

    def __init__(self, others: OtherNodes, table: list[Endpoint], describe: Describe) -> None:
        """`describe` tells what a client is told of an error."""
        self._others = others
        self._table = {(each.method, each.path): each for each in table}
        self._describe = describe
        others.serve(_OPERATION, self._serve)

    async def ask(self, node: int, endpoint: Endpoint, call: Call) -> tuple[int, bytes]:
        """Status and document of the other node's answer."""
        body = b"" if call.body is None else msgspec.json.encode(call.body)
        request = _Forwarded(endpoint.method, endpoint.path, call.path, call.query, body)
        answer = await self._others.ask(
            node, _OPERATION, _decoded, msgspec.msgpack.encode(request), timeout_s=_TIMEOUT_S
        )
        return answer.status, answer.document

    async def _serve(self, arguments: bytes) -> Served:
        request = msgspec.msgpack.decode(arguments, type=_Forwarded)
        endpoint = self._table[request.method, request.endpoint]
        body: Any = None
        if endpoint.takes is not None:
            body = msgspec.json.decode(request.body, type=endpoint.takes)
        assert endpoint.answer is not None
        try:
            call = Call(path=request.path, query=request.query, body=body)
            status, document = 200, await endpoint.answer(call)
        except FirnError as error:
            document, status = self._describe(error, request.endpoint)
        answered = _Answered(status, msgspec.json.encode(document))
        return Served(msgspec.msgpack.encode(answered))


def _decoded(value: memoryview, raw: memoryview) -> _Answered:
    return msgspec.msgpack.decode(value, type=_Answered)
