"""The HTTP listener's socket and its server, in the node's own event loop.

The socket is open from the start, so that a taken port fails the start and clients can connect;
the libraries that serve it are loaded after the Kafka listener is up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from firnmq.config import AdminConfig
from firnmq.nodefile import reachable_host
from firnmq.server.admin.http.limits import ConnectionLimits
from firnmq.server.admin.http.places import SharedPlaces
from firnmq.server.admin.http.token import AdminToken, all_tokens
from firnmq.server.admin.parts import NodeParts
from firnmq.server.sockets import open_listener

_SHUTDOWN_S = 2


class AdminListener:
    """Bound at construction, serving from `start` to `stop`."""

    def __init__(self, config: AdminConfig, listening: socket.socket | None = None) -> None:
        """`listening`: a listener that several processes share, each of which takes connections."""
        self._config = config
        self.token: AdminToken | None = None
        self._socket = listening or open_listener(config)
        port = self._socket.getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"http://{host}:{port}"
        self.local_url = f"http://{reachable_host(config.host)}:{port}"
        """The same for processes on this machine, where no client can connect to a wildcard."""
        self.stopping = asyncio.Event()
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    def start(self, parts: NodeParts, token: AdminToken | None) -> None:
        """Begins to serve as soon as the libraries are loaded. Requests must carry the token."""
        self.token = token
        self._task = asyncio.get_running_loop().create_task(self._serve(parts))

    async def stop(self) -> None:
        task = self._task
        self.stopping.set()
        if self._server is not None:
            self._server.should_exit = True
        elif task is not None:
            task.cancel()
        if task is not None:
            await asyncio.wait([task])
        self._socket.close()

    def _reached(self, parts: NodeParts) -> dict[str, str]:
        """How a process on this machine reaches the node: options of the lake's data source."""
        address = parts.broker.address
        found = {
            "bootstrap": f"{reachable_host(address.host)}:{address.port}",
            "admin": self.local_url,
        }
        return found if self.token is None else {**found, "admin.token": self.token.text}

    async def _serve(self, parts: NodeParts) -> None:
        loop = asyncio.get_running_loop()
        # Loaded in a thread, so that the event loop keeps serving Kafka clients.
        app = await loop.run_in_executor(None, import_module, "firnmq.server.admin.app")
        uvicorn = await loop.run_in_executor(None, import_module, "uvicorn")
        protocol = await loop.run_in_executor(
            None, import_module, "firnmq.server.admin.http.connection"
        )
        limits = ConnectionLimits(self._config, parts.broker.statistics, loop.time)
        streams = SharedPlaces(protocol.STREAMS_MAX)
        tokens = all_tokens(self.token, self._config)

        class Server(uvicorn.Server):  # type: ignore[misc,name-defined]
            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield  # The node handles signals.

        config = uvicorn.Config(
            app.admin_app(parts, tokens, streams, lambda: self._reached(parts)),
            http=partial(protocol.AdminProtocol, limits, self._config, streams),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=protocol.KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        self._server = Server(config)
        await self._server.serve(sockets=[self._socket])
