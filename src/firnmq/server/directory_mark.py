"""Tells a copy of a directory that was made while its node ran from the directory itself.

While a node stores something, it writes a number that goes up into its directory, and then the same
number into the metadata: about once a second, and when it stops. A directory with a lower number
than the metadata lacks what was stored since. What a copy lacks of the last second before a crash,
or of a time in which the metadata could not be reached, is not told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from firnmq.clock import Clock
from firnmq.disk import KeyValueStore
from firnmq.errors import Corruption, FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta import MetaStore, NodeIdentity, TxnConflict
from firnmq.meta.records import MarkRecord, decode, encode, mark_key
from firnmq.server.identity import DirectoryRecord, write_down

_RENEW_S = 1.0
_log = EventLogger("store")


class DirectoryMark:
    """Renewed by a thread of its own from `start` to `close`."""

    def __init__(
        self,
        kv: KeyValueStore,
        meta: MetaStore,
        identity: NodeIdentity,
        record: DirectoryRecord,
        clock: Clock,
    ) -> None:
        self._kv = kv
        self._meta = meta
        self._identity = identity
        self._record = record
        self._clock = clock
        self._stored_count: Callable[[], int] = lambda: 0
        self._has_failed: Callable[[], bool] = lambda: False
        self._seen = (-1, -1)
        """What was counted before the last renewal."""
        self._is_told = True
        """Whether the metadata has the directory's mark."""
        self._is_superseded = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="firn-mark", daemon=True)

    def start(self, stored_count: Callable[[], int], has_failed: Callable[[], bool]) -> None:
        """`stored_count` goes up whenever records are stored; `has_failed` tells at the end whether
        something of them may not be synced."""
        self._stored_count, self._has_failed = stored_count, has_failed
        self._thread.start()

    def close(self) -> None:
        """Renews it for the last time: nothing may be stored after that."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._has_failed():
            # Everything is synced by now, which the next boot of the machine must know.
            self._record = msgspec.structs.replace(self._record, boot_id="")
        self._seen = (-1, -1)
        try:
            self.renew()
        except FirnError as error:
            _log.warning("directory_mark_left_behind", error=str(error))

    def renew(self) -> None:
        """Renews the mark if something was stored since the last time."""
        if self._is_superseded:
            return
        turns, writes = self._stored_count(), self._kv.write_count
        if (turns, writes) != self._seen:
            self._record = msgspec.structs.replace(self._record, mark=self._record.mark + 1)
            self._is_told = False
            write_down(self._kv, self._record)
            self._seen = turns, writes + 1
        if self._is_told:
            return
        record = self._record
        known = MarkRecord(
            node=record.node,
            incarnation=record.incarnation,
            mark=record.mark,
            renewed_ms=self._clock.now_ms(),
        )
        try:
            self._meta.txn([self._identity.guard], {mark_key(record.node): encode(known)})
        except TxnConflict:
            self._is_superseded = True  # Its registration ends the process.
        self._is_told = True

    def _run(self) -> None:
        while not self._stopping.wait(_RENEW_S):
            try:
                self.renew()
            except FirnError:
                continue  # The store's health says what is wrong with disk or metadata.


def check_mark(path: Path, meta: MetaStore, known: DirectoryRecord) -> None:
    """Corruption for a copy of the directory that lacks what its node has stored since."""
    entry = meta.get(mark_key(known.node))
    if entry is None:
        return
    stored = decode(entry, MarkRecord)
    if stored.incarnation != known.incarnation or known.mark >= stored.mark:
        return
    text = (
        f"it is an old copy of node {known.node}'s directory, made while the node ran as "
        f"incarnation {known.incarnation}: the node has stored more since (mark {known.mark}, "
        f"now {stored.mark}); start the node with its present directory"
    )
    raise Corruption(text, where=str(path))
