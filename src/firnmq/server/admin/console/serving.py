"""HTTP answers of the console that are no documents of the API: its files, sessions and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from firnmq.errors import FirnError
from firnmq.server.admin.console.assets import HEADERS, VIEWS, Asset, load_assets, page
from firnmq.server.admin.console.documents import Session
from firnmq.server.admin.errors import Refused
from firnmq.server.admin.http.guard import JSON
from firnmq.server.admin.http.sessions import Opened, Sessions
from firnmq.server.admin.http.token import Caller
from firnmq.server.documents import Failure

EVENT_STREAMS_MAX: Final = 64
"""Streams of events at a time; one address may have half of them."""
_EVENTS: Final = "text/event-stream"

Answer = Callable[[Request], Awaitable[Response]]


def asset_routes(opened: Callable[[Answer], Answer]) -> list[Route]:
    """The page at its addresses, and the files that it loads. `opened` makes an answer that needs
    no token."""
    assets = load_assets()

    async def view(request: Request) -> Response:
        return _served(request, page(assets))

    async def file(request: Request) -> Response:
        asset = assets.get(request.path_params["name"])
        if asset is None:
            raise Refused(404, "the console has no such file")
        return _served(request, asset)

    addresses = ["/", *(path for name in VIEWS for path in (f"/{name}", f"/{name}/{{rest:path}}"))]
    return [
        *(Route(path, opened(view)) for path in addresses),
        Route("/assets/{name}", opened(file)),
    ]


def _served(request: Request, asset: Asset) -> Response:
    headers = {**HEADERS, "etag": asset.tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(asset.packed, headers=headers, media_type=asset.kind)
    return Response(asset.raw, headers=headers, media_type=asset.kind)


class SessionAnswers:
    """Opens, shows and closes the session of a page."""

    def __init__(
        self, sessions: Sessions, *, needs_token: bool, version: str, is_cluster: bool
    ) -> None:
        self._sessions = sessions
        self._needs_token = needs_token
        self._version = version
        self._is_cluster = is_cluster

    def open(self, request: Request, token: str) -> Opened:
        opened = self._sessions.open(request.headers.get("host", ""), token.encode())
        if opened is None:
            raise Refused(401, "this is none of the node's tokens")
        return opened

    def opened(self, opened: Opened) -> Response:
        return self._answer(opened.caller, opened.proof, opened.cookie)

    def shown(self, caller: Caller) -> Response:
        return self._answer(caller, None, None)

    def closed(self, request: Request) -> Response:
        cookie = self._sessions.closed(request.headers.get("host", ""))
        return Response(b"{}", media_type=JSON, headers={"set-cookie": cookie})

    def _answer(self, caller: Caller, proof: str | None, cookie: str | None) -> Response:
        document = Session(
            name=caller.name,
            role=caller.role.name.lower(),
            needs_token=self._needs_token,
            version=self._version,
            cluster=self._is_cluster,
            proof=proof,
        )
        headers = {"cache-control": "no-store"}
        if cookie is not None:
            headers["set-cookie"] = cookie
        return Response(msgspec.json.encode(document), media_type=JSON, headers=headers)


class EventStreams:
    """Server-sent events, for a bounded number of clients. Owned by the event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def check(self, address: str) -> None:
        if (
            self._counts.total() >= EVENT_STREAMS_MAX
            or self._counts[address] >= EVENT_STREAMS_MAX // 2
        ):
            raise Refused(503, "too many pages are following the node; close one")

    def entered(self, address: str) -> None:
        self._counts[address] += 1

    def left(self, address: str) -> None:
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


class EventResponse(StreamingResponse):
    """Events as they are made. However it ends, the generator is closed and its place given back.
    An error is an event of its own, since the status is sent by then."""

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        streams: EventStreams,
        address: str,
        failed: Callable[[FirnError], Failure],
    ) -> None:
        super().__init__(
            self._pieces(first, events, failed),
            media_type=_EVENTS,
            headers={"cache-control": "no-store", "x-content-type-options": "nosniff"},
        )
        self._events = events
        self._streams = streams
        self._address = address
        streams.entered(address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.left(self._address)
            await self._events.aclose()

    @staticmethod
    async def _pieces(
        first: bytes,
        events: AsyncGenerator[bytes, None],
        failed: Callable[[FirnError], Failure],
    ) -> AsyncGenerator[bytes, None]:
        yield _piece(first)
        try:
            async for document in events:
                yield _piece(document)
        except FirnError as error:
            yield b"event: failure\ndata: " + msgspec.json.encode(failed(error)) + b"\n\n"


def _piece(document: bytes) -> bytes:
    """An empty document is a comment: a sign of life."""
    return b"data: " + document + b"\n\n" if document else b":\n\n"
