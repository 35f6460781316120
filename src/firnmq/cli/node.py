"""A running node, as commands reach it: by HTTP, with the standard library's client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firnmq.errors import FirnError, InvalidArgument

if TYPE_CHECKING:
    import http.client

NODE_DEFAULT = "http://127.0.0.1:9644"
TOKEN_VARIABLE = "FIRN_ADMIN_TOKEN_FILE"
"""Also what tells a node where its token is."""
TOKEN_NAME = "admin.token"
_TIMEOUT_S = 60.0
_PIECE_BYTES = 256 * 1024
_FAILURE = b'{"error":'
"""How a line begins that says why a stream ended; records begin with their topic."""


class NodeUnreachable(FirnError):
    """No node answers at the address."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(f"no node answers at {url}: {reason}")
        self.url = url


class NodeRefused(FirnError):
    """The node answered with an error; `kind` is its type there."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class NodeClient:
    """Calls a node's HTTP listener over one connection."""

    def __init__(self, url: str, token: str | None = None) -> None:
        import http.client

        host, port = _host_and_port(url)
        self.url = url
        self._connection: http.client.HTTPConnection = http.client.HTTPConnection(
            host, port, timeout=_TIMEOUT_S
        )
        self._headers = {"Accept": "application/json"}
        if token is not None:
            if not token.isascii() or not token.isprintable():
                raise InvalidArgument(TOKEN_VARIABLE, "the token must be one line of ASCII text")
            self._headers["Authorization"] = f"Bearer {token}"

    def set_timeout(self, timeout_s: float) -> None:
        """Sets the time-out of the following requests."""
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)

    def close(self) -> None:
        self._connection.close()

    def get(self, *path: str, **query: object) -> Any:
        """The document at /v1/ and the parts of a path."""
        return self.call("GET", path, query=query)

    def call(
        self,
        method: str,
        path: tuple[str, ...],
        body: object = None,
        query: dict[str, object] | None = None,
    ) -> Any:
        import http.client

        import msgspec

        headers = dict(self._headers)
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, _target(path, query), content, headers)
            response = self._connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NodeUnreachable(self.url, error) from error
        if response.status != 200:
            raise self._refusal(response.status, raw)
        try:
            return msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise NodeUnreachable(self.url, "something else answers there") from error

    def lines(self, *path: str, **query: object) -> Iterator[list[bytes]]:
        """The lines of a document that the node streams, as many at a time as have come. The node
        waits until they are read."""
        import http.client

        try:
            self._connect()
            self._connection.request("GET", _target(path, query), headers=self._headers)
            response = self._connection.getresponse()
            if response.status != 200:
                raise self._refusal(response.status, response.read())
            begun = b""
            while piece := response.read1(_PIECE_BYTES):
                *lines, begun = (begun + piece).split(b"\n")
                lines = [line for line in lines if line]  # An empty line says: still here.
                failure = lines.pop() if lines and lines[-1].startswith(_FAILURE) else None
                yield lines
                if failure is not None:
                    raise self._refusal(0, failure)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NodeUnreachable(self.url, error) from error

    def _connect(self) -> None:
        """Connects with the host as bytes: the codec for names of other alphabets, which text goes
        through, takes longer to load than a short command to run."""
        import socket

        connection = self._connection
        if connection.sock is None and connection.host.isascii():
            address: Any = (connection.host.encode("ascii"), connection.port)
            connection.sock = socket.create_connection(address, _TIMEOUT_S)

    def _refusal(self, status: int, raw: bytes) -> FirnError:
        import json

        try:
            document = json.loads(raw)
            return NodeRefused(status, document["error"], document["message"])
        except (ValueError, KeyError, TypeError):
            return NodeUnreachable(self.url, f"something else answers there, with {status}")


def _host_and_port(url: str) -> tuple[str, int]:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or 9644
        host.encode("idna")
    except ValueError as error:
        raise InvalidArgument("--node", f"{url!r} is not like {NODE_DEFAULT}: {error}") from None
    is_host = bool(host) and host.isprintable() and " " not in host
    if parts.scheme != "http" or not is_host or parts.path not in ("", "/"):
        raise InvalidArgument("--node", f"{url!r} is not like {NODE_DEFAULT}")
    return host, port


def _target(path: tuple[str, ...], query: dict[str, object] | None) -> str:
    from urllib.parse import quote, urlencode

    target = "/v1/" + "/".join(quote(part, safe="") for part in path)
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{target}?{urlencode(given)}" if given else target


def token_in(file: Path, directory: Path) -> str | None:
    """The token in a file of a data directory's node; None if this user may not read it.

    If another user owns the directory, that user also decides which file and which address the
    directory names, so the file must be that user's own as well: no other secret is sent there.
    """
    try:
        owner = directory.stat().st_uid
        with file.open(encoding="utf-8") as opened:
            if owner not in (os.geteuid(), os.fstat(opened.fileno()).st_uid):
                return None
            return opened.read().strip() or None
    except (OSError, ValueError):
        return None


def token_for(url: str, directory: Path) -> str | None:
    """The token for a node that the user named: that of the file that the environment names or,
    for a node of this machine, that of the data directory."""
    named = os.environ.get(TOKEN_VARIABLE)
    if named:
        try:
            return Path(named).read_text(encoding="utf-8").strip()
        except ValueError as error:
            raise InvalidArgument(TOKEN_VARIABLE, f"{named} is not text: {error}") from None
    token = token_in(directory / TOKEN_NAME, directory)
    if token is None:
        return None
    from firnmq.config import is_loopback

    return token if is_loopback(_host_and_port(url)[0]) else None
