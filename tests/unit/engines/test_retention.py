"""Which segments retention lets go: a pure question."""

import pytest

from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import IllegalTransition, Medium, SegmentMeta, SegmentState
from firnmq.engines.retention import expired_end, to_drop_here
from firnmq.engines.tiering.api import TierCopy
from firnmq.testing import FakeClock

NOW = 100_000
CLOCK = FakeClock(NOW)


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
    assert expired_end(sealed(*timestamps), config, active_bytes, CLOCK) == end


@pytest.mark.parametrize(
    ("lake_end", "end"), [(0, None), (9, None), (10, 10), (19, 10), (20, 20), (1000, 30)]
)
def test_what_the_lake_does_not_have_stays(lake_end: int, end: int | None) -> None:
    config = TopicConfig(retention_ms=1000, lake_required=True)
    assert expired_end(sealed(1, 2, 3), config, 0, CLOCK, lake_end) == end


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


COPY = TierCopy(upload_id="0123456789abcdef", key="k", started_ms=0, is_done=True)


def tiered(metas: list[SegmentMeta], *seqs: int) -> list[SegmentMeta]:
    """The same segments, some of them in the object store as well."""
    return [meta.become_tiered(COPY) if meta.seq in seqs else meta for meta in metas]


@pytest.mark.parametrize(
    ("timestamps", "in_store", "config", "active_bytes", "dropped"),
    [
        ([1, 2, 3], (0, 1, 2), TopicConfig(), 0, []),
        ([1, 2, NOW], (0, 1, 2), TopicConfig(local_retention_ms=1000), 0, [0, 1]),
        ([NOW - 1000, NOW - 999], (0, 1), TopicConfig(local_retention_ms=1000), 0, [0]),
        ([1, 2, 3], (1, 2), TopicConfig(local_retention_ms=1000), 0, [1, 2]),
        ([-1, NOW], (0, 1), TopicConfig(local_retention_ms=1000), 0, [0]),
        ([1] * 4, (0, 1, 2, 3), TopicConfig(local_retention_bytes=200), 0, [0, 1]),
        ([1] * 4, (0, 1, 2, 3), TopicConfig(local_retention_bytes=200), 100, [0, 1, 2]),
        ([1] * 4, (1, 3), TopicConfig(local_retention_bytes=200), 0, [1, 3]),
        ([1] * 4, (), TopicConfig(local_retention_bytes=0, local_retention_ms=0), 0, []),
        ([1] * 2, (0, 1), TopicConfig(local_retention_bytes=0), 0, [0, 1]),
    ],
)
def test_only_what_is_in_the_store_is_dropped_here(
    timestamps: list[int],
    in_store: tuple[int, ...],
    config: TopicConfig,
    active_bytes: int,
    dropped: list[int],
) -> None:
    metas = tiered(sealed(*timestamps), *in_store)
    found = to_drop_here(metas, config, active_bytes, CLOCK)
    assert [meta.seq for meta in found] == dropped


def test_what_is_dropped_here_does_not_count_here() -> None:
    config = TopicConfig(local_retention_bytes=200, retention_bytes=300)
    metas = tiered(sealed(1, 1, 1, 1), 0, 1, 2, 3)
    metas[0] = metas[0].become_remote()
    assert [meta.seq for meta in to_drop_here(metas, config, 0, CLOCK)] == [1]
    assert expired_end(metas, config, 0, CLOCK) == 10, "all of it counts for retention"


def test_a_segment_goes_to_the_store_step_by_step() -> None:
    active = SegmentMeta(seq=0, base_offset=0, created_ms=0)
    (plain, _) = sealed(1)
    begun = plain.with_copy(COPY)
    done = begun.become_tiered(COPY)
    remote = done.become_remote()
    assert [meta.epoch for meta in (plain, begun, done, remote)] == [1, 2, 3, 4]
    assert (done.state, done.is_local, done.is_sealed) == (SegmentState.TIERED, True, True)
    assert (remote.state, remote.is_local) == (SegmentState.TIERED, False)
    assert remote.become_deleted().tier == COPY
    for refused in (
        lambda: active.with_copy(COPY),
        lambda: active.become_tiered(COPY),
        lambda: plain.become_remote(),
        lambda: done.with_copy(None),
        lambda: done.become_compacted(),
        lambda: begun.become_compacted(),
        lambda: remote.become_deleted().become_tiered(COPY),
    ):
        with pytest.raises(IllegalTransition):
            refused()
