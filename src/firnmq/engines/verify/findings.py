"""What checking stored data can find, and how it is gathered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

FINDINGS_PER_KIND_MAX = 20
"""Findings of one kind told one by one for a segment; of the rest only the number is told."""


class FindingKind(Enum):
    CHAIN = "chain"
    """Segments do not tile the shard, or their descriptions cannot be read."""
    FILE_MISSING = "file missing"
    LENGTH = "length"
    """A segment has fewer or more bytes than its description says."""
    BATCH = "batch"
    """A batch's header, CRC, offsets or records are wrong."""
    SEGMENT_CRC = "segment crc"
    """The CRC of all bytes is not the one noted when they were written."""
    TORN_TAIL = "torn tail"
    """Beyond what was noted as synced, the active segment ends in something that is no batch."""
    CHECKPOINT = "checkpoint"
    """What the checkpoint says of the segment is not so."""
    INDEX_MISSING = "index missing"
    INDEX_EXTRA = "index extra"
    INDEX_DIFFERENT = "index different"
    PRODUCER = "producer"
    """What is kept of an idempotent producer is not what the log has of it."""
    TRANSACTION = "transaction"
    """What is kept of an open or aborted transaction is not what the log has of it."""
    ORPHAN = "orphan"
    """Bytes or entries that belong to no segment of the shard."""
    DELETION = "deletion"
    """A deleted offset or key outside the shard's bounds."""
    STORE = "object store"
    """What is in the object store is not what was copied there."""
    UNREADABLE = "unreadable"
    """The operating system could not read the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    shard: str
    segment_seq: int | None
    where: str
    """File, rows or state in which it was found."""
    position: int | None
    """Byte in the segment, where that says something."""
    kind: FindingKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked of a shard, and what was found."""

    shard: str
    segment_count: int
    batch_count: int
    record_count: int
    checked_bytes: int
    entry_count: int
    """Index entries the data call for."""
    findings: tuple[Finding, ...]
    store_only_count: int = 0
    """Segments that are only in the object store."""
    store_only_bytes: int = 0
    checked_copy_count: int = 0
    """Those of them whose copies were checked."""
    store_failure: str | None = None
    """Why the rest could not be checked, if the store was asked."""


class Notes:
    """Gathers findings and counts; repeats of one kind in one segment are only counted."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._findings: list[Finding] = []
        self._told: Counter[tuple[FindingKind, int | None, str]] = Counter()
        self.batch_count = 0
        self.record_count = 0
        self.checked_bytes = 0
        self.entry_count = 0
        self.store_only_count = 0
        self.store_only_bytes = 0
        self.checked_copy_count = 0
        self.store_failure: str | None = None

    def add(
        self,
        kind: FindingKind,
        message: str,
        where: str,
        *,
        seq: int | None = None,
        position: int | None = None,
    ) -> None:
        self._told[kind, seq, where] += 1
        if self._told[kind, seq, where] <= FINDINGS_PER_KIND_MAX:
            self._findings.append(self._finding(kind, message, where, seq, position))

    def verification(self, segment_count: int) -> Verification:
        rest = [
            self._finding(kind, f"and {count - FINDINGS_PER_KIND_MAX:,} more", where, seq, None)
            for (kind, seq, where), count in self._told.items()
            if count > FINDINGS_PER_KIND_MAX
        ]
        return Verification(
            shard=self._shard,
            segment_count=segment_count,
            batch_count=self.batch_count,
            record_count=self.record_count,
            checked_bytes=self.checked_bytes,
            entry_count=self.entry_count,
            findings=(*self._findings, *rest),
            store_only_count=self.store_only_count,
            store_only_bytes=self.store_only_bytes,
            checked_copy_count=self.checked_copy_count,
            store_failure=self.store_failure,
        )

    def _finding(
        self, kind: FindingKind, message: str, where: str, seq: int | None, position: int | None
    ) -> Finding:
        return Finding(
            shard=self._shard,
            segment_seq=seq,
            where=where,
            position=position,
            kind=kind,
            message=message,
        )
