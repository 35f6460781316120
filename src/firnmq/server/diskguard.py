"""Handles a full disk: refuses appends, keeps deletions and the databases working, and recovers.

With plenty of free space, no reserve is held. With little, the whole reserve is held. When the disk
is full, appends that need disk space are refused, and a quarter of the reserve is released once for
deletions, group offsets and other writes of the databases; the rest is held for their next opening.
To reopen a database, half of the reserve is released, and all of it if that is too little. To free
the space of deleted rows in the key-value store, all of it is. What is left is held again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from firnmq.disk.reserve import Reserve
from firnmq.engines.gate import AppendGate
from firnmq.errors import DiskFull, FirnError, StorageFailed
from firnmq.eventlog import EventLogger
from firnmq.health import Health, ProblemKind

_log = EventLogger("disk")

_MUCH = 32
"""This many times the reserve is plenty: it cannot be used up between two checks of the disk."""
_ENOUGH = 2
"""Free space, in multiples of the reserve, at which appends are allowed again."""
_SLACK_SHARE = 16
"""Free space below this fraction of the reserve counts as a full disk."""
_WORKING_SHARE = 4
"""The fraction of the reserve that is released while the disk is full."""


class Database(Protocol):
    """A database of the store."""

    on_failure: Callable[[FirnError], None]

    @property
    def failure(self) -> FirnError | None: ...

    def reopen(self) -> None:
        """Reopens a database that refuses writes; raises while the disk still refuses."""


class Reclaimer(Protocol):
    """A store that frees deleted space late, and can free it earlier on request."""

    @property
    def has_deleted(self) -> bool: ...

    def reclaim(self) -> None:
        """Frees deleted space; needs some space and time. StorageFailed if the disk refuses."""


class DiskGuard:
    """Owns a store's reserve and its gate. Safe with threads."""

    def __init__(self, reserve: Reserve, health: Health) -> None:
        """Releases the reserve at once if the databases might not open without it."""
        self.health = health
        self.gate = AppendGate()
        self.gate.reason = self._balance
        self._reserve = reserve
        self._lock = threading.Lock()
        self._databases: dict[str, Database] = {}
        self._reclaimers: list[Reclaimer] = []
        self._is_reclaiming = False
        health.on_full = self._shut
        room_bytes = reserve.free_bytes() + reserve.held_bytes
        # The gate was shut when the store was closed, or about to be: a store with free space or an
        # open gate has the whole reserve. It stays shut until the usual threshold is reached.
        is_whole = reserve.held_bytes == reserve.full_bytes
        self.gate.is_shut = not is_whole and room_bytes < _ENOUGH * reserve.full_bytes
        if reserve.free_bytes() < reserve.full_bytes:
            reserve.hold(0)

    @property
    def free_bytes(self) -> int:
        return self._reserve.free_bytes()

    @property
    def reserve_bytes(self) -> int:
        """The present size of the reserve."""
        return self._reserve.held_bytes

    def watch(self, name: str, database: Database) -> None:
        """Watches a database: its failures are handled at once, and checked until they are over."""
        self._databases[name] = database
        database.on_failure = partial(self.health.report, ProblemKind.DATABASE_FAILED, name)

    def reclaim_from(self, reclaimer: Reclaimer) -> None:
        """Registers a reclaimer, which frees space when the disk is full."""
        self._reclaimers.append(reclaimer)

    def look(self) -> None:
        """Checks the disk and the databases. Called regularly."""
        if self.gate.is_shut:
            self._reclaim()
        for name, database in self._databases.items():
            error = database.failure
            if error is None:
                self.health.clear(ProblemKind.DATABASE_FAILED, name)
            else:
                self.health.report(ProblemKind.DATABASE_FAILED, name, error)
        reason = self._balance()
        if reason is None:
            self.health.clear(ProblemKind.DISK_FULL, "")
        else:
            self.health.report(ProblemKind.DISK_FULL, "", DiskFull("the store", OSError(reason)))
        self.health.tell()

    def _reclaim(self) -> None:
        """Frees deleted space, with the reserve released for the work."""
        ready = [each for each in self._reclaimers if each.has_deleted]
        if not ready:
            return
        with self._lock:
            self._is_reclaiming = True
            self._reserve.hold(0)
        try:
            for reclaimer in ready:
                try:
                    reclaimer.reclaim()
                except StorageFailed as error:
                    _log.warning("room_not_reclaimed", error=str(error))
        finally:
            self._is_reclaiming = False

    def _shut(self) -> None:
        """A write met a full disk, perhaps in a database that is in use now."""
        with self._lock:
            reserve, was_shut = self._reserve, self.gate.is_shut
            self.gate.is_shut = True
            if self._refused():
                self._release_half()
            elif not was_shut and (held_bytes := reserve.held_bytes):
                missing_bytes = reserve.full_bytes // _WORKING_SHARE - reserve.free_bytes()
                reserve.hold(held_bytes - max(missing_bytes, 0))

    def _balance(self) -> str | None:
        """Reopens failed databases, and opens the gate if the whole reserve can be held; otherwise
        holds the free space and logs what is missing."""
        try:
            for database in self._refused():
                self._reopen(database)
        except FirnError as error:
            return f"the disk is full: {error}"
        with self._lock:
            if self._is_reclaiming:
                return "the disk is full: the room of what was deleted is being freed; try again"
            reserve, gate, full_bytes = self._reserve, self.gate, self._reserve.full_bytes
            held_bytes = reserve.held_bytes
            room_bytes = reserve.free_bytes() + held_bytes
            if room_bytes >= _MUCH * full_bytes:
                is_held = reserve.hold(0)
            else:
                more_bytes = full_bytes if gate.is_shut else full_bytes // _SLACK_SHARE
                is_held = room_bytes >= full_bytes + more_bytes and reserve.hold(full_bytes)
            was_shut, gate.is_shut = gate.is_shut, not is_held
            if is_held:
                return None
            left_bytes = min(room_bytes, full_bytes)
            left_bytes -= left_bytes // _WORKING_SHARE
            reserve.hold(max(left_bytes, held_bytes) if was_shut else left_bytes)
            return (
                f"the disk is full: {room_bytes:,} bytes are free, the reserve included; "
                f"appends are accepted with {_ENOUGH * full_bytes:,}"
            )

    def _reopen(self, database: Database) -> None:
        """Reopens a database with half of the reserve released; with all of it only if that is too
        little, because other programs may take what is released."""
        self._release_half()
        try:
            database.reopen()
        except DiskFull:
            self._reserve.hold(0)
            database.reopen()

    def _release_half(self) -> None:
        self._reserve.hold(min(self._reserve.held_bytes, self._reserve.full_bytes // 2))

    def _refused(self) -> list[Database]:
        """Databases that have to be reopened because the disk was full."""
        return [each for each in self._databases.values() if isinstance(each.failure, DiskFull)]
