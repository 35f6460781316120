"""Where the records of each leader's epoch end, by the segments of the shard."""

from __future__ import annotations

import pytest

from firnmq.brokers.kafka.handlers.epochs import (
    UNKNOWN_END,
    EpochEnd,
    end_of_epoch,
    epoch_error,
    epoch_of,
)
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.engines.catalog.segments import SegmentMeta

_SEGMENTS = [
    SegmentMeta(seq=seq, base_offset=base, created_ms=0, leader_epoch=epoch)
    for seq, base, epoch in [(3, 10, 1), (4, 20, 1), (5, 30, 4), (6, 40, 5)]
]
_END = 45


@pytest.mark.parametrize(
    ("epoch", "found"),
    [
        (5, EpochEnd(5, _END)),
        (4, EpochEnd(4, 40)),
        (3, EpochEnd(1, 30)),
        (1, EpochEnd(1, 30)),
        (0, EpochEnd(0, 10)),
        (6, UNKNOWN_END),
        (-1, UNKNOWN_END),
    ],
)
def test_where_an_epoch_ends(epoch: int, found: EpochEnd) -> None:
    assert end_of_epoch(_SEGMENTS, epoch, _END) == found


@pytest.mark.parametrize(
    ("offset", "epoch"), [(10, 1), (29, 1), (30, 4), (39, 4), (40, 5), (45, 5), (3, 0)]
)
def test_the_epoch_of_a_record(offset: int, epoch: int) -> None:
    assert epoch_of(_SEGMENTS, offset) == epoch


def test_what_a_client_is_told_that_knows_another_epoch() -> None:
    told = [epoch_error(known, 3) for known in (-1, 3, 2, 4)]
    assert told == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ]
