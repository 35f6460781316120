"""What a shard should be, as plain lists and sets."""

from __future__ import annotations

from dataclasses import dataclass, field

from firnmq.engines import AdapterOffsetStrategy
from firnmq.record import NewRecord


@dataclass(frozen=True)
class Stored:
    """A record at its offset, with the time it was stored at where it brought none."""

    offset: int
    timestamp_ms: int
    record: NewRecord

    @property
    def content_bytes(self) -> int:
        record = self.record
        return len(record.value or b"") + len(record.key or b"") + sum(map(len, record.tags))

    def has_expired_itself(self, now_ms: int) -> bool:
        expire_at_ms = self.record.expire_at_ms
        return expire_at_ms is not None and expire_at_ms <= now_ms


@dataclass
class Model:
    """A shard. Every question is answered by looking at everything."""

    ttl_ms: int | None
    start: int = 0
    first: int = 0
    """Offset of the first entry of `stored`: not 0 where memory lost what it held."""
    stored: list[Stored] = field(default_factory=list)
    entries: dict[int, set[int]] = field(default_factory=dict)
    """Entries of deletions, by their offsets, with the offsets of what they delete."""
    by_offset: dict[int, set[int]] = field(default_factory=dict)
    """Those that name offsets."""
    borders: list[int] = field(default_factory=list)
    """Where batches begin."""
    compacted_away: set[int] = field(default_factory=set)
    tombstones: dict[int, int] = field(default_factory=dict)
    """Offsets of records without a value that compaction has left, and when it first came by."""

    @property
    def end(self) -> int:
        return self.first + len(self.stored)

    @property
    def deleted(self) -> set[int]:
        """Offsets without a record that is live: of deleted ones and of entries."""
        return set(self.entries).union(*self.entries.values())

    @property
    def named(self) -> set[int]:
        """Offsets that entries name."""
        return set().union(*self.by_offset.values())

    def append(self, records: list[NewRecord], now_ms: int) -> int:
        base = self.end
        self.borders.append(base)
        for record in records:
            timestamp = now_ms if record.timestamp_ms is None else record.timestamp_ms
            self.stored.append(Stored(self.end, timestamp, record))
        return base

    def is_live(self, each: Stored, now_ms: int) -> bool:
        has_outlived = self.ttl_ms is not None and each.timestamp_ms + self.ttl_ms <= now_ms
        return not (
            each.offset < self.start
            or each.offset in self.deleted
            or each.offset in self.compacted_away
            or has_outlived
            or each.has_expired_itself(now_ms)
        )

    def live(self, now_ms: int) -> list[Stored]:
        return [each for each in self.stored if self.is_live(each, now_ms)]

    def with_key(self, key: bytes, now_ms: int) -> Stored | None:
        found = [each for each in self.live(now_ms) if each.record.key == key]
        return found[-1] if found else None

    def with_tag(self, tag: str, start: int, now_ms: int) -> list[Stored]:
        live = self.live(now_ms)
        return [each for each in live if each.offset >= start and tag in each.record.tags]

    def at_time(self, timestamp_ms: int, strategy: AdapterOffsetStrategy, now_ms: int) -> int:
        for each in self.live(now_ms):
            if each.timestamp_ms >= timestamp_ms:
                return each.offset
        return self.start if strategy is AdapterOffsetStrategy.EARLIEST else self.end

    def new_deletions(self, offsets: list[int]) -> set[int]:
        """Which of the offsets hold a record that was not deleted so before."""
        inside = {offset for offset in offsets if self.start <= offset < self.end}
        return inside - self.named - set(self.entries)

    def delete(self, offsets: set[int], now_ms: int) -> None:
        self.by_offset[self.end] = offsets
        self.append_entry(offsets, now_ms)

    def delete_key(self, key: bytes, now_ms: int) -> None:
        self.append_entry({each.offset for each in self.stored if each.record.key == key}, now_ms)

    def append_entry(self, offsets: set[int], now_ms: int) -> None:
        self.entries[self.end] = offsets
        self.append([NewRecord(value=b"an entry")], now_ms)

    def compact(self, end: int, now_ms: int) -> None:
        """Leaves the newest live record of each key below an offset."""
        below = [each for each in self.stored if each.offset < end]
        newest = {
            each.record.key: each.offset
            for each in self.live(now_ms)
            if each.offset < end and each.record.key is not None
        }
        kept = set(newest.values())
        self.compacted_away |= {each.offset for each in below if each.offset not in kept}
        for each in below:
            if each.offset in kept and each.record.value is None:
                self.tombstones.setdefault(each.offset, now_ms)

    def cut(self, end: int) -> None:
        """Forgets everything from an offset on, deletions too."""
        if end < self.first:
            self.first, self.stored = end, []
        self.stored = self.stored[: end - self.first]
        self.entries = {at: each for at, each in self.entries.items() if at < end}
        self.by_offset = {at: each for at, each in self.by_offset.items() if at < end}
        self.compacted_away = {offset for offset in self.compacted_away if offset < end}
        self.tombstones = {at: ms for at, ms in self.tombstones.items() if at < end}
        self.borders = [border for border in self.borders if border < end]
