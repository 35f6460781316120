"""A store whose topics are compacted, the processes that work on it, and what it must hold."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from firnmq import NewRecord, Record
from firnmq.config import CleanupPolicy, StoreConfig
from firnmq.errors import KeyNotFound
from firnmq.server import LocalStore, Store
from tests.integration.faults.ledger import Wrong, scan, verify
from tests.integration.faults.shim import Calls, Faults
from tests.integration.faults.writer import Reporter

ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")
KEYS = tuple(b"key-%d" % number for number in range(9))
_FIRST_MS = 1_700_000_000_000
_OPTIONS: dict[str, object] = {
    "segment.bytes": 2048,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "memory.overflow": "spill",
}
_CONFIG = StoreConfig(housekeeping_ms=20, state_sync_ms=10, compaction_bytes=192 * 6)
"""Often, and with so little memory that a pass needs more than one stretch."""


def record_of(number: int) -> NewRecord:
    """The record with this number, which is in its timestamp; every seventh has no value."""
    mix = number * 2654435761 % 2**32
    return NewRecord(
        key=KEYS[mix % len(KEYS)],
        value=None if number % 7 == 0 else b"%d:" % number + b"v" * (mix % 300),
        tags=("even",) if mix % 2 == 0 else (),
        timestamp_ms=_FIRST_MS + number,
    )


@dataclass
class CompactedLedger:
    """What one topic was given: numbers that rise, by a writer that waits for each append."""

    acknowledged: dict[bytes, int] = field(default_factory=dict)
    """The newest number of each key that was acknowledged."""
    pending: set[int] = field(default_factory=set)
    """Numbers whose append was announced last and not acknowledged."""

    def intend(self, first: int, count: int) -> None:
        self.pending = set(range(first, first + count))

    def done(self) -> None:
        for number in sorted(self.pending):
            key = record_of(number).key
            assert key is not None
            self.acknowledged[key] = number
        self.pending = set()

    def check(self, store: Store, name: str, *, is_lossy: bool = False) -> None:
        """Every key has its newest record, and nothing is there that was not written."""
        topic = store.topic(name)
        newest: dict[bytes, int] = {}
        for record in scan(topic, 0, topic.status(0).start_offset).values():
            number = record.timestamp_ms - _FIRST_MS
            wanted = record_of(number)
            if (record.key, record.value, record.tags) != (wanted.key, wanted.value, wanted.tags):
                raise Wrong(f"{name}: {record} is not {wanted}")
            assert record.key is not None
            if number <= newest.get(record.key, -1):
                raise Wrong(f"{name}: {record} comes after its successor")
            newest[record.key] = number
        for key in KEYS:
            self._check_key(name, key, newest.get(key, -1), is_lossy=is_lossy)
            found = _by_key(store, name, key)
            if (-1 if found is None else found.timestamp_ms - _FIRST_MS) != newest.get(key, -1):
                raise Wrong(f"{name}: {key!r} gives {found}, scan gives {newest.get(key)}")
        self.acknowledged = newest
        self.pending = set()

    def _check_key(self, name: str, key: bytes, found: int, *, is_lossy: bool) -> None:
        wanted = self.acknowledged.get(key, -1)
        if found == wanted or found in self.pending or (is_lossy and found < wanted):
            return
        raise Wrong(f"{name}: the newest of {key!r} is {found}, acknowledged was {wanted}")


def _by_key(store: Store, name: str, key: bytes) -> Record | None:
    try:
        return store.topic(name).read_by_key(key, shard=0)
    except KeyNotFound:
        return None


def make_topics(store: Store) -> None:
    there = {topic.name for topic in store.topics()}
    for engine in ENGINES:
        if engine not in there:
            store.create_topic(engine, options={**_OPTIONS, "storage.type": engine})


def set_policy(store: Store, name: str, policy: CleanupPolicy) -> None:
    topic = store.topic(name).topic
    config = dataclasses.replace(topic.config, cleanup_policy=policy)
    store.local.engines[name].reconfigure(topic.shard_name(0), config)


def append(store: Store, name: str, first: int, count: int, say: Callable[..., None]) -> None:
    say("intend", name, first, count)
    store.topic(name).append([record_of(first + at) for at in range(count)], shard=0)
    say("done", name)


def prepare(descriptor: int, path: str) -> None:
    """Makes the store that every interrupted compaction starts from: some compacted already."""
    reporter = Reporter(descriptor)
    local = LocalStore(Path(path), background=False)
    store = Store(local)
    make_topics(store)
    for part in range(2):
        for engine in ENGINES:
            for at in range(6):
                append(store, engine, part * 1000 + at * 10, 10, reporter.say)
            store.topic(engine).roll()
        if part == 1:  # The second part is spilled, but not compacted yet.
            for engine in ENGINES:
                set_policy(store, engine, CleanupPolicy.DELETE)
        local.housekeep()
    for engine in ENGINES:
        set_policy(store, engine, CleanupPolicy.COMPACT)
    store.close()


def compact(descriptor: int, path: str, after: int, is_partial: bool) -> None:
    """Opens the store and ends at the system call number `after` of its compaction."""
    local = LocalStore(Path(path), background=False)
    store = Store(local)
    for engine in ENGINES:
        store.topic(engine).read(0)  # Opening is another operation.
    Faults.of_this_process().end(Calls.ALL, path, after=after, is_partial=is_partial)
    local.housekeep()
    Faults.of_this_process().lift()
    Reporter(descriptor).say("complete")
    store.close()


def work(descriptor: int, path: str, seed: int, first_number: int) -> None:
    """Appends and rolls while compaction runs in the background, until killed."""
    rng = random.Random(seed)
    reporter = Reporter(descriptor)
    store = Store(LocalStore(Path(path), config=_CONFIG))
    make_topics(store)
    number = first_number
    while True:
        name = rng.choice(ENGINES)
        count = rng.randrange(1, 25)
        append(store, name, number, count, reporter.say)
        number += count
        if rng.random() < 0.1:
            store.topic(name).roll()


def take(ledgers: dict[str, CompactedLedger], lines: Iterable[bytes]) -> bool:
    """Takes a process's lines; whether it said that it was complete."""
    is_complete = False
    for line in lines:
        match json.loads(line):
            case "intend", str(name), int(first), int(count):
                ledgers[name].intend(first, count)
            case "done", str(name):
                ledgers[name].done()
            case ["complete"]:
                is_complete = True
    return is_complete


def check(path: Path, ledgers: dict[str, CompactedLedger]) -> None:
    """Opens the store after an interruption, compacts what is left to compact, opens it again."""
    for is_second in (False, True):
        with Store(LocalStore(path, background=False)) as store:
            for name, ledger in ledgers.items():
                ledger.check(store, name, is_lossy=name == "EngineMemory")
            verify(store)
            if not is_second:
                store.local.housekeep()
                for name, ledger in ledgers.items():
                    ledger.check(store, name)
                    _check_compacted(store, name)
                verify(store)


def _check_compacted(store: Store, name: str) -> None:
    """No key has two records in what is sealed."""
    topic = store.topic(name)
    active = topic.status(0).segments[-1].base_offset
    keys = [record.key for at, record in scan(topic, 0, 0).items() if at < active]
    if len(set(keys)) < len(keys):
        raise Wrong(f"{name}: {len(keys)} records of {len(set(keys))} keys")
