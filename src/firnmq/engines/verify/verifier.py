"""Checks what is stored: every batch, every segment's CRC, the chain, and all indexes both ways.

Nothing is repaired and nothing is opened for use, so that a damaged tail is seen as it is and not
as recovery would leave it. Bytes come straight from where a segment keeps them, index entries
straight from the key-value store. The shard must not be written to during the check; a
roll that the last append has asked for is waited for.

At most one batch and `ENTRIES_PER_PASS` index entries are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from firnmq.config import StorageType
from firnmq.disk import Family, KeyValueStore
from firnmq.engines.catalog.segments import Segment, SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.media.durable import ByteLayout
from firnmq.engines.media.layouts import SharedFile
from firnmq.engines.media.snapshots import SNAPSHOT_SUFFIX
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.engines.tiering.api import Unreachable
from firnmq.engines.verify.deletions import DeletionCheck
from firnmq.engines.verify.findings import Finding, FindingKind, Notes, Verification
from firnmq.engines.verify.producers import ProducerCheck
from firnmq.engines.verify.segment import SegmentCheck, bytes_to_check
from firnmq.errors import Corruption, StoreError
from firnmq.index import RocksSegmentIndex
from firnmq.index.layout import FENCE, NO_SEGMENT, PREFIX, PRODUCER, segment_range
from firnmq.record.selection import OFFSET_END

__all__ = ["CopyCheck", "Finding", "FindingKind", "Progress", "Verification", "Verifier"]

_OPENING_REMOVES = "the next opening for use removes them"
CopyCheck = Callable[[ShardSpec, Sequence[SegmentMeta]], Iterable[str | None]]
"""Compares objects of a shard's segments with what is known of them; for each in order what is
wrong, None if nothing is. StoreError if the store cannot be asked."""
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes there are."""


class Verifier:
    """Checks shards of one data directory."""

    def __init__(
        self,
        *,
        kv: KeyValueStore,
        state: ShardState,
        find: Callable[[str], ShardSpec | None],
        layouts: Mapping[str, ByteLayout],
        directory: Path,
        shared: SharedFile,
        memory_log: Callable[[str], ShardLog],
        wait_for_roll: Callable[[ShardSpec], None],
        shown_length: Callable[[ShardSpec], int | None],
    ) -> None:
        """`find` gives a shard by its name; `layouts` by storage type;
        `directory` holds the segment files of all shards;
        `memory_log` gives the log of a memory shard, which is nowhere but in the process;
        `wait_for_roll` returns when no roll of a shard is wanted or under way;
        `shown_length` gives the bytes of a shard's active segment below the high watermark, None if
        all of them are."""
        self._kv = kv
        self._state = state
        self._find = find
        self._layouts = layouts
        self._directory = directory
        self._shared = shared
        self._memory_log = memory_log
        self._wait_for_roll = wait_for_roll
        self._shown_length = shown_length

    def verify(
        self,
        shard: str,
        progress: Progress | None = None,
        check_copies: CopyCheck | None = None,
    ) -> Verification:
        """Checks one shard; a shard that is not there is a finding too.

        Segments that are only in the object store are counted, and checked by `check_copies` if
        that is given.
        """
        notes = Notes(shard)
        spec = self._find(shard)
        if spec is None:
            notes.add(FindingKind.CHAIN, "the topic has this shard, the store has not", "metadata")
            return notes.verification(0)
        self._wait_for_roll(spec)
        try:
            segments = self._segments(spec)
            known = {meta.place: meta for meta in self._state.chain(spec.uid)}
        except Corruption as error:
            notes.add(FindingKind.CHAIN, error.reason, error.where)
            return notes.verification(0)
        live = [s for s in segments if s.meta.state is not SegmentState.DELETED]
        is_memory = spec.config.storage_type == StorageType.MEMORY.value
        self._check_tiling(spec, live, notes, needs_active=not is_memory)
        total = sum(bytes_to_check(segment) for segment in live)
        done = 0
        end_offset = live[-1].meta.base_offset if live else 0
        first_offset = live[0].meta.base_offset if live else 0
        upto_offset, is_rewound = _indexed_upto(live)
        producers = ProducerCheck(
            spec,
            self._kv,
            notes,
            first_offset=max(
                (
                    each.meta.end_offset
                    for each in live
                    if each.meta.has_gaps or not each.meta.is_local
                ),
                default=first_offset,
            ),
            start_offset=self._state.start_offset(spec.uid),
            upto_offset=upto_offset,
            is_rewound=is_rewound,
        )
        deletions = DeletionCheck(
            self._state.deletions,
            spec.uid,
            notes,
            start_offset=self._state.start_offset(spec.uid),
            upto_offset=upto_offset,
            is_rewound=is_rewound or is_memory,
        )
        is_whole = True
        for segment in live:
            if not segment.meta.is_local:
                end_offset = segment.meta.end_offset
                continue
            shown = None if segment.meta.is_sealed else self._shown_length(spec)
            check = SegmentCheck(spec, segment, self._kv, notes, producers, deletions, shown)
            for size in check.run():
                done += size
                if progress is not None:
                    progress(done, max(total, done))
            end_offset = check.end_offset
            is_whole = is_whole and check.is_whole
            if check.is_whole and not segment.bytes.is_memory:
                deletions.cover(segment.meta.base_offset, end_offset)
        self._check_copies(spec, [s for s in live if not s.meta.is_local], notes, check_copies)
        if is_whole and (upto_offset <= end_offset or is_memory):
            producers.finish(has_producers=not is_memory)
        if is_whole:
            deletions.finish(end_offset)
        self._check_bounds(spec, notes, first_offset, end_offset, is_memory=is_memory)
        self._check_strays(spec, segments, known, notes)
        return notes.verification(len(live))

    def size_bytes(self, shard: str, *, with_cold: bool = False) -> int:
        """Bytes that checking the shard will read, for a progress bar over many shards; also what
        is only in the object store, if that is to be read."""
        spec = self._find(shard)
        if spec is None:
            return 0
        try:
            segments = self._segments(spec)
            cold = [s.meta for s in segments if with_cold and not s.meta.is_local]
            return sum(map(bytes_to_check, segments)) + sum(
                meta.length + (meta.tier.index_length if meta.tier else 0) for meta in cold
            )
        except Corruption:
            return 0  # Checking it will say so.

    def outside_shards(self) -> Iterator[Finding]:
        """Directories among the segment files that belong to no shard, and shared files of which
        the rows say something else than is there."""
        for fault in self._shared.audit():
            yield Finding(
                shard="",
                segment_seq=None,
                where=fault.path,
                position=None,
                kind=FindingKind.FILE_MISSING if fault.is_missing else FindingKind.ORPHAN,
                message=fault.reason,
            )
        if not self._directory.is_dir():
            return
        for path in sorted(self._directory.iterdir()):
            if self._find(path.name) is None:
                yield Finding(
                    shard=path.name,
                    segment_seq=None,
                    where=str(path),
                    position=None,
                    kind=FindingKind.ORPHAN,
                    message="belongs to no shard",
                )

    # A shard as a whole -------------------------------------------------------------------------

    def _segments(self, spec: ShardSpec) -> list[Segment]:
        if spec.config.storage_type == StorageType.MEMORY.value:
            return list(self._memory_log(spec.name).view.segments)
        layout = self._layouts[spec.config.storage_type]
        return [
            Segment(
                meta,
                layout.open_bytes(spec, meta) if meta.is_local else Unreachable(spec, meta),
                RocksSegmentIndex(self._kv, spec.uid, meta.place),
            )
            for meta in self._state.chain(spec.uid)
        ]

    def _check_copies(
        self, spec: ShardSpec, cold: list[Segment], notes: Notes, check: CopyCheck | None
    ) -> None:
        notes.store_only_count = len(cold)
        notes.store_only_bytes = sum(segment.meta.length for segment in cold)
        if check is None or not cold:
            return
        try:
            outcomes = check(spec, [segment.meta for segment in cold])
            for segment, wrong in zip(cold, outcomes, strict=True):
                notes.checked_copy_count += 1
                if wrong is not None:
                    notes.add(FindingKind.STORE, wrong, segment.bytes.where, seq=segment.meta.seq)
        except StoreError as error:  # What is here was checked all the same.
            notes.store_failure = str(error)

    def _check_tiling(
        self, spec: ShardSpec, live: list[Segment], notes: Notes, *, needs_active: bool
    ) -> None:
        where = f"metadata of {spec.name}"
        active = [s.meta.seq for s in live if s.meta.state is SegmentState.ACTIVE]
        if needs_active and active != [live[-1].meta.seq if live else None]:
            notes.add(FindingKind.CHAIN, "the chain does not end in one active segment", where)
        named = self._state.active_seq(spec.uid)
        if needs_active and active and active != [named]:
            text = f"the shard names segment {named} as the active one"
            notes.add(FindingKind.CHAIN, text, where, seq=named)
        # A log in memory that lost its newest records goes on behind those that the lake has.
        skips_to = 0 if needs_active else self._state.lake_end(spec.uid)
        for before, after in pairwise(segment.meta for segment in live):
            if before.end_offset < after.base_offset <= skips_to:
                continue
            if before.end_offset != after.base_offset:
                what = "gap" if before.end_offset < after.base_offset else "overlap"
                notes.add(
                    FindingKind.CHAIN,
                    f"{what}: segment {before.seq} ends at offset {before.end_offset}, "
                    f"segment {after.seq} begins at {after.base_offset}",
                    where,
                    seq=after.seq,
                )

    def _check_bounds(
        self,
        spec: ShardSpec,
        notes: Notes,
        first_offset: int,
        end_offset: int,
        *,
        is_memory: bool,
    ) -> None:
        where = f"metadata of {spec.name}"
        start = self._state.start_offset(spec.uid)
        if not is_memory and not first_offset <= start <= end_offset:
            text = f"the shard starts at {start}, its segments hold [{first_offset}, {end_offset})"
            notes.add(FindingKind.CHAIN, text, where)
        unlogged = self._state.deletions.unlogged(spec.uid)
        for offset in unlogged.offsets:
            if offset >= end_offset:  # Those below the start are forgotten in time.
                text = f"offset {offset} is noted as deleted, beyond the end {end_offset}"
                notes.add(FindingKind.DELETION, text, where)
        for key, below in unlogged.keys:
            if below > end_offset:
                name = key.decode("utf-8", "backslashreplace")
                text = f"key {name!r} is deleted below {below}, beyond the end {end_offset}"
                notes.add(FindingKind.DELETION, text, where)
        # A log in memory has lost its end; opening it truncates what is beyond.
        limit = None if is_memory else end_offset
        for wrong in self._state.retired_deletions.problems(spec.uid, limit):
            notes.add(FindingKind.DELETION, wrong, where)

    def _check_strays(
        self,
        spec: ShardSpec,
        segments: list[Segment],
        known: Mapping[int, SegmentMeta],
        notes: Notes,
    ) -> None:
        """Files, rows and index entries that no segment accounts for."""
        places = {segment.bytes.where for segment in segments}
        other_places = {meta.other_place for meta in known.values()}
        remote = {place for place, meta in known.items() if not meta.is_local}
        directory = self._directory / spec.name
        if directory.is_dir():
            ends = {meta.base_offset for meta in known.values()}
            for path in sorted(directory.iterdir()):
                if path.suffix == SNAPSHOT_SUFFIX and path.stem.isdigit():
                    _check_snapshot(spec, path, ends, notes)
                elif str(path) not in places:
                    text = f"{path.stat().st_size:,} bytes that belong to no segment"
                    notes.add(FindingKind.ORPHAN, text, str(path))
        for family in (Family.INDEX, Family.MESSAGES, Family.LOCATIONS):
            for seq in self._stored_seqs(family, spec.uid):
                if seq in other_places:
                    text = f"entries of an interrupted compaction; {_OPENING_REMOVES}"
                    notes.add(FindingKind.ORPHAN, text, f"{family.value} family")
                elif seq in remote:
                    text = f"entries of segment {seq}, which is only in the object store; "
                    text += _OPENING_REMOVES
                    notes.add(FindingKind.ORPHAN, text, f"{family.value} family", seq=seq)
                elif seq not in known and not self._is_of_producers(family, spec.uid, seq):
                    text = f"entries of segment {seq}, which the shard does not have"
                    if seq != NO_SEGMENT:
                        text = f"{text}; {_OPENING_REMOVES}"
                    notes.add(FindingKind.ORPHAN, text, f"{family.value} family", seq=seq)

    def _is_of_producers(self, family: Family, uid: int, seq: int) -> bool:
        """Whether the entries are those that belong to the shard as a whole, and no others."""
        if (family, seq) != (Family.INDEX, NO_SEGMENT):
            return False
        lower, upper = segment_range(uid, NO_SEGMENT)
        own, end = PREFIX.pack(uid, seq, PRODUCER), PREFIX.pack(uid, seq, FENCE + 1)
        return not any(self._kv.items(family, *each, 1) for each in ((lower, own), (end, upper)))

    def _stored_seqs(self, family: Family, uid: int) -> Iterator[int]:
        """Segments that have entries in a family: one look per segment, not per entry."""
        lower, upper = PREFIX.pack(uid, 0, 0)[:8], PREFIX.pack(uid + 1, 0, 0)[:8]
        while found := self._kv.items(family, lower, upper, 1):
            seq: int = PREFIX.unpack(found[0][0][:8] + b"\x00")[1]
            yield seq
            if seq == NO_SEGMENT:
                return
            lower = PREFIX.pack(uid, seq + 1, 0)[:8]


def _check_snapshot(spec: ShardSpec, path: Path, ends: Collection[int], notes: Notes) -> None:
    end_offset = int(path.stem)
    if end_offset > max(ends, default=0):
        text = f"a snapshot of an interrupted roll; {_OPENING_REMOVES}"
        notes.add(FindingKind.ORPHAN, text, str(path))
        return
    try:
        Snapshot.unpack(path.read_bytes(), spec.uid, end_offset)
    except Corruption as error:
        notes.add(FindingKind.PRODUCER, error.reason, str(path))


def _indexed_upto(live: list[Segment]) -> tuple[int, bool]:
    """How far the entries of the shard as a whole go, and whether they may speak of more.

    They may where a truncation or a crash has left the active segment without its checkpoint.
    """
    if not live:
        return 0, False
    last = live[-1]
    if last.meta.is_sealed:  # Of a memory shard only what was spilled is left.
        return last.meta.end_offset, False
    if not isinstance(last.index, RocksSegmentIndex):
        return OFFSET_END, False
    checkpoint = last.index.checkpoint()
    if checkpoint is None:
        return last.meta.base_offset, True
    return checkpoint.indexed_upto, False
