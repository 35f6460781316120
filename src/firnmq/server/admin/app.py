"""The HTTP application: from requests to endpoints, and from errors to status codes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from firnmq.config import AdminConfig
from firnmq.disk import call_blocking
from firnmq.errors import FirnError, InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.server.admin.console.documents import NewSession
from firnmq.server.admin.console.serving import (
    EventResponse,
    EventStreams,
    SessionAnswers,
    asset_routes,
)
from firnmq.server.admin.console.views import ConsoleViews
from firnmq.server.admin.elsewhere import Elsewhere
from firnmq.server.admin.endpoint import Call, Endpoint
from firnmq.server.admin.endpoints.cluster import ClusterAdmin
from firnmq.server.admin.endpoints.groups import GroupAdmin
from firnmq.server.admin.endpoints.lake import LakeAdmin
from firnmq.server.admin.endpoints.rules import RuleAdmin
from firnmq.server.admin.endpoints.tiering import TierAdmin
from firnmq.server.admin.endpoints.topics import TopicAdmin
from firnmq.server.admin.endpoints.users import UserAdmin
from firnmq.server.admin.errors import GroupElsewhere, Refused, status_of
from firnmq.server.admin.http.guard import JSON, AccessGuard, check_role
from firnmq.server.admin.http.limits import BodyBudget
from firnmq.server.admin.http.places import SharedPlaces, StreamTurn
from firnmq.server.admin.http.token import Caller, Role, Tokens
from firnmq.server.admin.machine import Machine
from firnmq.server.admin.metrics import CONTENT_TYPE, Metrics, scrape_text
from firnmq.server.admin.openapi import openapi
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.admin.reports import NodeReports, node_status, readiness
from firnmq.server.admin.routes import endpoints
from firnmq.server.documents import CommandLine, Failure, NodeStatus, Readiness

S = TypeVar("S", bound=msgspec.Struct)

_LINES = "application/x-ndjson"
_NO_CHANGES = ("/records", "/plan", "/sql")
"""Ends of paths whose calls are not logged: records are too many, and plans change nothing."""
_WITH_SLASHES = ("{group}", "{user}")
_DOCUMENTS_MAX = 4
"""Documents that are produced concurrently. The event loop takes tens of milliseconds for a large
one; with more of them, health and Kafka clients would wait for all."""
_INLINE_BYTES_MAX = 4096
"""A thread decodes larger bodies, one at a time: a decoded body can take many times its size."""
_OBJECTS_MAX = 1_000_000
"""Braces in a body. An empty object takes 2 bytes in a body and about 140 in memory."""

_log = EventLogger("admin")


def admin_app(
    parts: NodeParts,
    tokens: Tokens,
    streams: SharedPlaces,
    reached: Callable[[], dict[str, str]],
) -> Starlette:
    """`streams`: places of pages of records that clients have not taken. `reached`: how a process
    on this machine reaches the node."""
    others = None if parts.local.member is None else OtherNodes(parts.local.member)
    groups, topics = GroupAdmin(parts, others), TopicAdmin(parts)
    reports = NodeReports(parts, others)
    admin = parts.config.admin
    bodies = BodyBudget(admin.body_bytes_total_max, body_bytes_max=admin.body_bytes_max)
    metrics = Metrics(parts, groups, bodies)
    machine = None
    if parts.place is not None and others is not None:
        machine = Machine(parts.place, others, reports, metrics)

    async def status() -> NodeStatus:
        return node_status(parts) if machine is None else await machine.status()

    async def ready_state() -> Readiness:
        return readiness(parts) if machine is None else await machine.readiness()

    console = ConsoleViews(parts, groups, others, status, ready_state, reached)
    table = endpoints(
        topics,
        groups,
        UserAdmin(parts.users, parts.broker),
        RuleAdmin(parts.rules),
        TierAdmin(parts, others),
        LakeAdmin(parts, others),
        status,
        ClusterAdmin(parts, reports),
        console,
    )
    console.samples.start()
    guard = _Guard(admin, tokens, parts, bodies, streams)
    if others is not None:
        guard.elsewhere = Elsewhere(others, table, guard.failure)
    installed = version("firnmq")
    document = msgspec.json.encode(openapi(table, installed))

    async def live(_: Request) -> Response:
        return _json(Readiness(status="live"))

    async def ready(_: Request) -> Response:
        found = await ready_state()
        return _json(found, 200 if found.status == "ready" else 503)

    async def scrape(request: Request) -> Response:
        async with guard.documents.place(_address(request)):
            families = await (metrics.families() if machine is None else machine.families())
            return Response(scrape_text(families), media_type=CONTENT_TYPE)

    async def command(line: CommandLine) -> bytes | None:
        if parts.answer_command is None or not _is_for(line, parts, installed):
            return None
        return await parts.answer_command(line, topics.records)

    async def describe(_: Request) -> Response:
        return Response(document, media_type=JSON)

    return Starlette(
        routes=[
            Route("/health/live", guard.open(live)),
            Route("/health/ready", guard.open(ready)),
            Route("/metrics", guard.closed(scrape)),
            Route("/openapi.json", guard.open(describe)),
            *session_routes(guard, console),
            *asset_routes(guard.open),
            Route("/v1/command", guard.command(command), methods=["POST"]),
            *(
                Route(_route_path(each.path), guard.endpoint(each), methods=[each.method])
                for each in table
            ),
        ],
        exception_handlers={404: _no_such_path, 405: _no_such_path},
    )


def _is_for(line: CommandLine, parts: NodeParts, installed: str) -> bool:
    """Whether a command line means this node's directory, and is of its version."""
    path = parts.local.path if parts.place is None else parts.place.directory
    served = path.stat()
    return (line.version, line.device, line.inode) == (installed, served.st_dev, served.st_ino)


Answer = Callable[[Request], Awaitable[Response]]


def session_routes(guard: _Guard, console: ConsoleViews) -> list[Route]:
    """Signing in needs no token, for it brings one."""
    answers = SessionAnswers(
        guard.access.sessions,
        needs_token=guard.needs_token,
        version=console.version,
        is_cluster=console.is_cluster,
    )

    async def change(request: Request) -> Response:
        if request.method == "DELETE":
            return answers.closed(request)
        try:
            opened = answers.open(request, (await guard.small_body(request, NewSession)).token)
        except Refused as error:
            guard.tell_refused(request, error, "session")
            raise
        return answers.opened(opened)

    async def show(request: Request) -> Response:
        return answers.shown(request.state.who)

    return [
        Route("/v1/session", guard.closed(show), methods=["GET"]),
        Route("/v1/session", guard.open(change), methods=["POST", "DELETE"]),
    ]


class _Guard:
    """Checks a request before anything else, and turns errors into responses."""

    def __init__(
        self,
        config: AdminConfig,
        tokens: Tokens,
        parts: NodeParts,
        bodies: BodyBudget,
        streams: SharedPlaces,
    ) -> None:
        self._config = config
        self._streams = streams
        self._catalog = parts.storage.catalog
        self._audit = parts.broker.audit
        self.access = AccessGuard(config, tokens)
        self.needs_token = tokens.are_required
        self._events = EventStreams()
        self._bodies = bodies
        self._decoding = SharedPlaces(1)
        self.documents = SharedPlaces(_DOCUMENTS_MAX)
        self.elsewhere: Elsewhere | None = None
        """Requests that another node must answer; None if the node is alone."""

    def open(self, answer: Answer) -> Answer:
        """For what needs no token."""
        return self._answered(answer, None)

    def closed(self, answer: Answer, role: Role = Role.READ) -> Answer:
        return self._answered(answer, role)

    def endpoint(self, endpoint: Endpoint) -> Answer:
        async def answer(request: Request) -> Response:
            for name in request.query_params.keys() - endpoint.query.keys():
                raise InvalidArgument(name, f"is no parameter of {endpoint.path}")
            path = {name: str(value) for name, value in request.path_params.items()}
            if endpoint.events is not None:
                call = Call(path=path, query=dict(request.query_params))
                return await self._pushed(endpoint.events(call), request)
            if endpoint.stream is not None:
                turn = StreamTurn(self._streams, self.documents, _address(request))
                call = Call(path=path, query=dict(request.query_params))
                return await self._streamed(endpoint.stream(call, turn), turn, request.url.path)
            # The body's budget is held until the response, since its records stay in memory too.
            with self._bodies.body(_address(request)) as count:
                body = None
                if endpoint.takes is not None:
                    body = await self._body(request, endpoint.takes, count)
                call = Call(path=path, query=dict(request.query_params), body=body)
                if request.method == "GET":
                    async with self.documents.place(_address(request)):
                        return await self._document(endpoint, call)
                response = await self._document(endpoint, call)
            if response.status_code == 200 and not request.url.path.endswith(_NO_CHANGES):
                _log.info("admin_change", method=request.method, path=request.url.path)
                who, what = f"token {request.state.caller}", f"{request.method} {endpoint.path}"
                self._audit.changed(who, _address(request), what, [request.url.path])
            return response

        return self.closed(answer, endpoint.role)

    async def small_body(self, request: Request, kind: type[S]) -> S:
        with self._bodies.body(_address(request)) as count:
            return await self._body(request, kind, count)

    async def _pushed(self, events: AsyncGenerator[bytes, None], request: Request) -> EventResponse:
        """Server-sent events. An error before the first is an ordinary refusal."""
        address = _address(request)
        self._events.check(address)
        try:
            first = await anext(events, b"")
        except BaseException:
            await events.aclose()
            raise
        path = request.url.path

        def failed(error: FirnError) -> Failure:
            return self.failure(error, path)[0]

        return EventResponse(first, events, self._events, address, failed)

    async def _document(self, endpoint: Endpoint, call: Call) -> Response:
        """The endpoint's answer, by the node that has it."""
        assert endpoint.answer is not None
        try:
            return _json(await endpoint.answer(call))
        except GroupElsewhere as elsewhere:
            assert self.elsewhere is not None
            status, document = await self.elsewhere.ask(elsewhere.node, endpoint, call)
            headers = {"x-content-type-options": "nosniff"}
            return Response(document, status, headers, media_type=JSON)

    def command(self, printed: Callable[[CommandLine], Awaitable[bytes | None]]) -> Answer:
        """Answers a command line with the command's output, or with 204 if the command must run in
        its own process."""

        async def answer(request: Request) -> Response:
            with self._bodies.body(_address(request)) as count:
                line = await self._body(request, CommandLine, count)
                async with self.documents.place(_address(request)):
                    text = await printed(line)
            if text is None:
                return Response(status_code=204)
            return Response(text, media_type="application/octet-stream")

        return self.closed(answer)

    async def _streamed(
        self, lines: AsyncGenerator[bytes, None], turn: StreamTurn, path: str
    ) -> Response:
        """Sends each piece once the client has read those before it. An error before the first
        piece is an ordinary refusal; later it is the last line. If the client disconnects, the
        reading is cancelled."""

        async def next_piece() -> bytes:
            await turn.enter()
            piece = await anext(lines, b"")
            turn.made()
            return piece

        async def pieces() -> AsyncIterator[bytes]:
            piece = first
            try:
                while piece:
                    yield piece
                    turn.leave()
                    piece = await next_piece()
            except FirnError as error:
                yield msgspec.json.encode(self.failure(error, path)[0]) + b"\n"

        try:
            first = await next_piece()
        except BaseException:
            await _end(lines, turn)
            raise
        return _Stream(pieces(), lines, turn)

    def failure(self, error: FirnError, path: str) -> tuple[Failure, int]:
        self._catalog.explain(error)
        status = status_of(error)
        if status >= 500 and not isinstance(error, Refused):
            _log.error("admin_request_failed", path=path, error=str(error))
        return Failure(error=type(error).__name__, message=str(error)), status

    def _answered(self, answer: Answer, role: Role | None) -> Answer:
        """`role`: what a request needs; None if it needs no token."""

        async def run(request: Request) -> Response:
            try:
                self._check(request, role)
                return await answer(request)
            except FirnError as error:
                return _json(*self.failure(error, request.url.path))
            except ClientDisconnect:
                return Response(status_code=400)

        return run

    def _check(self, request: Request, role: Role | None) -> None:
        caller = None
        try:
            caller = self.access.check(
                request.method,
                request.headers.items(),
                http_version=request.scope["http_version"],
                needs_token=role is not None,
            )
            request.state.caller = caller.name
            request.state.who = caller
            if role is not None:
                check_role(caller, role)
        except Refused as error:
            if role is not None and error.status in (401, 403):
                self.tell_refused(request, error, role.name.lower(), caller)
            raise

    def tell_refused(
        self, request: Request, error: Refused, needed: str, caller: Caller | None = None
    ) -> None:
        if error.status in (401, 403):
            who = "unknown" if caller is None else f"token {caller.name}"
            names = [request.url.path]
            self._audit.refused(who, _address(request), request.method, needed, "http", names)

    async def _body(self, request: Request, kind: type[S], count: Callable[[int], None]) -> S:
        limit = self._config.body_bytes_max
        announced = request.headers.get("content-length", "0")
        body = bytearray()
        if int(announced) > limit:  # h11 has checked that it is a number.
            raise Refused(413, f"a body may have {limit:,} bytes, not {announced}")
        async for chunk in request.stream():
            if len(body) + len(chunk) > limit:
                raise Refused(413, f"a body may have {limit:,} bytes")
            count(len(chunk))
            body += chunk
        if len(body) <= _INLINE_BYTES_MAX:
            return _decoded(body, kind)
        if body.count(b"{") > _OBJECTS_MAX:
            raise Refused(413, f"a body may have {_OBJECTS_MAX:,} objects; send fewer at a time")
        async with self._decoding.place(_address(request)):
            return await call_blocking(None, _decoded, body, kind)


class _Stream(StreamingResponse):
    """Lines of JSON. However it ends, the reading ends and its places are given back."""

    def __init__(
        self, pieces: AsyncIterator[bytes], lines: AsyncGenerator[bytes, None], turn: StreamTurn
    ) -> None:
        super().__init__(pieces, media_type=_LINES)
        self._lines = lines
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await _end(self._lines, self._turn)


async def _end(lines: AsyncGenerator[bytes, None], turn: StreamTurn) -> None:
    turn.leave()
    await lines.aclose()


def _decoded(body: bytearray, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgument("body", str(error)) from error


def _address(request: Request) -> str:
    """The client's, without port."""
    return request.client.host if request.client is not None else ""


def _route_path(path: str) -> str:
    for name in _WITH_SLASHES:
        path = path.replace(name, name.replace("}", ":path}"))
    return path


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = f"{request.method} {request.url.path} is nothing here; /openapi.json shows what is"
    return _json(Failure(error="NoSuchPath", message=text), status)


def _json(document: Any, status: int = 200) -> Response:
    # A browser that is sent to a document shows it as what it is: records may hold markup.
    headers = {"x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(document), status, headers, media_type=JSON)
