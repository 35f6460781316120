"""The quotas, kept in the meta store and followed through the node's cache of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from firnmq.brokers.kafka.quotas.model import ENTITIES_MAX, Entity, Limits, Quota
from firnmq.errors import Corruption, InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.meta import Entry, Event, MetaCache, MetaStore
from firnmq.meta.records import QUOTAS, QuotaRecord, decode, encode, quota_key

_SEEN_WITHIN_S = 30.0
"""Seconds until the node's cache of the metadata must show a change."""
_log = EventLogger("quotas")

Change = Mapping[Quota, float | None]
"""New values; None removes one."""


class QuotaStore:
    """Safe with threads. A change returns once it is durable and this node goes by it."""

    def __init__(self, meta: MetaStore, cache: MetaCache) -> None:
        self._meta = meta
        self._cache = cache
        self._changing = threading.Lock()
        self._by_key: dict[str, tuple[Entity, Limits]] = {}
        self.limits: Mapping[Entity, Limits] = {}
        """As of now. Replaced with every change, never changed."""
        self._listeners: list[Callable[[], None]] = []
        cache.listen(QUOTAS, self._follow)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls the listener after every change, in the cache's thread."""
        self._listeners.append(listener)

    def change(self, entity: Entity, change: Change, *, validate_only: bool = False) -> None:
        with self._changing:
            before = self.limits.get(entity, {})
            after = {
                quota: value for quota, value in {**before, **change}.items() if value is not None
            }
            if entity not in self.limits and len(self.limits) >= ENTITIES_MAX:
                raise InvalidArgument("entity", f"there are quotas of {ENTITIES_MAX:,} already")
            if validate_only or after == before:
                return
            key = quota_key(dict(entity))
            if after:
                record = QuotaRecord(
                    entity=dict(entity),
                    limits={quota.value: value for quota, value in sorted_limits(after)},
                )
                revision = self._meta.txn((), {key: encode(record)})
            else:
                revision = self._meta.txn((), None, [key])
            self._cache.wait_for_revision(revision, _SEEN_WITHIN_S)

    def _follow(self, events: list[Event]) -> None:
        """Called in the cache's thread."""
        for event in events:
            found = None if event.entry is None else _read(event.entry)
            if found is None:
                self._by_key.pop(event.key, None)
            else:
                self._by_key[event.key] = found
        self.limits = dict(self._by_key.values())
        for listener in self._listeners:
            listener()


def sorted_limits(limits: Limits) -> list[tuple[Quota, float]]:
    return sorted(limits.items(), key=lambda each: each[0].value)


def _read(entry: Entry) -> tuple[Entity, Limits] | None:
    try:
        record = decode(entry, QuotaRecord)
        limits = {Quota(name): value for name, value in record.limits.items()}
    except (Corruption, ValueError) as error:
        _log.error(
            "quota_unreadable",
            key=entry.key,
            error=str(error),
            effect="it holds for no client",
            hint="set it again",
        )
        return None
    return tuple(sorted(record.entity.items())), limits
