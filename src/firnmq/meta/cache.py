"""A node's copy of the meta store: reads never wait, and a watch keeps it up to date."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Protocol

from firnmq.errors import Closed, FirnError, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.meta.api import Changes, Compacted, Entry, Event, Snapshot, Watch

_TAKE_S = 60.0
"""The time-out of one call of the watch."""
_AFTER_KEYS = "\x7f"
"""After every key with a prefix: keys are printable ASCII."""
_SORT_ABOVE = 200
"""Changes at once of which sorting all keys costs less than moving them for each."""
_RETRY_S = 0.2
"""Between attempts to read a failing store."""
_log = EventLogger("meta")

Listener = Callable[[list[Event]], None]


class CacheBehind(TimedOut):
    """The node's cache did not see a change in time; the change itself was committed."""

    def __init__(self, reached: int, wanted: int, timeout_s: float) -> None:
        super().__init__(
            f"the node's cache of the metadata is at revision {reached} and did not reach "
            f"{wanted} within {timeout_s:g} s"
        )
        self.reached = reached
        self.wanted = wanted
        self.timeout_s = timeout_s


class Followed(Protocol):
    """What a cache needs of a store: the store itself, or a client of the meta service."""

    def range(self, prefix: str) -> Snapshot: ...

    def watch(self, prefix: str, from_revision: int) -> Watch: ...


class MetaCache:
    """Every entry as of some revision, which only grows. Safe with threads.

    It starts from a snapshot and then watches from the next revision, so it misses nothing. If it
    falls behind the changes that the store keeps, it takes another snapshot and computes the
    differences.
    """

    def __init__(self, store: Followed) -> None:
        """Returns with the cache filled from a snapshot."""
        self._store = store
        self._changed = threading.Condition(threading.RLock())
        """Guards everything below but `_entries`' single lookups; notified with every change."""
        self._listeners: list[tuple[str, Listener]] = []
        self._is_closed = False
        snapshot = store.range("")
        self._entries = {entry.key: entry for entry in snapshot.entries}
        self._keys = list(self._entries)
        """In order, so that a prefix costs what it holds and not what there is."""
        self._revision = snapshot.revision
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="firn-meta-cache", daemon=True)
        self._thread.start()

    @property
    def revision(self) -> int:
        """Every change up to here has been applied, and every listener has been called."""
        return self._revision

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def below(self, prefix: str) -> list[Entry]:
        """Entries with the prefix, in key order, all at one revision."""
        with self._changed:
            first = bisect_left(self._keys, prefix)
            end = bisect_left(self._keys, prefix + _AFTER_KEYS, first)
            return [self._entries[key] for key in self._keys[first:end]]

    def listen(self, prefix: str, listener: Listener) -> None:
        """Calls the listener with every entry with the prefix, and with every change from then on.

        Changes come in the cache's thread, in order, before the cache shows their revision.
        """
        with self._changed:
            listener(
                [
                    Event(key=entry.key, revision=entry.mod_revision, entry=entry)
                    for entry in self.below(prefix)
                ]
            )
            self._listeners.append((prefix, listener))

    def wait_for_revision(self, revision: int, timeout_s: float) -> None:
        """Returns once the cache has seen the revision; CacheBehind if it does not in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._revision >= revision or self._is_closed, timeout_s)
            if self._revision >= revision:
                return
            if self._is_closed:
                raise Closed("the meta cache is closed")
            raise CacheBehind(self._revision, revision, timeout_s)

    def wait_for_change(self, revision: int, timeout_s: float) -> None:
        """Returns once the cache is beyond the revision, or after the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._revision > revision or self._is_closed, timeout_s)

    def close(self) -> None:
        """Stops the watch; the entries can still be read."""
        self._stopping.set()
        with self._changed:
            self._is_closed = True
            watch = self._watch
            self._changed.notify_all()
        if watch is not None:
            watch.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    # Following ----------------------------------------------------------------------------------

    def _follow(self) -> None:
        has_trouble = False
        while not self._stopping.is_set():
            try:
                self._take_on()
                has_trouble = False
            except Compacted:
                self._log_and_start_over()
            except Closed:
                return
            except FirnError as error:
                if not has_trouble:
                    _log.error("meta_watch_failed", error=str(error))
                has_trouble = True
                self._drop_watch()
                self._stopping.wait(_RETRY_S)

    def _take_on(self) -> None:
        watch = self._watch
        if watch is None:
            watch = self._store.watch("", self._revision + 1)
            with self._changed:
                self._watch = watch
                if self._is_closed:
                    raise Closed("the meta cache is closed")
        changes = watch.take(_TAKE_S)
        if changes is not None:
            self.apply(changes)

    def apply(self, changes: Changes) -> None:
        """Applies changes that follow the cache's revision."""
        with self._changed:
            self._replace_entries(changes.events)
            self._tell(changes.events)
            self._revision = changes.revision
            self._changed.notify_all()

    def _replace_entries(self, events: Sequence[Event]) -> None:
        sorts = len(events) > _SORT_ABOVE
        for event in events:
            key = event.key
            is_there = key in self._entries
            if event.entry is None:
                self._entries.pop(key, None)
                if is_there and not sorts:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                self._entries[key] = event.entry
                if not is_there and not sorts:
                    insort(self._keys, key)
        if sorts:
            self._keys = sorted(self._entries)

    def _log_and_start_over(self) -> None:
        """The store no longer keeps the missed changes: compares the cache with a snapshot."""
        self._drop_watch()
        try:
            snapshot = self._store.range("")
        except FirnError as error:
            _log.error("meta_watch_failed", error=str(error))
            self._stopping.wait(_RETRY_S)
            return
        _log.info("meta_cache_restarted", revision=snapshot.revision)
        self.apply(Changes(revision=snapshot.revision, events=self._difference(snapshot)))

    def _difference(self, snapshot: Snapshot) -> tuple[Event, ...]:
        there = {entry.key: entry for entry in snapshot.entries}
        gone = [
            Event(key=key, revision=snapshot.revision, entry=None)
            for key in self._entries
            if key not in there
        ]
        new = [
            Event(key=entry.key, revision=entry.mod_revision, entry=entry)
            for entry in snapshot.entries
            if self._entries.get(entry.key) != entry
        ]
        return (*gone, *new)

    def _drop_watch(self) -> None:
        with self._changed:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _tell(self, events: tuple[Event, ...]) -> None:
        for prefix, listener in self._listeners:
            wanted = [event for event in events if event.key.startswith(prefix)]
            if not wanted:
                continue
            try:
                listener(wanted)
            except FirnError as error:  # A damaged record must not hide others.
                _log.error("meta_record_unreadable", prefix=prefix, error=str(error))
