"""What a store must hold after a fault, kept by whoever watched its writer.

The writer announces every operation before it begins and again when it was acknowledged. What was
acknowledged must be there, what was only announced may be there, and nothing else can be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firnmq import NewRecord, Record
from firnmq.errors import KeyNotFound
from firnmq.record import parse_header
from firnmq.server import Store, TopicHandle
from tests.integration.faults.metadata import all_shards

KEY_COUNT = 13
TAGS = ("red", "blue", "even")
_FIRST_MS = 1_700_000_000_000
_READ_RECORDS = 500


def record_of(number: int) -> NewRecord:
    """The record with this number: everything in it follows from the number."""
    mix = number * 2654435761 % 2**32
    size = 5000 if mix % 61 == 0 else mix % 200
    tags = tuple(tag for at, tag in enumerate(TAGS) if mix >> (8 + at) & 1)
    return NewRecord(
        value=b"%d:" % number + (mix.to_bytes(4, "big") * (size // 4 + 1))[:size],
        key=None if mix % 5 == 0 else key_of(mix),
        tags=tags,
        timestamp_ms=_FIRST_MS + number % 1_000_000 * 10 + mix % 97,
    )


def key_of(number: int) -> bytes:
    return b"key-%d" % (number % KEY_COUNT)


def number_of(record: Record) -> int:
    assert record.value is not None
    return int(record.value[: record.value.index(b":")])


class Wrong(AssertionError):
    """The store does not hold what it must hold."""


@dataclass
class Operation:
    """One announced operation."""

    kind: str
    shard: tuple[str, int]
    arguments: tuple[Any, ...]


@dataclass
class ShardLedger:
    """What is known of one shard."""

    expected: dict[int, int] = field(default_factory=dict)
    """Offset to number of every record that was acknowledged and not deleted."""
    gone: set[int] = field(default_factory=set)
    """Offsets whose deletion was acknowledged."""
    start: int = 0
    end: int = 0
    """No offset below this may be given out again."""
    committed: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Takes the writer's announcements and judges the store afterwards."""

    def __init__(self) -> None:
        self.shards: dict[tuple[str, int], ShardLedger] = {}
        self.pending: dict[int, Operation] = {}
        self.announced: dict[int, Operation] = {}
        """Everything since the last check, done or not."""
        self.done_count = 0

    # Taking notes -----------------------------------------------------------------------------

    def take_line(self, line: bytes) -> str:
        """Takes one line of the writer's; returns its first word."""
        word, *rest = json.loads(line)
        match word:
            case "intend":
                number, kind, topic, shard, *arguments = rest
                self.intend(number, kind, (topic, shard), *arguments)
            case "done":
                self.done(rest[0], *rest[1:])
            case "failed":
                self.failed(rest[0])
            case "error":
                raise Wrong(f"the writer met an unexpected error: {rest[0]}")
        return str(word)

    def intend(self, number: int, kind: str, shard: tuple[str, int], *arguments: Any) -> None:
        self.pending[number] = self.announced[number] = Operation(kind, shard, arguments)
        self.shards.setdefault(shard, ShardLedger())

    def failed(self, number: int) -> None:
        """The operation was refused before it began, so it cannot have had an effect."""
        del self.pending[number]

    def done(self, number: int, *result: Any) -> None:
        self.done_count += 1
        operation = self.pending.pop(number)
        shard = self.shards[operation.shard]
        match operation.kind, operation.arguments:
            case "append", (first, count):
                (base_offset,) = result
                for at in range(count):
                    shard.expected[base_offset + at] = first + at
                shard.end = max(shard.end, base_offset + count)
            case "delete_offset", (offset,):
                shard.expected.pop(offset, None)
                shard.gone.add(offset)
            case "delete_key", (key,):
                dead = [at for at, each in shard.expected.items() if _has_key(each, key)]
                for offset in dead:
                    del shard.expected[offset]
                shard.gone.update(dead)
            case "delete_before", (offset,):
                shard.start = max(shard.start, offset)
            case "commit", (group, offset):
                shard.committed[group] = offset
            case "truncate", (offset,):
                shard.expected = {at: n for at, n in shard.expected.items() if at < offset}
                shard.gone = {at for at in shard.gone if at < offset}
                shard.end = offset
            case _:
                pass

    def take_later(self, later: Ledger) -> None:
        """Takes what a later state of the same ledger knows as announced but not as done."""
        for number, operation in later.announced.items():
            if number not in self.announced:
                self.intend(number, operation.kind, operation.shard, *operation.arguments)

    # Judging ----------------------------------------------------------------------------------

    def check(
        self,
        store: Store,
        *,
        is_lossy: Callable[[str], bool] = lambda _: False,
        seed: int = 0,
        asks_indexes: bool = True,
    ) -> None:
        """Compares the store with the ledger; then what is there becomes what is expected.

        A lossy topic may have lost the last of what was acknowledged, and nothing else. Index
        entries are verified in any case; asking the indexes as a reader does takes longer.
        """
        there = {topic.name for topic in store.topics()}
        for (name, seq), shard in self.shards.items():
            if name not in there:
                if shard.end or shard.committed:
                    raise Wrong(f"topic {name} is gone")
                continue
            pending = [each for each in self.pending.values() if each.shard == (name, seq)]
            judge = _Judge(store, store.topic(name), seq, shard, pending, is_lossy(name))
            rng = random.Random(seed) if asks_indexes else None
            self.shards[name, seq] = judge.check(rng)
        self.pending.clear()
        self.announced.clear()
        verify(store)


class _Judge:
    """Judges one shard of a reopened store."""

    def __init__(
        self,
        store: Store,
        topic: TopicHandle,
        seq: int,
        ledger: ShardLedger,
        pending: list[Operation],
        is_lossy: bool,
    ) -> None:
        self._store = store
        self._topic = topic
        self._seq = seq
        self._ledger = ledger
        self._pending = pending
        self._is_lossy = is_lossy

    def check(self, rng: random.Random | None) -> ShardLedger:
        status = self._topic.status(self._seq)
        start, end = status.start_offset, status.end_offset
        visible = scan(self._topic, self._seq, start)
        self._check_bounds(start, end, status.length_bytes)
        self._check_expected(visible, start, end)
        self._check_unexpected(visible)
        self._check_missing(visible, start, end)
        committed = self._check_committed()
        if rng is not None:
            check_indexes(self._topic, self._seq, visible, start, end, rng)
        return ShardLedger(
            expected={offset: number_of(record) for offset, record in visible.items()},
            gone=set(range(start, end)) - visible.keys(),
            start=start,
            end=end,
            committed=committed,
        )

    def _wrong(self, text: str) -> Wrong:
        return Wrong(f"{self._topic.name}/{self._seq}: {text}")

    def _pending_values(self, kind: str) -> list[Any]:
        return [each.arguments[0] for each in self._pending if each.kind == kind]

    def _check_bounds(self, start: int, end: int, length_bytes: int) -> None:
        ledger = self._ledger
        if start > end:
            raise self._wrong(f"starts at {start} and ends at {end}")
        cuts = self._pending_values("truncate")
        if end < min([ledger.end, *cuts]) and not self._is_lossy:
            raise self._wrong(f"ends at {end}, {ledger.end} was acknowledged")
        allowed = {ledger.start, *self._pending_values("delete_before")}
        retention = self._topic.topic.config.retention_bytes
        if start in allowed:
            return
        if retention is None or start < ledger.start:
            if self._is_lossy and start == end:
                return  # Memory starts anew where the last spilled segment ended.
            raise self._wrong(f"starts at {start}, expected {sorted(allowed)}")
        if length_bytes < retention and not self._is_lossy:
            raise self._wrong(f"keeps {length_bytes} bytes, fewer than the {retention} promised")

    def _check_expected(self, visible: Mapping[int, Record], start: int, end: int) -> None:
        cut = min([end, *self._pending_values("truncate")])
        offsets = self._pending_values("delete_offset")
        keys = self._pending_values("delete_key")
        for offset, number in self._ledger.expected.items():
            if offset < start or (offset >= end and (self._is_lossy or cut <= offset)):
                continue
            record = visible.get(offset)
            if record is None:
                if offset in offsets or any(_has_key(number, key) for key in keys):
                    continue
                if self._is_lossy and self._has_entry(offset):
                    continue  # Memory that lost its end begins with entries that it lost.
                raise self._wrong(f"acknowledged record {number} is not at {offset}")
            self._check_content(record, number)

    def _check_unexpected(self, visible: Mapping[int, Record]) -> None:
        ledger = self._ledger
        announced = [
            range(first, first + count)
            for first, count in (op.arguments for op in self._pending if op.kind == "append")
        ]
        seen: set[int] = set()
        for offset, record in visible.items():
            number = number_of(record)
            if number in seen:
                raise self._wrong(f"record {number} is there twice, the second time at {offset}")
            seen.add(number)
            if offset in ledger.expected:
                continue
            if offset in ledger.gone:
                raise self._wrong(f"deleted record at {offset} is back")
            if not any(number in numbers for numbers in announced):
                raise self._wrong(f"record {number} at {offset} was never to be there")
            self._check_content(record, number)

    def _check_content(self, record: Record, number: int) -> None:
        wanted = record_of(number)
        same = (
            record.key == wanted.key
            and record.value == wanted.value
            and record.tags == wanted.tags
            and record.timestamp_ms == wanted.timestamp_ms
        )
        if not same:
            raise self._wrong(f"record at {record.offset} is {record}, not {wanted}")

    def _check_missing(self, visible: Mapping[int, Record], start: int, end: int) -> None:
        """Offsets are contiguous: one without a record was deleted, or has the entry of a
        deletion."""
        known = self._ledger.gone | self._ledger.expected.keys()
        may_be_deleted = any(each.kind.startswith("delete_") for each in self._pending)
        if may_be_deleted:
            # What is not known may have been appended and deleted again, neither of which we had
            # heard of; another thread's later append may be known all the same.
            return
        missing = [at for at in range(start, end) if at not in visible and at not in known]
        for offset in missing:
            if not self._has_entry(offset):
                raise self._wrong(f"nothing is at {offset}, and nobody deleted it")

    def _has_entry(self, offset: int) -> bool:
        topic = self._topic.topic
        engine = self._store.local.engines[topic.config.storage_type]
        page = engine.read_batches(topic.shard_name(self._seq), offset, max_bytes=1)
        header = parse_header(page.batches[0])
        return header.is_control and header.base_offset == offset

    def _check_committed(self) -> dict[str, int]:
        found = {}
        for group, offset in self._ledger.committed.items():
            now = self._topic.committed(group).get(self._seq)
            maybe = [
                each.arguments[1]
                for each in self._pending
                if each.kind == "commit" and each.arguments[0] == group
            ]
            if now is None or now not in (offset, *maybe):
                raise self._wrong(f"group {group} is at {now}, it committed {offset}")
            found[group] = now
        return found


def verify(store: Store) -> None:
    """Bytes, chains and index entries agree, and nothing is there that no topic needs."""
    verifier = store.local.verifier
    names = [shard for topic in store.topics() for shard in topic.shard_names()]
    strays = {spec.name for spec in all_shards(store.local)} - set(names)
    if strays:
        raise Wrong(f"shards {strays} belong to no topic")
    findings = list(verifier.outside_shards())
    for name in names:
        findings += verifier.verify(name).findings
    if findings:
        raise Wrong("\n".join(map(str, findings)))


def scan(topic: TopicHandle, seq: int, start: int) -> dict[int, Record]:
    """Every record of a shard by offset, read page by page."""
    found: dict[int, Record] = {}
    offset = start
    while True:
        page = topic.read(offset, shard=seq, max_records=_READ_RECORDS)
        for record in page.records():
            if record.offset < offset or (found and record.offset <= next(reversed(found))):
                raise Wrong(f"{topic.name}/{seq}: offset {record.offset} is out of order")
            found[record.offset] = record
        if page.next_offset == offset:
            return found
        offset = page.next_offset


def check_indexes(
    topic: TopicHandle,
    seq: int,
    visible: Mapping[int, Record],
    start: int,
    end: int,
    rng: random.Random,
) -> None:
    """The key, tag and time indexes answer exactly what a look at every record answers."""
    where = f"{topic.name}/{seq}"
    newest = {record.key: record for record in visible.values() if record.key is not None}
    for number in range(KEY_COUNT):
        key = key_of(number)
        try:
            by_key: Record | None = topic.read_by_key(key, shard=seq)
        except KeyNotFound:
            by_key = None
        if by_key != newest.get(key):
            raise Wrong(f"{where}: key {key!r} gives {by_key}, scan gives {newest.get(key)}")
    for tag in TAGS:
        wanted = [record for record in visible.values() if tag in record.tags]
        found = []
        at = start
        while at < end:
            page = topic.read_by_tag(tag, at, shard=seq, max_records=rng.randrange(1, 300))
            found += page.records()
            at = page.next_offset
        if found != wanted:
            raise Wrong(f"{where}: tag {tag} gives {len(found)} records, scan {len(wanted)}")
    times = [record.timestamp_ms for record in visible.values()]
    sample = rng.sample(times, min(6, len(times)))
    for time in (0, *(each + rng.choice((-1, 0, 1)) for each in sample), _FIRST_MS * 2):
        first = next((at for at, each in visible.items() if each.timestamp_ms >= time), end)
        offset = topic.offset_at(time, shard=seq)
        if offset != first:
            raise Wrong(f"{where}: time {time} gives offset {offset}, scan gives {first}")
    for offset in rng.sample(range(start, end), min(8, end - start)):
        page = topic.read(offset, shard=seq, max_records=1)
        wanted_at = next((at for at in range(offset, end) if at in visible), None)
        got = page.records()
        if [each.offset for each in got] != ([] if wanted_at is None else [wanted_at]):
            raise Wrong(f"{where}: a read at {offset} gives {got}, scan gives {wanted_at}")


def _has_key(number: int, key: str) -> bool:
    return record_of(number).key == key.encode()
