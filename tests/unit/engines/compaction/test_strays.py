"""What a crash or a defect leaves of segments that a shard does not have: opening removes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firnmq.config import TopicConfig
from firnmq.disk import Family
from firnmq.engines.media.memory import engine as memory_module
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.verify.findings import FindingKind
from firnmq.errors import DiskFull, StorageFailed
from firnmq.index.layout import shard_range
from firnmq.record import NewRecord, encode
from tests.conformance.lab import Lab, Shard

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "index.key": True}
SEGMENT_BYTES = 65_536


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", "EngineMemory")
    yield lab
    lab.close()


def engine_of(shard: Shard) -> Any:
    """The engine from inside."""
    return shard.engine


def fill_segment(shard: Shard) -> None:
    """Three records in a segment of their own, one key twice."""
    for number in (0, 1, 0):
        shard.append(NewRecord(key=b"k%d" % number, value=b"v", tags=("t",)))
    shard.roll()


def orphans(shard: Shard) -> list[str]:
    """What the verifier finds, which must be orphans, if anything."""
    found = shard.lab.store.verifier.verify(shard.name).findings
    assert {each.kind for each in found} <= {FindingKind.ORPHAN}
    return [each.message for each in found]


@pytest.mark.parametrize("spills_before", [True, False])
def test_a_spill_that_was_killed_leaves_nothing_whatever_its_number(
    memory: Lab, monkeypatch: pytest.MonkeyPatch, spills_before: bool
) -> None:
    """1. Three segments are there, spilled or not, and dropped. 2. The fourth is written to disk,
    and the process is killed before the metadata knows. 3. The shard begins anew, from seq 0."""
    shard = memory.shard({"memory.overflow": "spill", "index.key": True})
    for _ in range(3):
        fill_segment(shard)
    if spills_before:
        memory.engine.housekeep()
    fill_segment(shard)
    shard.delete_before(9)

    def killed(*_: object) -> None:
        raise DiskFull(shard.name, OSError(28, "No space left on device"))

    monkeypatch.setattr(engine_of(shard)._keeper, "_enter", killed)
    memory.engine.housekeep()
    uid = shard.status.spec.uid
    assert memory.store.kv.items(Family.INDEX, *shard_range(uid), 1), "the entries are written"
    memory.crash()
    assert shard.offsets() == []
    assert [segment.seq for segment in shard.status.segments] == [0]
    assert orphans(shard) == []
    assert not memory.store.kv.items(Family.INDEX, *shard_range(uid), 1)


def test_deleting_a_shard_waits_for_a_spill(memory: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise files and entries could be written after the shard's were removed."""
    shard = memory.shard({"memory.overflow": "spill"})
    fill_segment(shard)
    log: ShardLog = engine_of(shard).log(shard.name)
    held: list[bool] = []
    real = memory_module.spill

    def watched(*args: Any, **options: Any) -> Any:
        held.append(log.upkeep.locked())
        return real(*args, **options)

    monkeypatch.setattr(memory_module, "spill", watched)
    memory.engine.housekeep()
    assert held == [True]


def begin_compaction(shard: Shard) -> None:
    """Has compaction write a part of the first segment's copy, and no more."""
    compactor, kv = engine_of(shard)._upkeep.compactor, shard.lab.store.kv
    entries = shard_range(shard.status.spec.uid)
    before = len(kv.items(Family.INDEX, *entries))
    compactor._begin(shard.name)
    while len(kv.items(Family.INDEX, *entries)) <= before:
        compactor._step(compactor._log)


def test_a_killed_compaction_leaves_nothing_of_a_segment_that_retention_dropped(lab: Lab) -> None:
    shard = lab.shard(COMPACTED)
    for _ in range(3):
        fill_segment(shard)
    begin_compaction(shard)
    shard.delete_before(3)
    assert orphans(shard) != []
    lab.crash()
    assert shard.offsets() == list(range(3, 9))
    assert orphans(shard) == []


def test_a_killed_compaction_leaves_nothing_of_a_segment_in_its_other_slot(lab: Lab) -> None:
    shard = lab.shard({**COMPACTED, "segment.bytes": SEGMENT_BYTES})
    for _ in range(2):
        shard.append(*(NewRecord(key=b"k", value=bytes(30_000)) for _ in range(2)))
        shard.append(NewRecord(key=b"end", value=b"v"))
        shard.roll()
    lab.engine.housekeep()
    assert [segment.slot for segment in shard.status.segments][:1] == [1]
    shard.append(NewRecord(key=b"k", value=b"v"))
    shard.append(NewRecord(key=b"end", value=b"v"))
    shard.roll()
    first_end = shard.status.segments[0].end_offset
    begin_compaction(shard)
    shard.delete_before(first_end)
    assert any("entries of segment 0," in each for each in orphans(shard))
    lab.crash()
    assert shard.start == first_end
    assert orphans(shard) == []


def test_a_killed_compaction_leaves_nothing_in_a_topic_that_compacts_no_more(lab: Lab) -> None:
    shard = lab.shard(COMPACTED)
    for _ in range(2):
        fill_segment(shard)
    begin_compaction(shard)
    options = {**COMPACTED, "cleanup.policy": "delete", "storage.type": lab.storage_type}
    lab.engine.reconfigure(shard.name, TopicConfig.from_options(options))
    lab.crash()
    assert shard.offsets() == list(range(6))
    assert orphans(shard) == []


def test_a_file_beyond_the_active_segment_is_left_alone(lab: Lab) -> None:
    """Nothing of ours can have made it, and it may be all that is left of something."""
    shard = lab.shard()
    fill_segment(shard)
    directory = lab.path / "segments" / shard.name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{1:020d}.log").write_bytes(b"left by a crash")
    (directory / f"{99:020d}.log").write_bytes(b"who knows")
    lab.reopen()
    assert shard.offsets() == [0, 1, 2]
    left = {path.name for path in directory.iterdir()}
    assert f"{99:020d}.log" in left
    assert (f"{1:020d}.log" in left) == (lab.storage_type == "EngineRocksDB")


def test_a_turn_that_ends_in_a_defect_leaves_nothing_of_the_segment_it_began(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A request does not fit the segment and begins the next. 2. A defect shows after all of it
    was written. 3. The roll stays. 4. Whatever is written next is all there is."""
    shard = lab.shard({"segment.bytes": SEGMENT_BYTES, "index.key": True})
    shard.append(NewRecord(key=b"k", value=b"first"))
    backend = engine_of(shard)._keeper._backend
    commit = backend.commit

    def broken(logs: list[ShardLog]) -> None:
        commit(logs)
        if len(logs[0].segments) > 1:
            raise RuntimeError("a defect")

    big = bytes(encode([NewRecord(key=b"big", value=bytes(2 * SEGMENT_BYTES))], now_ms=1))
    with monkeypatch.context() as patch:
        patch.setattr(backend, "commit", broken)
        with pytest.raises(StorageFailed):
            shard.append_raw(big)
    shard.append(NewRecord(key=b"k", value=b"second"))
    assert orphans(shard) == []
    assert [record.value for record in shard.records()] == [b"first", b"second"]
    lab.crash()
    assert [record.value for record in shard.records()] == [b"first", b"second"]
    assert orphans(shard) == []
