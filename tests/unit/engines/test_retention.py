"""Which segments retention lets go: a pure question."""

import pytest

from firnmq.config import TopicConfig
from firnmq.engines.retention import expired_end
from firnmq.engines.segments import IllegalTransition, Medium, SegmentMeta, SegmentState

NOW = 100_000


def sealed(*timestamps: int, length: int = 100) -> list[SegmentMeta]:
    """Segments of ten records each, by the timestamp of their newest."""
    metas = [
        SegmentMeta(seq=seq, base_offset=10 * seq, created_ms=0).become_sealed(
            end_offset=10 * seq + 10, length=length, crc=0, max_timestamp=time, now_ms=0
        )
        for seq, time in enumerate(timestamps)
    ]
    return [*metas, SegmentMeta(seq=len(metas), base_offset=10 * len(metas), created_ms=0)]


@pytest.mark.parametrize(
    ("timestamps", "config", "active_bytes", "end"),
    [
        ([1, 2, 3], TopicConfig(), 0, None),
        ([], TopicConfig(retention_ms=0, retention_bytes=0), 10**9, None),
        ([NOW - 1000, NOW - 999], TopicConfig(retention_ms=1000), 0, 10),
        ([NOW - 999, NOW - 5000], TopicConfig(retention_ms=1000), 0, None),
        ([1, 2, NOW], TopicConfig(retention_ms=1000), 0, 20),
        ([NOW - 50] * 3, TopicConfig(ttl_ms=50), 0, 30),
        ([NOW - 50] * 3, TopicConfig(ttl_ms=50, retention_ms=500), 0, 30),
        ([1] * 5, TopicConfig(retention_bytes=200), 0, 30),
        ([1] * 5, TopicConfig(retention_bytes=201), 0, 20),
        ([1] * 5, TopicConfig(retention_bytes=201), 1, 30),
        ([1] * 5, TopicConfig(retention_bytes=0), 0, 50),
        ([1] * 5, TopicConfig(retention_bytes=500), 0, None),
        ([1, 2, NOW, NOW], TopicConfig(retention_bytes=150, retention_ms=1000), 0, 20),
    ],
)
def test_expired_end(
    timestamps: list[int], config: TopicConfig, active_bytes: int, end: int | None
) -> None:
    assert expired_end(sealed(*timestamps), config, active_bytes, NOW) == end


def test_segments_only_go_where_their_state_leads() -> None:
    closed, active = sealed(1)
    with pytest.raises(IllegalTransition):
        active.become_deleted()
    with pytest.raises(IllegalTransition):
        active.become_spilled()
    with pytest.raises(IllegalTransition):
        closed.become_sealed(end_offset=1, length=1, crc=0, max_timestamp=0, now_ms=0)
    spilled = closed.become_spilled()
    assert (spilled.medium, spilled.epoch) == (Medium.FILE, closed.epoch)
    gone = spilled.become_deleted()
    assert (gone.state, gone.epoch) == (SegmentState.DELETED, closed.epoch + 1)
    with pytest.raises(IllegalTransition):
        gone.become_deleted()
