"""Which node coordinates a group or a transactional id.

Ids are spread over slots by their hash, and a slot is given to a node when one of its ids is first
asked for. It stays there, because the state of its ids does.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable

from firnmq.meta import Compare, Event, MetaCache, MetaStore, TxnConflict
from firnmq.meta.records import (
    COORDINATORS,
    CoordinatorRecord,
    NodeRecord,
    coordinator_key,
    decode,
    encode,
)

SLOT_COUNT = 64


def slot_of(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) % SLOT_COUNT


class Coordinators:
    """Safe with threads."""

    def __init__(
        self, store: MetaStore, cache: MetaCache, answering: Callable[[], list[NodeRecord]]
    ) -> None:
        """`answering`: the nodes that may be given a slot."""
        self._store = store
        self._answering = answering
        self._by_slot: dict[int, int] = {}
        cache.listen(COORDINATORS, self._follow)

    def get(self, name: str) -> int | None:
        """The node of an id; None while its slot has none, as far as this node knows."""
        return self._by_slot.get(slot_of(name))

    def counts(self) -> Counter[int]:
        """How many slots each node has."""
        return Counter(self._by_slot.values())

    def find(self, name: str) -> int | None:
        """The same; a slot without a node gets the one with the fewest. None if there is no node
        for it. Waits for the store, and for nodes that do not answer."""
        slot = slot_of(name)
        while True:
            node = self._by_slot.get(slot)
            if node is not None:
                return node
            entry = self._store.get(coordinator_key(slot))
            if entry is not None:
                return decode(entry, CoordinatorRecord).node
            counts = self.counts()
            nodes = [record.node for record in self._answering()]
            if not nodes:
                return None
            chosen = min(nodes, key=lambda each: (counts[each], each))
            key = coordinator_key(slot)
            try:
                self._store.txn(
                    [Compare.absent(key)], {key: encode(CoordinatorRecord(node=chosen))}
                )
            except TxnConflict:
                continue  # Another node was faster.
            return chosen

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            slot = int(event.key.rpartition("/")[2])
            if event.entry is None:
                self._by_slot.pop(slot, None)
            else:
                self._by_slot[slot] = decode(event.entry, CoordinatorRecord).node
