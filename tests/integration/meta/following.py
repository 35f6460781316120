"""What a cache that follows a store must have heard: every key's changes in order, and the end."""

from __future__ import annotations

from firnmq.meta import Event, MetaCache, Snapshot


class Checker:
    """Listens to a cache, and says at the end what was wrong."""

    def __init__(self, cache: MetaCache) -> None:
        self._cache = cache
        self._values: dict[str, tuple[int, bytes]] = {}
        self._revisions: dict[str, int] = {}
        self.heard_count = 0
        self.problems: list[str] = []
        cache.listen("", self._hear)

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            self.heard_count += 1
            last = self._revisions.get(event.key, 0)
            if event.revision <= last:
                self.problems.append(f"{event.key}: {event.revision} came after {last}")
            self._revisions[event.key] = event.revision
            if event.entry is None:
                self._values.pop(event.key, None)
            else:
                self._values[event.key] = (event.entry.mod_revision, event.entry.value)

    def check(self, snapshot: Snapshot, timeout_s: float) -> None:
        """Compares what was heard, and the cache, with the store."""
        self._cache.wait_for_revision(snapshot.revision, timeout_s)
        assert self.problems == []
        assert tuple(self._cache.below("")) == snapshot.entries
        expected = {each.key: (each.mod_revision, each.value) for each in snapshot.entries}
        assert self._values == expected
