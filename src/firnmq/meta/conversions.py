"""Segments between the engines' form and that of their records."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.meta.records import SegmentRecord


def deleted_record(record: SegmentRecord) -> SegmentRecord:
    return msgspec.structs.replace(record, state=SegmentState.DELETED, epoch=record.epoch + 1)


def sealed_record(
    record: SegmentRecord, meta: SegmentMeta, producers: Sequence[tuple[int, bytes]] = ()
) -> SegmentRecord:
    return msgspec.structs.replace(
        record,
        state=SegmentState.SEALED,
        epoch=meta.epoch,
        medium=meta.medium,
        end=meta.end_offset,
        length=meta.length,
        crc=meta.crc,
        max_timestamp=meta.max_timestamp,
        sealed_ms=meta.sealed_ms,
        first_expiry_ms=meta.first_expiry_ms,
        slot=meta.slot,
        compacted_ms=meta.compacted_ms,
        has_gaps=meta.has_gaps,
        tombstone_count=meta.tombstone_count,
        transactions=tuple(map(tuple, meta.transactions)),
        producers=tuple(producers),
    )


def meta_of(seq: int, record: SegmentRecord, node: int | None = None) -> SegmentMeta:
    """A segment as a node of a cluster sees it, or one that is alone (None)."""
    holders = () if node is None else record.holders
    return SegmentMeta(
        seq=seq,
        base_offset=record.start,
        created_ms=record.created_ms,
        state=record.state,
        medium=record.medium,
        epoch=record.epoch,
        leader_epoch=record.leader_epoch,
        end_offset=record.end,
        length=record.length,
        crc=record.crc,
        max_timestamp=record.max_timestamp,
        sealed_ms=record.sealed_ms,
        first_expiry_ms=record.first_expiry_ms,
        slot=record.slot,
        compacted_ms=record.compacted_ms,
        has_gaps=record.has_gaps,
        tombstone_count=record.tombstone_count,
        transactions=tuple(OpenTransaction(*each) for each in record.transactions),
        tier=record.tier,
        holders=holders,
        is_local=record.is_local if node is None else node in holders,
        is_led=node is None or record.leader == node,
    )
