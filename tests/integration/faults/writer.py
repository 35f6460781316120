"""The process that is killed: it works on a store with many threads and reports every step."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from firnmq.config import StoreConfig
from firnmq.disk import preallocation
from firnmq.errors import OffsetOutOfRange
from firnmq.server import LocalStore, Store, TopicHandle
from tests.integration.faults.ledger import key_of, record_of

TOPICS: dict[str, dict[str, Any]] = {
    "plain": {"shards": 2, "options": {"segment.bytes": 16_384}},
    "busy": {"shards": 1, "options": {"segment.bytes": 8_192, "retention.bytes": 65_536}},
    "rows": {
        "shards": 2,
        "options": {"storage.type": "EngineRocksDB", "segment.bytes": 16_384},
    },
    "shared": {
        "shards": 2,
        "options": {
            "segment.layout": "shared-file",
            "segment.bytes": 8_192,
            "retention.bytes": 65_536,
        },
    },
    "late": {
        "shards": 1,
        "options": {"durability": "interval", "durability.interval.ms": 5, "segment.bytes": 8_192},
    },
    "lazy": {
        "shards": 1,
        "options": {"durability": "os", "segment.bytes": 16_384, "compression.type": "lz4"},
    },
    "lazy-rows": {
        "shards": 1,
        "options": {"storage.type": "EngineRocksDB", "durability": "os", "segment.bytes": 8_192},
    },
    "spilled": {
        "shards": 1,
        "options": {
            "storage.type": "EngineMemory",
            "memory.overflow": "spill",
            "segment.bytes": 4_096,
        },
    },
}

VOLATILE = frozenset({"spilled"})
"""Topics that lose their newest records with the process."""
UNSYNCED = frozenset({"late", "lazy", "lazy-rows", "spilled"})
"""Topics that may lose their newest records in a power cut."""

_THREADS: tuple[tuple[tuple[str, int], ...], ...] = (
    (("plain", 0), ("lazy", 0), ("shared", 0)),
    (("plain", 1), ("late", 0), ("shared", 1)),
    (("rows", 0), ("lazy-rows", 0)),
    (("rows", 1), ("spilled", 0)),
    (("busy", 0),),
    (("busy", 0),),
)
"""Which shards each thread works on. Two share one: they append to it and delete by offset."""
NUMBERS_PER_THREAD = 1_000_000
PREALLOCATION_BYTES_MIN = 256
"""These segments are small, and something is to be written ahead in them too."""
_SHARED = ("busy", 0)


class Reporter:
    """Reports before and after each operation; a line is one write, so threads never mix."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._numbers = itertools.count()

    def say(self, *words: object) -> None:
        os.write(self._descriptor, json.dumps(words).encode() + b"\n")

    def intend(self, kind: str, topic: str, seq: int, *arguments: object) -> int:
        number = next(self._numbers)
        self.say("intend", number, kind, topic, seq, *arguments)
        return number

    def perform(
        self, kind: str, topic: str, seq: int, *arguments: object, does: Callable[[], object]
    ) -> None:
        number = self.intend(kind, topic, seq, *arguments)
        does()
        self.say("done", number)


class Worker:
    """One thread's operations."""

    def __init__(
        self,
        store: Store,
        reporter: Reporter,
        rng: random.Random,
        *,
        shards: Sequence[tuple[str, int]],
        first_number: int,
        group: str,
    ) -> None:
        self._store = store
        self._reporter = reporter
        self._rng = rng
        self._shards = shards
        self._next_number = first_number
        self._appended: dict[tuple[str, int], list[int]] = {}
        self._group = group

    def step(self) -> None:
        name, seq = self._rng.choice(self._shards)
        topic = self._store.topic(name)
        is_shared = (name, seq) == _SHARED
        match self._rng.randrange(20):
            case 0:
                self._delete_offset(topic, seq)
            case 1 if not is_shared:
                self._delete_key(topic, seq)
            case 2 if not is_shared:
                self._delete_before(topic, seq)
            case 3:
                self._perform("roll", topic, seq, does=lambda: topic.roll(seq))
            case 4 | 5:
                self._commit(topic, seq)
            case 6:
                self._store.local.housekeep()
            case 7:
                self._append(topic, seq, self._rng.randrange(20, 60))
            case _:
                self._append(topic, seq, self._rng.randrange(1, 6))

    def _append(self, topic: TopicHandle, seq: int, count: int) -> None:
        first = self._next_number
        self._next_number += count
        number = self._reporter.intend("append", topic.name, seq, first, count)
        (written,) = topic.append([record_of(first + at) for at in range(count)], shard=seq)
        self._reporter.say("done", number, written.base_offset)
        offsets = self._appended.setdefault((topic.name, seq), [])
        offsets += range(written.base_offset, written.next_offset)

    def _delete_offset(self, topic: TopicHandle, seq: int) -> None:
        offsets = self._appended.get((topic.name, seq))
        if offsets:
            offset = self._rng.choice(offsets)
            self._perform(
                "delete_offset",
                topic,
                seq,
                offset,
                does=lambda: topic.delete_by_offset(offset, shard=seq),
            )

    def _delete_key(self, topic: TopicHandle, seq: int) -> None:
        key = key_of(self._rng.randrange(100))
        self._perform(
            "delete_key", topic, seq, key.decode(), does=lambda: topic.delete_by_key(key, shard=seq)
        )

    def _delete_before(self, topic: TopicHandle, seq: int) -> None:
        status = topic.status(seq)
        start, end = status.start_offset, status.end_offset
        offset = self._rng.randrange(start, start + (end - start) // 2 + 1)

        def delete() -> None:
            try:
                topic.delete_before(offset, shard=seq)
            except OffsetOutOfRange:
                return  # Retention was faster.

        self._perform("delete_before", topic, seq, offset, does=delete)

    def _commit(self, topic: TopicHandle, seq: int) -> None:
        offset = self._rng.randrange(1_000_000)
        self._perform(
            "commit",
            topic,
            seq,
            self._group,
            offset,
            does=lambda: topic.commit(self._group, {seq: offset}),
        )

    def _perform(
        self,
        kind: str,
        topic: TopicHandle,
        seq: int,
        *arguments: object,
        does: Callable[[], object],
    ) -> None:
        self._reporter.perform(kind, topic.name, seq, *arguments, does=does)


def open_busy_store(path: Path) -> Store:
    """A store whose background work comes round often enough to be interrupted."""
    config = StoreConfig(
        housekeeping_ms=40,
        state_sync_ms=10,
        memory_bytes=1024 * 1024,
        shared_file_bytes=16 * 1024,
    )
    return Store(LocalStore(path, config=config))


def make_topics(store: Store) -> None:
    there = {topic.name for topic in store.topics()}
    for name, given in TOPICS.items():
        if name not in there:
            store.create_topic(name, **given)


def run(descriptor: int, path: str, seed: int, cycle: int, step_count: int) -> None:
    """Works until killed or until every thread has done its steps, then closes the store."""
    preallocation.PREALLOCATION_BYTES_MIN = PREALLOCATION_BYTES_MIN
    reporter = Reporter(descriptor)
    reporter.say("opening")
    store = open_busy_store(Path(path))
    make_topics(store)
    reporter.say("ready")

    def work(thread: int) -> None:
        try:
            worker = Worker(
                store,
                reporter,
                random.Random(f"{seed}-{thread}-{cycle}"),
                shards=_THREADS[thread],
                first_number=(cycle * len(_THREADS) + thread) * NUMBERS_PER_THREAD,
                group=f"group-{thread}",
            )
            for _ in range(step_count):
                worker.step()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            reporter.say("error", traceback.format_exc(limit=-3)[-3000:])

    threads = [threading.Thread(target=work, args=(each,)) for each in range(len(_THREADS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reporter.say("closing")
    store.close()
    reporter.say("closed")
