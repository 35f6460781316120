"""Epochs of leaders: which one a client knows, and where the records of each end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.engines.catalog.segments import SegmentMeta

FIRST_EPOCH = 0
"""Of a shard whose leader has never changed."""
NO_EPOCH = -1


class EpochEnd(NamedTuple):
    """An epoch, and the first offset that is not of it or an earlier one."""

    epoch: int
    end_offset: int


UNKNOWN_END = EpochEnd(NO_EPOCH, -1)


def epoch_error(known_epoch: int, epoch: int) -> ErrorCode:
    """What a client is told whose request names the epoch that it knows, where `epoch` is the
    present one; a negative one names none."""
    if known_epoch < 0 or known_epoch == epoch:
        return ErrorCode.NONE
    if known_epoch < epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def epoch_of(segments: Sequence[SegmentMeta], offset: int) -> int:
    """The epoch of the record at an offset, or of the next one to be written."""
    found = FIRST_EPOCH
    for meta in segments:
        if meta.base_offset > offset:
            break
        found = meta.leader_epoch
    return found


def end_of_epoch(segments: Sequence[SegmentMeta], epoch: int, end_offset: int) -> EpochEnd:
    """The newest epoch of records that is not newer than the given one, and where it ends. Epochs
    rise from segment to segment."""
    newest = segments[-1].leader_epoch
    if epoch == newest:
        return EpochEnd(epoch, end_offset)
    if not 0 <= epoch < newest:
        return UNKNOWN_END
    floor = [meta.leader_epoch for meta in segments if meta.leader_epoch <= epoch]
    beyond = next(meta.base_offset for meta in segments if meta.leader_epoch > epoch)
    return EpochEnd(floor[-1] if floor else epoch, beyond)
