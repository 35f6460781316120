"""The HTTP application: from requests to endpoints, and from errors to status codes."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from firnmq.adapter import TopicCatalog
from firnmq.config import AdminConfig, is_loopback
from firnmq.errors import FirnError, InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.server.admin.errors import Refused, status_of
from firnmq.server.admin.groups import GroupAdmin
from firnmq.server.admin.lake import LakeAdmin
from firnmq.server.admin.metrics import CONTENT_TYPE, Metrics
from firnmq.server.admin.openapi import openapi
from firnmq.server.admin.parts import NodeParts
from firnmq.server.admin.routes import Call, Endpoint, endpoints, node_status
from firnmq.server.admin.tier import TierAdmin
from firnmq.server.admin.topics import TopicAdmin
from firnmq.server.admin.users import UserAdmin
from firnmq.server.documents import Failure, Health

_JSON = "application/json"
_CHANGES = ("POST", "PUT", "PATCH")
_NO_CHANGES = ("/records", "/plan")
"""Ends of paths whose calls are not logged: records are too many, and plans change nothing."""
_WITH_SLASHES = ("{group}", "{user}")

_log = EventLogger("admin")


def admin_app(parts: NodeParts, token: bytes | None) -> Starlette:
    groups = GroupAdmin(parts)
    table = endpoints(
        TopicAdmin(parts),
        groups,
        UserAdmin(parts.users),
        TierAdmin(parts),
        LakeAdmin(parts),
        lambda: node_status(parts),
    )
    metrics = Metrics(parts, groups)
    guard = _Guard(parts.config.admin, token, parts.storage.catalog)
    document = msgspec.json.encode(openapi(table, version("firnmq")))

    async def live(_: Request) -> Response:
        return _json(Health(status="live"))

    async def ready(_: Request) -> Response:
        is_ready = parts.broker.is_serving
        return _json(Health(status="ready" if is_ready else "stopping"), 200 if is_ready else 503)

    async def scrape(_: Request) -> Response:
        return Response(await metrics.text(), media_type=CONTENT_TYPE)

    async def describe(_: Request) -> Response:
        return Response(document, media_type=_JSON)

    return Starlette(
        routes=[
            Route("/health/live", guard.open(live)),
            Route("/health/ready", guard.open(ready)),
            Route("/metrics", guard.closed(scrape)),
            Route("/openapi.json", guard.open(describe)),
            *(
                Route(_route_path(each.path), guard.endpoint(each), methods=[each.method])
                for each in table
            ),
        ],
        exception_handlers={404: _no_such_path, 405: _no_such_path},
    )


Answer = Callable[[Request], Awaitable[Response]]


class _Guard:
    """Judges a request before anything is done, and turns errors into answers."""

    def __init__(self, config: AdminConfig, token: bytes | None, catalog: TopicCatalog) -> None:
        self._config = config
        self._catalog = catalog
        self._token = token
        self._is_local = is_loopback(config.host)

    def open(self, answer: Answer) -> Answer:
        """For what needs no token."""
        return self._answered(answer, needs_token=False)

    def closed(self, answer: Answer) -> Answer:
        return self._answered(answer, needs_token=True)

    def endpoint(self, endpoint: Endpoint) -> Answer:
        async def answer(request: Request) -> Response:
            for name in request.query_params.keys() - endpoint.query.keys():
                raise InvalidArgument(name, f"is no parameter of {endpoint.path}")
            body = None if endpoint.takes is None else await self._body(request, endpoint.takes)
            path = {name: str(value) for name, value in request.path_params.items()}
            call = Call(path=path, query=dict(request.query_params), body=body)
            result = await endpoint.answer(call)
            if request.method != "GET" and not request.url.path.endswith(_NO_CHANGES):
                _log.info("admin_change", method=request.method, path=request.url.path)
            return _json(result)

        return self.closed(answer)

    def _answered(self, answer: Answer, *, needs_token: bool) -> Answer:
        async def run(request: Request) -> Response:
            try:
                self._check(request, needs_token)
                return await answer(request)
            except FirnError as error:
                self._catalog.name_shard(error)
                status = status_of(error)
                if status >= 500:
                    _log.error("admin_request_failed", path=request.url.path, error=str(error))
                return _json(Failure(error=type(error).__name__, message=str(error)), status)
            except ClientDisconnect:
                return Response(status_code=400)

        return run

    def _check(self, request: Request, needs_token: bool) -> None:
        # A page in the operator's browser must not reach a local listener by a name that its
        # author controls, nor send a form to it.
        host = request.url.hostname or ""
        if self._is_local and not is_loopback(host):
            raise Refused(421, f"this listener is local and is not called {host!r}")
        if request.method in _CHANGES:
            kind = request.headers.get("content-type", "").partition(";")[0].strip()
            if kind != _JSON:
                raise Refused(415, f"send {_JSON}")
        if needs_token and self._token is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._token):
                raise Refused(401, "the bearer token is missing or wrong")

    async def _body(self, request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
        limit = self._config.body_bytes_max
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise Refused(413, f"a body may have {limit:,} bytes")
        try:
            return msgspec.json.decode(bytes(body), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument("body", str(error)) from error


def _route_path(path: str) -> str:
    for name in _WITH_SLASHES:
        path = path.replace(name, name.replace("}", ":path}"))
    return path


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = f"{request.method} {request.url.path} is nothing here; /openapi.json shows what is"
    return _json(Failure(error="NoSuchPath", message=text), status)


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type=_JSON)
