"""Limits on clients of the HTTP listener: connections, and memory for request bodies.

If all connections are in use, the one that has been idle longest is closed for a new one. If every
connection has a request in progress, a few spare connections may still ask for health, which is
answered at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.brokers.net.limit_log import LimitLog
from firnmq.config import AdminConfig
from firnmq.eventlog import EventLogger
from firnmq.server.admin.errors import Refused

SPARE_CONNECTIONS: Final = 32
"""Connections for health alone. Each is answered at once, so a few are enough for many probes."""
_LOG_INTERVAL_S: Final = 10.0

_log = EventLogger("admin")


class Connection(Protocol):
    """The properties of a connection that the limits need."""

    address: str
    """The client's, without port."""
    waits_since_s: float
    """When the connection was made or last had an answer."""
    answered_count: int

    @property
    def is_waiting(self) -> bool:
        """Whether no request is under way."""
        ...

    def abort(self) -> None: ...


class ConnectionLimits:
    """All connections of a listener. Owned by the event loop."""

    def __init__(
        self, config: AdminConfig, statistics: BrokerStatistics, now_s: Callable[[], float]
    ) -> None:
        self._config = config
        self._statistics = statistics
        self._now_s = now_s
        self._places: dict[Connection, None] = {}
        self._spares: dict[Connection, None] = {}
        self._logged_s = float("-inf")
        self._timeouts = LimitLog("admin", statistics.limit_hit, now_s)

    def connected(self, connection: Connection) -> bool:
        """Admits a new connection. False: as a spare one, which may ask for health only."""
        config = self._config
        from_there = [each for each in self._places if each.address == connection.address]
        if len(from_there) >= config.connections_per_address_max:
            limit, crowd = "http_connections_per_address", from_there
        elif len(self._places) >= config.connections_max:
            limit, crowd = "http_connections", list(self._places)
        else:
            self._places[connection] = None
            return True
        self._tell(limit, connection)
        waiting = [each for each in crowd if each.is_waiting]
        if waiting:
            self._close(min(waiting, key=_worth))
            self._places[connection] = None
            return True
        if len(self._spares) >= SPARE_CONNECTIONS:
            self._close(next(iter(self._spares)))
        self._spares[connection] = None
        return False

    def disconnected(self, connection: Connection) -> None:
        self._places.pop(connection, None)
        self._spares.pop(connection, None)

    def timed_out(self, connection: Connection, what: str) -> None:
        self._timeouts.hit(
            f"http_{what}_timeout", connection.address, event="http_connection_closed"
        )

    def _close(self, connection: Connection) -> None:
        self.disconnected(connection)
        connection.abort()

    def _tell(self, limit: str, connection: Connection) -> None:
        self._statistics.limit_hit(limit)
        now_s = self._now_s()
        if (
            now_s - self._logged_s >= _LOG_INTERVAL_S
        ):  # Rate limited: a flood of connections must not fill the log.
            self._logged_s = now_s
            _log.warning("http_connections_full", peer=connection.address, limit=limit)


def _worth(connection: Connection) -> tuple[bool, float]:
    """The least is closed first: connections without a request so far, then the longest idle."""
    return (connection.answered_count > 0, connection.waits_since_s)


class BodyBudget:
    """Bytes of all request bodies that are received and not answered. Owned by the event loop.

    The bodies of one address take at most half of the budget, so that a slow client leaves the
    other half to other addresses.
    """

    def __init__(self, bytes_max: int, *, body_bytes_max: int) -> None:
        """`body_bytes_max` is the largest body; the share of an address is at least that."""
        self._bytes_max = bytes_max
        self._share_bytes_max = min(bytes_max, max(bytes_max // 2, body_bytes_max))
        self._shares_bytes: Counter[str] = Counter()
        self.used_bytes = 0

    @contextmanager
    def body(self, address: str) -> Iterator[Callable[[int], None]]:
        """Gives a function that counts more bytes of one body: Refused if there is no room for
        them. Inside, the bytes count."""
        counted_bytes = 0

        def count(size_bytes: int) -> None:
            nonlocal counted_bytes
            _check_room("requests under way", self.used_bytes, size_bytes, self._bytes_max)
            share_bytes = self._shares_bytes[address]
            _check_room("your requests under way", share_bytes, size_bytes, self._share_bytes_max)
            counted_bytes += size_bytes
            self.used_bytes += size_bytes
            self._shares_bytes[address] += size_bytes

        try:
            yield count
        finally:
            self.used_bytes -= counted_bytes
            self._shares_bytes[address] -= counted_bytes
            if not self._shares_bytes[address]:
                del self._shares_bytes[address]


def _check_room(what: str, used_bytes: int, more_bytes: int, bytes_max: int) -> None:
    if used_bytes + more_bytes > bytes_max:
        text = f"{what} hold {used_bytes:,} of {bytes_max:,} bytes; try again in a moment"
        raise Refused(503, text)
