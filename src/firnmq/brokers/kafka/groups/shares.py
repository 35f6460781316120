"""How much of the memory for groups each client takes: no client can fill it for the others."""

from __future__ import annotations

from collections import Counter

from firnmq.brokers.kafka.groups.config import GroupConfig


class GroupShares:
    """Bytes of members and assignments of all groups of a node, by the client that brought them.

    A client is an authenticated user or, without authentication, an IPv4 address or an IPv6
    network of 64 bits. Plain counters that the groups of one event loop share.
    """

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._bytes: Counter[str] = Counter()
        self.total_bytes = 0

    def has_room(self, owner: str, size: int) -> bool:
        """Whether the client may bring so many bytes more."""
        return (
            self.total_bytes + size <= self._config.total_bytes_max
            and self._bytes[owner] + size <= self._config.client_bytes_max
        )

    def add(self, owner: str, size: int) -> None:
        """Counts bytes that were taken, or given back where negative."""
        self.total_bytes += size
        self._bytes[owner] += size
        if not self._bytes[owner]:
            del self._bytes[owner]
        assert self.total_bytes >= 0
