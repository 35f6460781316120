"""A machine that does the same random things to an engine and to the model, and compares."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firnmq.config import StorageType, StoreConfig
from firnmq.engines import AdapterOffsetStrategy, ShardStatus
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.engines.compaction.rewrite import NOTE_BYTES
from firnmq.engines.retention import expired_end
from firnmq.engines.tiering.api import ColdMedium
from firnmq.errors import InvalidArgument, KeyNotFound, OffsetOutOfRange
from firnmq.record import NewRecord, Record, decode, encode
from tests.conformance.lab import Lab, Shard
from tests.conformance.stored import content, stored
from tests.properties.engines.model import Model, Stored

RECORD_OVERHEAD_BYTES_MAX = 100
"""Lengths, deltas and header names of one record, generously."""
KEYS = [b"a", b"b", b"", b"long" * 40]
TAGS = ["red", "blue", "long" * 40]

keys = st.sampled_from(KEYS)
tags = st.sampled_from(TAGS)
limits = st.one_of(st.integers(1, 5), st.integers(1, 2000), st.just(2**31 - 1))
fractions = st.floats(0, 1)


@st.composite
def new_records(draw: st.DrawFn) -> tuple[bytes | None, bytes | None, tuple[str, ...], int, int]:
    """Key, value, tags, and timestamp and expiry relative to now; 0 stands for none."""
    value = draw(st.one_of(st.none(), st.integers(0, 300).map(lambda size: b"v" * size)))
    return (
        draw(st.one_of(st.none(), keys)),
        value,
        tuple(draw(st.lists(tags, max_size=2))),
        draw(st.one_of(st.just(0), st.integers(-4000, 1000))),
        draw(st.one_of(st.just(0), st.just(0), st.integers(-10, 5000))),
    )


class EngineMachine(RuleBasedStateMachine):
    """One shard of one engine. `storage_type` and `folder` are set by a subclass."""

    storage_type: str
    folder: Path
    cold: ColdMedium | None = None
    more_options: ClassVar[dict[str, object]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=self.folder))

    def new_lab(self, config: StoreConfig) -> Lab:
        return Lab(self.directory / "data", self.storage_type, config=config, cold=self.cold)

    def teardown(self) -> None:
        if hasattr(self, "lab"):
            self.lab.close()
        shutil.rmtree(self.directory)

    @property
    def now(self) -> int:
        return self.lab.clock.now_ms()

    @initialize(
        segment_bytes=st.sampled_from([1024, 1500, 4096]),
        segment_ms=st.sampled_from(["none", 3000]),
        ttl_ms=st.sampled_from([None, None, 6000]),
        retention_ms=st.sampled_from([None, None, 8000]),
        retention_bytes=st.sampled_from([None, None, 3000]),
        compression=st.sampled_from(["none", "none", "gzip", "snappy", "lz4", "zstd"]),
        overflow=st.sampled_from(["drop", "spill"]),
        durability=st.sampled_from(["fsync", "os"]),
        policy=st.sampled_from(["delete", "compact", "compact,delete"]),
        delete_retention_ms=st.sampled_from([0, 2000]),
        compaction_keys=st.sampled_from([2, 1000]),
    )
    def make_shard(
        self,
        segment_bytes: int,
        segment_ms: object,
        ttl_ms: int | None,
        retention_ms: int | None,
        retention_bytes: int | None,
        compression: str,
        overflow: str,
        durability: str,
        policy: str,
        delete_retention_ms: int,
        compaction_keys: int,
    ) -> None:
        config = StoreConfig(compaction_bytes=compaction_keys * NOTE_BYTES)
        self.lab = self.new_lab(config)
        policy = str(self.more_options.get("cleanup.policy", policy))
        self.shard: Shard = self.lab.shard(
            {
                "segment.bytes": segment_bytes,
                "segment.ms": segment_ms,
                "ttl.ms": ttl_ms,
                "retention.ms": retention_ms,
                "retention.bytes": retention_bytes,
                "compression.type": compression,
                "memory.overflow": overflow,
                "durability": durability,
                "cleanup.policy": policy,
                "delete.retention.ms": delete_retention_ms,
                "min.cleanable.dirty.ratio": 0,
                **self.more_options,
            }
        )
        self.model = Model(ttl_ms=ttl_ms)
        self.spills = overflow == "spill"
        self.compacts = "compact" in policy

    # Writing ------------------------------------------------------------------------------------

    def _records(self, drawn: list[tuple[bytes | None, bytes | None, tuple[str, ...], int, int]]):
        return [
            NewRecord(
                key=b"keyless" if self.compacts and key is None else key,
                value=value,
                tags=tags,
                timestamp_ms=self.now + time if time else None,
                expire_at_ms=self.now + expiry if expiry else None,
            )
            for key, value, tags, time, expiry in drawn
        ]

    @rule(drawn=st.lists(new_records(), min_size=1, max_size=4))
    def append_few(self, drawn: list) -> None:
        self._append(self._records(drawn))

    @rule(drawn=st.lists(new_records(), min_size=1, max_size=3), times=st.integers(9, 30))
    def append_many(self, drawn: list, times: int) -> None:
        self._append(self._records(drawn) * times)

    def _append(self, records: list[NewRecord]) -> None:
        appended = self.shard.append(*records)
        assert appended.base_offset == self.model.append(records, self.now)
        assert appended.next_offset == self.model.end

    @rule(drawn=st.lists(new_records(), min_size=1, max_size=5), base=st.integers(0, 1000))
    def append_batch(self, drawn: list, base: int) -> None:
        records = self._records(drawn)
        batch = bytes(encode(records, now_ms=self.now, base_offset=base))
        assert self.shard.append_raw(batch).base_offset == self.model.append(records, self.now)

    # Reading ------------------------------------------------------------------------------------

    def _offset(self, fraction: float) -> int:
        return self.model.start + round(fraction * (self.model.end - self.model.start))

    @rule(fraction=fractions, max_records=limits, max_bytes=limits)
    def read_by_offset(self, fraction: float, max_records: int, max_bytes: int) -> None:
        offset = self._offset(fraction)
        page = self.shard.read(offset, max_records=max_records, max_bytes=max_bytes)
        wanted = [each for each in self.model.live(self.now) if each.offset >= offset]
        found = page.records()
        self._check(found, wanted[: len(found)])
        assert len(found) >= min(1, len(wanted))
        assert len(found) <= max_records
        rest = wanted[len(found) :]
        assert page.next_offset <= (rest[0].offset if rest else self.model.end)
        assert page.next_offset > offset or offset == self.model.end
        self._check_size(found, wanted, max_records, max_bytes)

    @rule(fraction=fractions, max_bytes=limits)
    def read_raw(self, fraction: float, max_bytes: int) -> None:
        offset = self._offset(fraction)
        page = self.shard.engine.read_batches(self.shard.name, offset, max_bytes=max_bytes)
        found = [r for r in self.shard.raw_records(offset, max_bytes) if r.offset >= offset]
        below = [r.offset for r in found]
        wanted = [each for each in self.model.live(self.now) if each.offset >= offset]
        self._check_some(found, wanted, offset, page.next_offset)
        assert page.next_offset > offset or offset == self.model.end
        assert below == [each.offset for each in wanted if each.offset < page.next_offset]

    @rule(fraction=fractions, max_bytes=limits, ranges=st.booleans())
    def read_stored(self, fraction: float, max_bytes: int, ranges: bool) -> None:
        """As a broker reads: the same batches, whichever way they are found."""
        offset = self._offset(fraction)
        page = stored(self.shard, offset, max_bytes=max_bytes, ranges=ranges)
        data = content(page)
        found = {r.offset for r in decode([data]).records()} if data else set()
        wanted = {each.offset for each in self.model.live(self.now) if each.offset >= offset}
        self._check_some(found, wanted, offset, page.next_offset)
        assert page.next_offset > offset or offset == self.model.end
        live = {each for each in wanted if each < page.next_offset}
        assert {each for each in found if each >= offset} == live

    def _check_some(
        self, found: Collection[object], wanted: Collection[object], offset: int, next_offset: int
    ) -> None:
        """At least one record if there is one. A compacted batch keeps its last offset without the
        record there: a reader from that offset gets the batch, and goes on behind it. Clients get
        entries as well, and pass over them."""
        has_entry = any(at in self.model.entries for at in range(offset, next_offset))
        assert found or not wanted or self.compacts or has_entry

    @rule(key=keys)
    def read_by_key(self, key: bytes) -> None:
        wanted = self.model.with_key(key, self.now)
        try:
            found = [self.shard.by_key(key)]
        except KeyNotFound:
            found = []
        self._check(found, [wanted] if wanted else [])

    @rule(tag=tags, fraction=fractions, max_records=limits, max_bytes=limits)
    def read_by_tag(self, tag: str, fraction: float, max_records: int, max_bytes: int) -> None:
        start = self._offset(fraction)
        page = self.shard.by_tag(tag, start, max_records=max_records, max_bytes=max_bytes)
        wanted = self.model.with_tag(tag, start, self.now)
        found = page.records()
        self._check(found, wanted[: len(found)])
        assert len(found) >= min(1, len(wanted))
        assert len(found) <= max_records
        rest = wanted[len(found) :]
        assert page.next_offset <= (rest[0].offset if rest else self.model.end)
        self._check_size(found, wanted, max_records, max_bytes)

    @rule(time=st.integers(-5000, 3000), strategy=st.sampled_from(AdapterOffsetStrategy))
    def find_by_time(self, time: int, strategy: AdapterOffsetStrategy) -> None:
        wanted = self.model.at_time(self.now + time, strategy, self.now)
        assert self.shard.at_time(self.now + time, strategy) == wanted

    # Changing -----------------------------------------------------------------------------------

    @rule(chosen=st.lists(fractions, min_size=1, max_size=5))
    def delete_by_offset(self, chosen: list[float]) -> None:
        self._delete([self._offset(fraction) for fraction in chosen])

    def _delete(self, offsets: list[int]) -> None:
        """The offset of an earlier entry counts as deleted, for as long as the log remembers it."""
        new = self.model.new_deletions(offsets)
        self.shard.delete(*offsets)
        entry_count = self.shard.end - self.model.end
        has_entry = any(at in self.model.entries for at in offsets)
        assert entry_count in ((1,) if new else (0, 1) if has_entry else (0,))
        if entry_count:
            self.model.delete(new, self.now)

    @rule(first=fractions, length=st.integers(5, 80))
    def delete_a_stretch(self, first: float, length: int) -> None:
        self._delete(list(range(self._offset(first), self._offset(first) + length)))

    @rule(key=keys)
    def delete_by_key(self, key: bytes) -> None:
        self._delete_key(key)

    def _delete_key(self, key: bytes) -> None:
        """An index may have the key although no live record does: then there is an entry too."""
        has_live = self.model.with_key(key, self.now) is not None
        self.shard.delete_key(key)
        entry_count = self.shard.end - self.model.end
        assert entry_count in ((1,) if has_live else (0, 1))
        if entry_count:
            self.model.delete_key(key, self.now)

    @rule(fraction=fractions)
    def delete_before(self, fraction: float) -> None:
        offset = self._offset(fraction)
        self.shard.delete_before(offset)
        self.model.start = offset

    @rule()
    def roll(self) -> None:
        self.shard.roll()

    @precondition(lambda self: self.model.end > self.model.start)
    @rule(fraction=fractions)
    def truncate(self, fraction: float) -> None:
        """Anywhere; only between batches of the active segment does it work."""
        offset = self._offset(fraction)
        lowest = max(self.shard.segment_bases[-1], self.model.start)
        is_border = offset in self.model.borders and offset >= lowest
        if is_border or offset == self.model.end:
            self.shard.truncate(offset)
            self.model.cut(offset)
            return
        with pytest.raises(InvalidArgument):
            self.shard.truncate(offset)

    @rule(fraction=fractions)
    def truncate_at_a_border(self, fraction: float) -> None:
        lowest = max(self.shard.segment_bases[-1], self.model.start)
        borders = [border for border in self.model.borders if border >= lowest]
        if borders:
            offset = borders[round(fraction * (len(borders) - 1))]
            self.shard.truncate(offset)
            self.model.cut(offset)

    # Time and restarts --------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 500, 3000, 9000]))
    def advance(self, ms: int) -> None:
        self.lab.clock.advance(ms)

    @rule()
    def housekeep(self) -> None:
        before = self.shard.status
        self.lab.engine.housekeep()
        after = self.shard.status
        config = after.spec.config
        assert all(each.end_offset > after.start_offset for each in after.segments[:-1])
        if self.compacts:
            self._compacted(before.start_offset, after)
            return
        active_bytes = after.length_bytes - sum(each.length for each in after.segments)
        assert expired_end(after.segments, config, active_bytes, self.lab.clock) is None
        if after.start_offset != before.start_offset:
            limits = [x for x in (config.retention_ms, config.ttl_ms) if x is not None]
            gone = [  # An entry of a deletion has no timestamp: it goes with the records before it.
                each
                for each in self.model.stored
                if before.start_offset <= each.offset < after.start_offset
                and each.offset not in self.model.entries
            ]
            are_old = bool(limits) and all(
                each.timestamp_ms + min(limits) <= self.now for each in gone
            )
            kept_bytes = config.retention_bytes
            are_many = kept_bytes is not None and after.length_bytes >= kept_bytes
            assert are_old or are_many, "retention dropped what it should have kept"
            self.model.start = after.start_offset

    @precondition(lambda self: self.compacts)
    @rule(drawn=st.lists(new_records(), min_size=1, max_size=4), is_deleted=st.booleans())
    def compact(self, drawn: list, is_deleted: bool) -> None:
        """Seals what there is, with something to compact in it, and lets compaction come by."""
        records = self._records(drawn)
        self._append(records * 2)
        if is_deleted:
            self._delete([self.model.end - 1])
        self.shard.roll()
        self.housekeep()

    def _compacted(self, start_before: int, after: ShardStatus) -> None:
        """The model does what compaction must have done after retention."""
        config, model = after.spec.config, self.model
        if not config.cleanup_policy.deletes and config.ttl_ms is None:
            assert after.start_offset == start_before, "nothing but time drops segments"
        model.start = after.start_offset
        known = dict(model.tombstones)
        model.compact(after.segments[-1].base_offset, self.now)
        found = {record.offset for record in self.shard.records()}
        for offset in {each.offset for each in model.live(self.now)} - found:
            since = known.get(offset, model.tombstones.get(offset))
            assert since is not None, "a record is missing that is no tombstone"
            assert since + config.delete_retention_ms <= self.now, "a tombstone went too early"
            model.compacted_away.add(offset)
        findings = self.lab.store.verifier.verify(self.shard.name).findings
        assert findings == ()

    @rule()
    def restart(self) -> None:
        self._before_restart()
        self.lab.reopen()
        self._after_restart()

    @rule()
    def crash(self) -> None:
        """Goes on with a copy of the directory made while the store was open: a kill -9."""
        self._before_restart()
        self.lab.crash()
        self._after_restart()

    def _before_restart(self) -> None:
        segments = self.shard.status.segments
        spilled = [each.end_offset for each in segments if each.medium is Medium.FILE]
        self._spilled_end = spilled[-1] if spilled else None

    def _after_restart(self) -> None:
        if self.storage_type != StorageType.MEMORY.value:
            return
        model = self.model
        if not self.spills:
            model.start, end = 0, 0
        else:
            end = max(model.start, self._spilled_end or 0)
        deleted, named = model.deleted, model.named
        model.cut(end)
        if not model.stored:
            model.first = model.start = end
        if self.shard.end > end:
            # Entries that were only in memory are replaced, by one for offsets and one for keys.
            model.by_offset[model.end] = {at for at in named if at < end}
            model.append_entry({at for at in deleted if at < end}, self.now)
        while model.end < min(self.shard.end, end + 2):
            model.append_entry(set(), self.now)

    # What always holds --------------------------------------------------------------------------

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        status = self.shard.status
        assert (status.start_offset, status.end_offset) == (self.model.start, self.model.end)
        assert status.failure is None
        self._check(self.shard.records(), self.model.live(self.now))

    @invariant()
    def segments_tile(self) -> None:
        if not hasattr(self, "model"):
            return
        status = self.shard.status
        segments = status.segments
        for before, after in pairwise(segments):
            assert before.end_offset == after.base_offset
            assert before.is_sealed
        assert segments[-1].state is SegmentState.ACTIVE
        assert segments[0].base_offset <= status.start_offset <= status.end_offset

    @invariant()
    def outside_is_refused(self) -> None:
        if not hasattr(self, "model"):
            return
        for offset in (self.model.start - 1, self.model.end + 1):
            with pytest.raises(OffsetOutOfRange) as caught:
                self.shard.read(offset)
            error = caught.value
            assert (error.start, error.end) == (self.model.start, self.model.end)

    @staticmethod
    def _check_size(
        found: list[Record], wanted: list[Stored], max_records: int, max_bytes: int
    ) -> None:
        """A page is as large as its limits allow and not larger, one record excepted."""
        sizes = [each.content_bytes for each in wanted[: len(found) + 1]]
        assert len(found) <= 1 or sum(sizes[: len(found)]) < max_bytes, "the page is too large"
        if len(found) < min(len(wanted), max_records):
            upper = sum(size + RECORD_OVERHEAD_BYTES_MAX for size in sizes)
            assert upper > max_bytes, "the page ended too soon"

    @staticmethod
    def _check(found: list[Record], wanted: list[Stored]) -> None:
        assert [record.offset for record in found] == [each.offset for each in wanted]
        for record, each in zip(found, wanted, strict=True):
            given = each.record
            assert (record.key, record.value, record.tags, record.timestamp_ms) == (
                given.key,
                given.value,
                given.tags,
                each.timestamp_ms,
            )
