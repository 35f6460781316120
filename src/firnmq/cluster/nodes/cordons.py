"""Nodes that are to get no shards, and what nodes tell of their disks, as this node's cache knows
them."""

from __future__ import annotations

import threading

from firnmq.clock import Clock
from firnmq.cluster.nodes.registration import Registration
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta import Event, MetaCache, MetaStore
from firnmq.meta.records import (
    CORDONS,
    LOADS,
    CordonRecord,
    LoadRecord,
    cordon_key,
    decode,
    encode,
    load_key,
)

_log = EventLogger("cluster")

_REPORT_MS = 30_000
"""Between two reports of a node. They cost a transaction of the metadata each."""


class Cordons:
    """Safe with threads: changed by the cache's thread alone."""

    def __init__(self, store: MetaStore, cache: MetaCache, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.nodes: set[int] = set()
        cache.listen(CORDONS, self._follow)

    def set(self, node: int, *, is_cordoned: bool) -> None:
        """Has a node get no shards any more, or get some again. Lasts until it is changed."""
        key = cordon_key(node)
        if is_cordoned:
            record = CordonRecord(node=node, since_ms=self._clock.now_ms())
            self._store.txn([], {key: encode(record)})
        else:
            self._store.txn([], {}, [key])
        _log.info("node_cordoned" if is_cordoned else "node_uncordoned", node=node)

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            node = int(event.key.removeprefix(CORDONS))
            if event.entry is None:
                self.nodes.discard(node)
            else:
                self.nodes.add(node)


class Loads:
    """Safe with threads: changed by the cache's thread alone."""

    def __init__(self, store: MetaStore, cache: MetaCache, clock: Clock, node: int) -> None:
        self._store = store
        self._clock = clock
        self._node = node
        self._lock = threading.Lock()
        self._due_ms = 0
        self.by_node: dict[int, LoadRecord] = {}
        cache.listen(LOADS, self._follow)

    @property
    def is_due(self) -> bool:
        """Whether it is time for this node's next report."""
        return self._clock.steady_ms() >= self._due_ms

    def report(self, registration: Registration, stored_bytes: int, free_bytes: int) -> None:
        """Tells how much this node holds; for as long as its session lasts."""
        with self._lock:
            self._due_ms = self._clock.steady_ms() + _REPORT_MS
        record = LoadRecord(node=self._node, stored_bytes=stored_bytes, free_bytes=free_bytes)
        try:
            self._store.txn(
                [], {load_key(self._node): encode(record)}, session=registration.session
            )
        except FirnError as error:  # The next report says it.
            _log.warning("load_not_reported", error=str(error))

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            node = int(event.key.removeprefix(LOADS))
            if event.entry is None:
                self.by_node.pop(node, None)
            else:
                self.by_node[node] = decode(event.entry, LoadRecord)
