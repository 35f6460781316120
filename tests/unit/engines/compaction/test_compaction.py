"""What compaction chooses to work on, and what it does when it is disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.clock import Age
from firnmq.config import TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines.catalog.segments import Medium, SegmentMeta
from firnmq.engines.compaction.plan import cleanable, is_due, may_join
from firnmq.engines.verify.findings import FindingKind
from firnmq.errors import Corruption, ShardNotFound
from firnmq.record import NewRecord, walk
from firnmq.testing import FakeClock
from tests.conformance.lab import Lab, Shard

NOW = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
COMPACT = {"cleanup.policy": "compact"}


def sealed(seq: int, **changes: object) -> SegmentMeta:
    meta = SegmentMeta(seq=seq, base_offset=10 * seq, created_ms=0).become_sealed(
        end_offset=10 * seq + 10, length=100, crc=0, max_timestamp=NOW - 1000, now_ms=NOW
    )
    return meta.become_compacted(**changes) if changes else meta


def age(now_ms: int) -> Age:
    return FakeClock(now_ms).age_ms


def config(**options: object) -> TopicConfig:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return TopicConfig.from_options({**COMPACT, **given})


# Choosing ----------------------------------------------------------------------------------------


def test_what_is_sealed_stable_and_old_enough_is_cleanable() -> None:
    segments = [sealed(0), sealed(1), SegmentMeta(seq=2, base_offset=20, created_ms=0)]
    assert cleanable(segments, config(), 20, age(NOW)) == segments[:2]
    assert cleanable(segments, config(), 19, age(NOW)) == segments[:1]
    assert cleanable(segments, config(min_compaction_lag_ms=1000), 20, age(NOW)) == segments[:2]
    assert cleanable(segments, config(min_compaction_lag_ms=1001), 20, age(NOW)) == []
    old = [sealed(0, compacted_ms=5), sealed(1)]
    assert cleanable(old, config(min_compaction_lag_ms=1001), 20, age(NOW)) == old[:1]


@pytest.mark.parametrize(
    ("ratio", "clean", "dirty", "is_so"),
    [(0.5, 0, 1, True), (0.5, 1, 1, True), (0.5, 2, 1, False), (0, 9, 1, True), (0, 3, 0, False)],
)
def test_it_is_due_when_enough_is_new(ratio: float, clean: int, dirty: int, is_so: bool) -> None:
    segments = [sealed(seq, compacted_ms=1) for seq in range(clean)]
    segments += [sealed(clean + seq) for seq in range(dirty)]
    assert is_due(segments, config(min_cleanable_dirty_ratio=ratio), age(NOW)) is is_so


def test_it_is_due_when_something_has_waited_long_enough() -> None:
    clean = [sealed(seq, compacted_ms=1) for seq in range(9)]
    options = config(max_compaction_lag_ms=NOW)
    assert is_due([*clean, sealed(9)], options, age(NOW))
    assert not is_due([*clean, sealed(9)], options, age(NOW - 1))
    waiting = [sealed(0, compacted_ms=NOW - DAY_MS, tombstone_count=1)]
    assert is_due(waiting, config(), age(NOW))
    assert not is_due(waiting, config(), age(NOW - 1))
    assert not is_due([sealed(0, compacted_ms=NOW - DAY_MS)], config(), age(NOW))


def test_segments_join_unless_tombstones_wait_in_one() -> None:
    waiting = sealed(0, compacted_ms=NOW - 5, tombstone_count=1)
    for other in (sealed(1), sealed(1, compacted_ms=3)):
        assert may_join(sealed(0), other, config(), age(NOW))
        assert not may_join(waiting, other, config(), age(NOW))
        assert may_join(waiting, other, config(delete_retention_ms=5), age(NOW))
        assert not may_join(
            sealed(0), other.become_compacted(medium=Medium.FILE), config(), age(NOW)
        )


# Working -----------------------------------------------------------------------------------------


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


def filled(lab: Lab) -> Shard:
    """A shard of several sealed segments in which each of ten keys is found often."""
    shard = lab.shard({**COMPACT, "segment.bytes": 2048, "min.cleanable.dirty.ratio": 0})
    for number in range(200):
        shard.append(NewRecord(key=b"k%d" % (number % 10), value=b"%03d" % number * 10))
    shard.roll()
    return shard


def places(lab: Lab) -> list[str]:
    return sorted(str(path) for path in (lab.path / "segments").rglob("*.log"))


def test_work_that_is_stopped_leaves_nothing_behind_and_goes_on_later(lab: Lab) -> None:
    shard = filled(lab)
    values = shard.values()
    before = places(lab)
    calls = iter(range(1000))
    lab.engine.housekeep(lambda: next(calls) > 15)  # In mid-copy: after some steps.
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    assert not log.upkeep.locked()
    assert {shard.by_key(b"k%d" % number).offset for number in range(10)} == set(range(190, 200))
    lab.reopen()
    assert set(values) >= set(shard.values())
    assert lab.store.verifier.verify(shard.name).findings == ()
    assert len(places(lab)) <= len(before)
    lab.engine.housekeep()
    assert shard.offsets() == list(range(190, 200))


def test_a_shard_deleted_in_the_middle_of_a_pass_is_gone(lab: Lab) -> None:
    shard = filled(lab)
    calls = iter(range(1000))
    lab.engine.housekeep(lambda: next(calls) > 15)
    lab.engine.delete_shard(shard.name)
    lab.engine.housekeep()
    with pytest.raises(ShardNotFound):
        shard.offsets()
    assert places(lab) == []
    assert list(lab.store.verifier.outside_shards()) == []
    again = filled(lab)
    lab.engine.housekeep()
    assert again.offsets() == list(range(190, 200))


def test_the_counts_tell_what_was_done(lab: Lab) -> None:
    shard = filled(lab)
    before = shard.status.length_bytes
    lab.engine.housekeep()
    counts = lab.engine.compaction_counts()
    assert (counts.pass_count, counts.records_in, counts.records_out) == (1, 200, 10)
    assert counts.bytes_in == before
    assert counts.bytes_out == shard.status.length_bytes
    lab.engine.housekeep()
    assert counts.pass_count == 1


def test_appends_go_on_between_any_two_steps(lab: Lab) -> None:
    shard = filled(lab)
    written = []

    def append() -> bool:
        appended = run_blocking(
            shard.engine.append(shard.name, [NewRecord(key=b"new", value=b"v" * 100)])
        )
        written.append(appended.base_offset)
        return False

    lab.engine.housekeep(append)
    assert written == list(range(200, 200 + len(written)))
    assert len(written) > 10
    assert shard.offsets() == [*range(190, 200), *written]


def damaged(tmp_path: Path, base_offset: int, *, batch: int) -> Lab:
    """A compacted shard in files, one batch of which says that it begins elsewhere."""
    lab = Lab(tmp_path / "data", "EngineSegment")
    filled(lab)
    lab.engine.housekeep()
    (place,) = places(lab)
    assert place.endswith("-1.log")
    data = bytearray(Path(place).read_bytes())
    entry = walk(data).headers[batch]
    data[entry.position : entry.position + 8] = base_offset.to_bytes(8, "big")
    Path(place).write_bytes(data)
    lab.reopen()
    return lab


@pytest.mark.parametrize(("base_offset", "batch"), [(189, 3), (200, 9), (5_000, 4)])
def test_offsets_out_of_order_are_found_where_there_are_gaps(
    tmp_path: Path, base_offset: int, batch: int
) -> None:
    lab = damaged(tmp_path, base_offset, batch=batch)
    with pytest.raises(Corruption, match="offset"):
        lab.engine.read_by_offset("shard_0", 0, max_records=100, max_bytes=2**20)
    kinds = {each.kind for each in lab.store.verifier.verify("shard_0").findings}
    assert {FindingKind.BATCH, FindingKind.SEGMENT_CRC} <= kinds
    lab.close()


def test_a_base_offset_moved_within_a_gap_is_found_by_verify(tmp_path: Path) -> None:
    lab = damaged(tmp_path, 40, batch=0)
    kinds = {each.kind for each in lab.store.verifier.verify("shard_0").findings}
    assert FindingKind.SEGMENT_CRC in kinds
    lab.close()
