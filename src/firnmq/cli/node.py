"""A running node, as commands reach it: by HTTP, with the standard library's client."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from firnmq.errors import FirnError, InvalidArgument

if TYPE_CHECKING:
    import http.client

NODE_DEFAULT = "http://127.0.0.1:9644"
TOKEN_VARIABLE = "FIRN_ADMIN_TOKEN_FILE"
"""Also what tells a node where its token is."""
_TIMEOUT_S = 60.0

node_option = click.option(
    "--node",
    metavar="URL",
    envvar="FIRN_NODE",
    show_envvar=True,
    help=f"Work through a running node, such as {NODE_DEFAULT}, instead of a data directory.",
)


class NodeUnreachable(FirnError):
    """Nobody answers at the node's address."""

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

    def __init__(self, url: str) -> None:
        import http.client
        from urllib.parse import urlsplit

        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise InvalidArgument("--node", f"{url!r} is not like {NODE_DEFAULT}")
        self.url = url
        self._connection: http.client.HTTPConnection = http.client.HTTPConnection(
            parts.hostname, parts.port or 9644, timeout=_TIMEOUT_S
        )
        token_file = os.environ.get(TOKEN_VARIABLE)
        self._headers = {"Accept": "application/json"}
        if token_file:
            token = Path(token_file).read_text(encoding="utf-8").strip()
            self._headers["Authorization"] = f"Bearer {token}"

    def be_patient(self, timeout_s: float) -> None:
        """Waits longer for the next answer than usual."""
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
        from urllib.parse import quote, urlencode

        import msgspec

        target = "/v1/" + "/".join(quote(part, safe="") for part in path)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        if given:
            target += f"?{urlencode(given)}"
        headers = dict(self._headers)
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, target, content, headers)
            response = self._connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NodeUnreachable(self.url, error) from error
        try:
            document = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise NodeUnreachable(self.url, "something else answers there") from error
        if response.status >= 400:
            raise NodeRefused(
                response.status, document.get("error", ""), document.get("message", "")
            )
        return document


def chosen_node() -> NodeClient | None:
    """The node to work through; None if the command is about a data directory."""
    context = click.get_current_context()
    root = context.find_root()
    url = root.params.get("node")
    if url is None:
        return None
    if context.get_parameter_source("data") is ParameterSource.COMMANDLINE:
        if root.get_parameter_source("node") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--node and --data cannot be used together")
        return None  # What stands on the command line counts more than the environment.
    return _opened(url)


def running_node() -> NodeClient:
    """The node, for commands that need one."""
    return chosen_node() or _opened(NODE_DEFAULT)


def _opened(url: str) -> NodeClient:
    """A client that is closed when the command ends."""
    client = NodeClient(url)
    click.get_current_context().call_on_close(client.close)
    return client
