"""Writes the manifests of topics and shards to the store, from which a cluster is recovered.

Manifests are never overwritten. A change is a new object with the next number; then the objects
with smaller numbers are removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import msgspec

from firnmq.clock import Clock
from firnmq.errors import Corruption, ObjectExists, ObjectNotFound, ObjectTruncated
from firnmq.eventlog import EventLogger
from firnmq.meta.records import TopicRecord
from firnmq.tiering.format.manifest import Manifest, ShardManifest, TopicManifest, read_manifest
from firnmq.tiering.format.object_names import (
    manifest_prefix,
    parse_manifest,
    shard_manifest_key,
    topic_manifest_key,
)
from firnmq.tiering.stores import ObjectStore

_log = EventLogger("tiering")

M = TypeVar("M", TopicManifest, ShardManifest)

NUMBERS_OF_A_CLAIM = 10**9
"""Manifests that one claim may write per subject. The next claim uses higher numbers."""

Subject = tuple[str, str | None]
"""A topic's id, and the shard if the manifest is a shard's."""


class ManifestWriter:
    """Writes manifests when they change. Safe with threads."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: str,
        clock: Clock,
        claim: Callable[[], int] = lambda: 1,
        *,
        before_write: Callable[[], None] = lambda: None,
        dead_ids: Callable[[str], Collection[str]] = lambda name: (),
    ) -> None:
        """`before_write` raises if the directory may no longer write or remove objects.
        `dead_ids` gives deleted topics of a name whose manifests may still be in the store."""
        self._before_write = before_write
        self._dead_ids = dead_ids
        self._claim = claim
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers: dict[str, dict[Subject, list[int]]] = {}
        """By topic id: numbers of the manifests in the store, ascending."""
        self._latest: dict[Subject, TopicManifest | ShardManifest] = {}
        self._names: dict[str, str] = {}
        """By id, the names of topics whose manifests were written or read."""

    def ensure_topic(self, topic: TopicRecord) -> None:
        """Writes the topic's manifest if the store has none. What has changed since is written by
        the node that keeps it."""
        with self._lock:
            if self._listed(topic).get((topic.topic_id, None)):
                return
        self.write_topic(topic)

    def write_topic(self, topic: TopicRecord) -> bool:
        """Writes the manifest unless the store already has it; whether it was written."""
        manifest = TopicManifest(
            cluster=self._cluster,
            topic=topic.name,
            topic_id=topic.topic_id,
            number=0,
            written_ms=0,
            created_ms=topic.created_ms,
            shard_count=topic.shard_count,
            options=topic.options,
        )
        with self._lock:
            is_first = (topic.topic_id, None) not in self._latest
        if is_first:
            self._remove_predecessors(topic)
        with self._lock:
            return self._write((topic.topic_id, None), topic, manifest)

    def _remove_predecessors(self, topic: TopicRecord) -> None:
        """Removes the manifests of deleted topics of the same name before the topic gets one. A
        recovery could tell two topics apart only by their times, and clocks can be set back."""
        for topic_id in self._dead_ids(topic.name):
            if topic_id != topic.topic_id:
                self._before_write()
                self.remove_topic(topic.name, topic_id)

    def write_shard(
        self,
        topic: TopicRecord,
        shard: str,
        *,
        start_offset: int,
        epoch: int,
        holes: set[int],
        dead_keys: Mapping[bytes, int],
        has_lake: bool = False,
    ) -> bool:
        manifest = ShardManifest(
            cluster=self._cluster,
            topic=topic.name,
            topic_id=topic.topic_id,
            shard=shard,
            number=0,
            written_ms=0,
            start_offset=start_offset,
            epoch=epoch,
            holes=tuple(sorted(holes)),
            dead_keys=tuple(sorted(dead_keys.items())),
            has_lake=has_lake or msgspec.UNSET,
        )
        with self._lock:
            return self._write((topic.topic_id, shard), topic, manifest)

    def topics(self) -> dict[str, str]:
        """Names, by id, of topics whose manifests were written or read."""
        with self._lock:
            return dict(self._names)

    def remove_topic(self, name: str, topic_id: str) -> None:
        """Removes all manifests of a topic. The topic manifest is removed first: without it a
        recovery does not find the topic."""
        prefix = manifest_prefix(self._cluster, name, topic_id)
        keys = [info.key for info in self._store.list(prefix)]
        own = [key for key in keys if (found := parse_manifest(key)) and found.shard is None]
        self._store.delete(own)
        self._store.delete([key for key in keys if key not in set(own)])
        with self._lock:
            self._numbers.pop(topic_id, None)
            self._names.pop(topic_id, None)
            for subject in [each for each in self._latest if each[0] == topic_id]:
                del self._latest[subject]

    def forget(self) -> None:
        """Forces a new list of the store before the next write: others may have changed it."""
        with self._lock:
            self._numbers.clear()
            self._latest.clear()

    def _write(self, subject: Subject, topic: TopicRecord, manifest: M) -> bool:
        if self._same(self._latest.get(subject), manifest):
            return False
        self._names[topic.topic_id] = topic.name
        numbers = self._listed(topic).setdefault(subject, [])
        # A directory that lost its claim may still write for a moment. Its manifests must not
        # count, so ours get higher numbers, and the first is written even if nothing has changed.
        before = (self._claim() - 1) * NUMBERS_OF_A_CLAIM
        if subject not in self._latest and numbers and numbers[-1] > before:
            stored = self._read(self._key(subject, topic, numbers[-1]), type(manifest))
            if stored is not None and self._same(stored, manifest):
                self._latest[subject] = stored
                self._remove_older(subject, topic, numbers)
                return False
        self._before_write()
        while True:
            number = max(numbers[-1] if numbers else 0, before) + 1
            manifest = msgspec.structs.replace(
                manifest, number=number, written_ms=self._clock.now_ms()
            )
            try:
                self._store.put(self._key(subject, topic, number), manifest.pack())
            except ObjectExists:
                numbers.append(number)  # Our own attempt whose response was lost, or another's.
                continue
            numbers.append(number)
            break
        self._latest[subject] = manifest
        self._remove_older(subject, topic, numbers)
        return True

    def _read(self, key: str, kind: type[M]) -> M | None:
        """The stored manifest; None if it is damaged or missing and must be rewritten."""
        try:
            return read_manifest(self._store, key, kind)
        except (Corruption, ObjectNotFound, ObjectTruncated) as error:
            _log.error("manifest_damaged", key=key, error=str(error))
            return None

    def _remove_older(self, subject: Subject, topic: TopicRecord, numbers: list[int]) -> None:
        if len(numbers) > 1:
            self._store.delete([self._key(subject, topic, each) for each in numbers[:-1]])
            del numbers[:-1]

    def _listed(self, topic: TopicRecord) -> dict[Subject, list[int]]:
        found = self._numbers.get(topic.topic_id)
        if found is None:
            found = {}
            prefix = manifest_prefix(self._cluster, topic.name, topic.topic_id)
            for info in self._store.list(prefix):
                parsed = parse_manifest(info.key)
                if parsed is not None:
                    found.setdefault((topic.topic_id, parsed.shard), []).append(parsed.number)
            for numbers in found.values():
                numbers.sort()
            self._numbers[topic.topic_id] = found
        return found

    def _key(self, subject: Subject, topic: TopicRecord, number: int) -> str:
        shard = subject[1]
        if shard is None:
            return topic_manifest_key(self._cluster, topic.name, topic.topic_id, number)
        return shard_manifest_key(self._cluster, topic.name, topic.topic_id, shard, number)

    @staticmethod
    def _same(stored: Manifest | None, wanted: M) -> bool:
        if not isinstance(stored, type(wanted)):
            return False
        return msgspec.structs.replace(stored, number=0, written_ms=0) == wanted
