"""The nodes that are registered now, as this node's cache knows them."""

from __future__ import annotations

from collections.abc import Callable

from firnmq.eventlog import EventLogger
from firnmq.meta import Event, MetaCache
from firnmq.meta.records import MEMBERS, NODES, MemberRecord, NodeRecord, decode
from firnmq.nodefile import split_address

_log = EventLogger("cluster")


class Members:
    """Safe with threads: changed by the cache's thread alone."""

    def __init__(self, cache: MetaCache, node: int) -> None:
        self._node = node
        self.registered: dict[int, NodeRecord] = {}
        """Nodes with a session."""
        self.known: dict[int, MemberRecord] = {}
        """All that belong to the cluster."""
        self.on_gone: Callable[[int], None] = lambda node: None
        """Told of nodes whose session has ended, or that registered again."""
        cache.listen(MEMBERS, self._follow_members)
        cache.listen(NODES, self._follow_nodes)

    def address_of(self, node: int) -> tuple[str, int] | None:
        """Where a node listens for others; None while it is not registered."""
        record = self.registered.get(node)
        return None if record is None or not record.peers else split_address(record.peers)

    def _follow_members(self, events: list[Event]) -> None:
        for event in events:
            number = int(event.key.rpartition("/")[2])
            if event.entry is None:
                self.known.pop(number, None)
            else:
                self.known[number] = decode(event.entry, MemberRecord)

    def _follow_nodes(self, events: list[Event]) -> None:
        for event in events:
            number = int(event.key.rpartition("/")[2])
            before = self.registered.get(number)
            if event.entry is None:
                if self.registered.pop(number, None) is not None and number != self._node:
                    _log.warning("node_gone", node=number, effect="its shards are away")
                    self.on_gone(number)
                continue
            record = decode(event.entry, NodeRecord)
            self.registered[number] = record
            if number == self._node or record == before:
                continue
            if before is not None:
                self.on_gone(number)
            _log.info("node_registered", node=number, incarnation=record.incarnation)
