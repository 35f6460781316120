"""The HTTP listener's socket and its server, in the node's own event loop.

The socket is open from the start, so that a taken port fails the start and clients can connect;
the libraries that serve it are loaded after the Kafka listener is up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from firnmq.config import AdminConfig
from firnmq.errors import InvalidArgument
from firnmq.server.admin.parts import NodeParts

_BACKLOG = 128
_CONCURRENT_MAX = 256
_KEEP_ALIVE_S = 60
_SHUTDOWN_S = 2


class AdminListener:
    """Bound when made, serving from `start` to `stop`."""

    def __init__(self, config: AdminConfig) -> None:
        self._token = None if config.token_file is None else _read_token(config.token_file)
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((config.host, config.port))
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.close()
            place = f"{config.host}:{config.port}"
            raise InvalidArgument("admin", f"cannot listen on {place}: {error}") from error
        port = self._socket.getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"http://{host}:{port}"
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    def start(self, parts: NodeParts) -> None:
        """Begins to serve as soon as the libraries are loaded."""
        self._task = asyncio.get_running_loop().create_task(self._serve(parts))

    async def stop(self) -> None:
        task = self._task
        if self._server is not None:
            self._server.should_exit = True
        elif task is not None:
            task.cancel()
        if task is not None:
            await asyncio.wait([task])
        self._socket.close()

    async def _serve(self, parts: NodeParts) -> None:
        loop = asyncio.get_running_loop()
        # A thread loads them, so that Kafka clients are served meanwhile.
        app = await loop.run_in_executor(None, import_module, "firnmq.server.admin.app")
        uvicorn = await loop.run_in_executor(None, import_module, "uvicorn")

        class Server(uvicorn.Server):  # type: ignore[misc,name-defined]
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # Signals are the node's business.

        config = uvicorn.Config(
            app.admin_app(parts, self._token),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CONCURRENT_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        self._server = Server(config)
        await self._server.serve(sockets=[self._socket])


def _read_token(path: Path) -> bytes:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidArgument("admin.token_file", f"{path}: {error}") from error
    if not token:
        raise InvalidArgument("admin.token_file", f"{path} is empty")
    return token.encode()
