"""Producer ids: numbers that are never given out twice, not even after a crash."""

from __future__ import annotations

import asyncio
import threading

from firnmq.disk import Family, KeyValueStore
from firnmq.meta import Compare, MetaStore, TxnConflict
from firnmq.meta.records import NEXT_PRODUCER_ID, Counter, decode, encode

_KEY = b"P"
_BLOCK = 1000
"""Ids reserved at once: a crash wastes at most this many, and most requests need no sync."""


class ProducerIds:
    """Hands out producer ids. Safe with threads."""

    def __init__(self, kv: KeyValueStore, shared: MetaStore | None = None) -> None:
        """`shared`: the metadata of a cluster, whose nodes never give out the same id."""
        self._kv = kv
        self._shared = shared
        self._lock = threading.Lock()
        self._next = self._end = 0

    def new(self) -> int:
        with self._lock:
            if self._next == self._end:
                self._reserve()
            self._next += 1
            return self._next - 1

    def skip_to(self, first: int) -> None:
        """Gives out no id below this from now on: those are known to be in use."""
        with self._lock:
            self._next = self._end = 0
            self._store(max(first, self._stored()))

    async def take(self) -> int:
        """The same under asyncio: a number may have to wait for the disk."""
        if self._next < self._end:
            return self.new()
        return await asyncio.get_running_loop().run_in_executor(None, self.new)

    def _reserve(self) -> None:
        """Takes the next block. No id of it is given out before the reservation is durable: after
        a failed write the next call reserves again."""
        if self._shared is not None:
            first = _shared_block(self._shared)
        else:
            first = self._stored()
            self._store(first + _BLOCK)
        self._next, self._end = first, first + _BLOCK

    def _stored(self) -> int:
        return reserved_ids_end(self._kv)

    def _store(self, end: int) -> None:
        with self._kv.batch() as batch:
            batch.put(Family.STATE, _KEY, end.to_bytes(8, "big"))
        self._kv.sync()


def reserved_ids_end(kv: KeyValueStore) -> int:
    """The end of the last block that a node alone has reserved."""
    stored = kv.get(Family.STATE, _KEY)
    return 0 if stored is None else int.from_bytes(stored, "big")


def _shared_block(store: MetaStore) -> int:
    """The first id of a block that no other node gets."""
    while True:
        entry = store.get(NEXT_PRODUCER_ID)
        first = 0 if entry is None else decode(entry, Counter).value
        compare = Compare.absent(NEXT_PRODUCER_ID) if entry is None else Compare.unchanged(entry)
        try:
            store.txn([compare], {NEXT_PRODUCER_ID: encode(Counter(value=first + _BLOCK))})
        except TxnConflict:
            continue  # Another node takes a block as well.
        return first
