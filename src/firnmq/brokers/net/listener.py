"""The listener of a broker: takes connections, within limits, before anything else is done.

A connection counts from the moment it is accepted, so one that never finishes its TLS handshake
counts as well. Those beyond a limit are closed at once. If all places are taken, the oldest
connection of another address that has not sent a complete request gives way to a new one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from firnmq.brokers.net.limit_log import LimitLog

_BACKLOG = 1024
_RETRY_S = 0.1
"""Time until connections are accepted again after the system refused one."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListenerConfig(Protocol):
    """What a broker's settings say about its listener."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def connections_max(self) -> int: ...

    @property
    def connections_per_address_max(self) -> int: ...

    @property
    def handshake_timeout_s(self) -> float: ...


class ServedConnection(asyncio.BaseProtocol):
    """A broker's protocol object of one connection."""

    when_lost: Callable[[], None] | None
    """Set by the listener; called when the connection is lost."""
    made_s: float
    """When the connection was made; 0 before that."""
    has_asked: bool
    """Whether a complete request has come."""

    def abort(self) -> None:
        """Closes the connection at once."""
        raise NotImplementedError


class ConnectionCounter:
    """Connections, all and by address. Owned by the event loop."""

    def __init__(
        self,
        config: ListenerConfig,
        limits: LimitLog,
        admits: Callable[[str], bool] = lambda address: True,
    ) -> None:
        """`admits`: whether an address may connect so soon after its last connections."""
        self._admits = admits
        self._config = config
        self._limits = limits
        self._by_address: dict[str, int] = {}
        self.count = 0

    def enter(self, address: str, make_room: Callable[[str], bool]) -> bool:
        """Counts a connection; False if there are too many. If only all of them together are too
        many, `make_room` may end one of another address."""
        config = self._config
        from_there = self._by_address.get(address, 0)
        if from_there >= config.connections_per_address_max:
            allowed = config.connections_per_address_max
            self.refused("connections_per_address", address, allowed)
            return False
        if self.count >= config.connections_max and not make_room(address):
            self.refused("connections", address, config.connections_max)
            return False
        if not self._admits(address):
            self._limits.hit("connection_rate", address, event="connection_refused")
            return False
        self.count += 1
        self._by_address[address] = from_there + 1
        return True

    def leave(self, address: str) -> None:
        self.count -= 1
        left = self._by_address.pop(address) - 1
        if left:
            self._by_address[address] = left

    def gave_way(self, address: str) -> None:
        self._limits.hit("silent_connections", address, event="connection_closed")

    def handshake_failed(self, address: str, error: ssl.SSLError) -> None:
        """A client's TLS or certificate was refused. The client itself is told little of it."""
        if isinstance(error, ssl.SSLCertVerificationError):
            kind, reason = "client_certificate", error.verify_message
        else:
            kind, reason = "tls_handshake", error.reason
        self._limits.hit(kind, address, event="connection_refused", reason=reason or str(error))

    def refused(self, limit: str, address: str, allowed: int) -> None:
        self._limits.hit(limit, address, event="connection_refused", allowed=allowed)


class _Place:
    """The place of one connection among those that are counted, until it leaves."""

    def __init__(self, address: str, protocol: ServedConnection) -> None:
        self.address = address
        self.protocol = protocol
        self.task: asyncio.Task[None] | None = None
        """Hands the connection over to its protocol."""

    def close(self) -> None:
        if self.protocol.made_s:
            self.protocol.abort()
        elif self.task is not None:
            self.task.cancel()


class Listener:
    """Accepts connections from `start` to `close`. Owned by the event loop."""

    def __init__(
        self,
        config: ListenerConfig,
        counter: ConnectionCounter,
        new_protocol: Callable[[], ServedConnection],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._config = config
        self._counter = counter
        self._new_protocol = new_protocol
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: dict[_Place, None] = {}
        """Of connections that had sent no complete request when they were last looked at, the
        oldest first."""
        self._counted: set[_Place] = set()
        """Of all connections that the counter counts."""

    @property
    def is_serving(self) -> bool:
        return bool(self._sockets)

    async def start(self) -> int:
        """Opens the listener and returns its port."""
        loop = asyncio.get_running_loop()
        config = self._config
        found = await loop.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        port = config.port
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listener = socket.socket(family, kind, protocol)
                self._sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # All addresses of the host get the port that the first one found.
                listener.bind((address[0], port, *address[2:]))
                listener.listen(_BACKLOG)
                listener.setblocking(False)
                port = listener.getsockname()[1]
        except OSError:
            self._close_sockets()
            raise
        for listener in self._sockets:
            self._begin(self._accept(listener))
        return port

    async def close(self) -> None:
        """Takes no new connection; those whose handshake goes on are given up."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._counter.refused("descriptors", "", self._counter.count)
                    await asyncio.sleep(_RETRY_S)
                continue  # Else the client went away before it was accepted.
            peer = str(address[0])
            if self._counter.enter(peer, self._make_room):
                place = _Place(peer, self._new_protocol())
                self._counted.add(place)
                self._silent[place] = None
                place.protocol.when_lost = partial(self._leave, place)
                place.task = self._begin(self._serve(client, place))
            else:
                client.close()

    def _make_room(self, address: str) -> bool:
        """Ends the oldest connection of another address that has sent no complete request."""
        for place in list(self._silent):
            if place.protocol.has_asked:
                del self._silent[place]
            elif place.address != address:
                self._counter.gave_way(place.address)
                self._leave(place)
                place.close()
                return True
        return False

    def _leave(self, place: _Place) -> None:
        """Counts a connection no longer."""
        if place in self._counted:
            self._counted.remove(place)
            self._silent.pop(place, None)
            self._counter.leave(place.address)

    async def _serve(self, client: socket.socket, place: _Place) -> None:
        """Hands a connection to its protocol, which stops counting it when it has ended."""
        protocol = place.protocol
        is_handed_over = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=(
                    None if self._tls is None else self._config.handshake_timeout_s
                ),
            )
            is_handed_over = True
        except ssl.SSLEOFError:
            pass  # The client went away.
        except ssl.SSLError as error:
            self._counter.handshake_failed(place.address, error)
        except OSError:
            pass  # The client went away.
        finally:
            # A protocol that was never connected is never told that the connection is lost.
            if not is_handed_over and protocol.made_s == 0.0:
                client.close()
                self._leave(place)
