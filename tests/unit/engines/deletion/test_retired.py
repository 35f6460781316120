"""Deletions that the log is done with are kept while the table may need them, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import StorageType
from firnmq.disk import Family, run_blocking
from firnmq.engines.deletion.retired import Retired
from firnmq.engines.engine import LogEngine
from firnmq.engines.verify.findings import FindingKind
from firnmq.lake.plans.plan import ShardPlan
from firnmq.record import NewRecord
from tests.conformance.lab import Lab
from tests.unit.lake.lake_lab import LakeTopic

STORAGE_TYPES = [each.value for each in StorageType]
SPILLS = {"memory.overflow": "spill"}


@pytest.fixture(params=STORAGE_TYPES)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


@pytest.fixture
def disk_lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", StorageType.SEGMENT.value)
    yield lab
    lab.close()


def filled(
    lab: Lab, *, has_lake: bool = True, options: dict[str, object] | None = None
) -> LakeTopic:
    """Thirty records in three segments and more, with five keys in turn."""
    if lab.storage_type == StorageType.MEMORY.value:
        options = {**SPILLS, **(options or {})}
    topic = LakeTopic(lab, options)
    for number in range(30):
        topic.shard.append(NewRecord(key=b"k%d" % (number % 5), value=b"v%d" % number))
        if number % 10 == 9:
            topic.shard.roll()
    if has_lake:
        lab.store.shards.move_lake_end(uid(topic), 0)
    return topic


def uid(topic: LakeTopic) -> int:
    return topic.shard.status.spec.uid


def planned(topic: LakeTopic) -> ShardPlan:
    (shard,) = topic.plan().shards
    return shard


def hidden(topic: LakeTopic) -> tuple[tuple[int, ...], tuple[tuple[bytes, int], ...]]:
    shard = planned(topic)
    return shard.holes, shard.dead_keys


def retired(topic: LakeTopic) -> Retired:
    return topic.lab.store.state.retired_deletions.read(uid(topic))


def live(topic: LakeTopic) -> tuple[set[int], dict[bytes, int]]:
    """What reads of the log look at."""
    engine = topic.engine
    assert isinstance(engine, LogEngine)
    deletions = engine.log(topic.shard.name).deletions
    return deletions.offsets, deletions.keys


def entries(lab: Lab) -> list[bytes]:
    rows = lab.store.kv.items(Family.STATE, b"", b"\xff" * 16)
    return [key for key, _ in rows if key[:1] in b"hkn"]


def test_they_leave_the_log_and_stay_in_the_plan(lab: Lab) -> None:
    """1. Records of a shard with a table are deleted by offset and by key. 2. The start moves past
    some. 3. Reads look only at the others; plans name all, also after a restart."""
    topic = filled(lab)
    topic.shard.delete(3, 4, 25)
    topic.shard.delete_key(b"k1")
    before = hidden(topic)
    assert before == ((3, 4, 25), ((b"k1", 31),))
    topic.shard.delete_before(20)
    assert live(topic) == ({25}, {b"k1": 31})
    assert retired(topic).holes == {3, 4}
    assert hidden(topic) == before
    topic.shard.append(NewRecord(key=b"k9", value=b"last"))
    topic.shard.delete_before(31)
    assert live(topic) == (set(), {})
    assert retired(topic)[:2] == ({3, 4, 25}, {b"k1": 31})
    assert hidden(topic) == before
    topic.lab.reopen()
    assert hidden(topic) == before
    assert live(topic) == (set(), {})
    assert lab.store.verifier.verify(topic.shard.name).findings == ()


def test_retention_keeps_them_too(lab: Lab) -> None:
    topic = filled(lab, options={"retention.ms": 1000})
    topic.shard.delete(3)
    topic.shard.delete_key(b"k1")
    lab.clock.advance(2000)
    lab.store.housekeep()
    assert topic.shard.start == 30
    assert hidden(topic) == ((3,), ((b"k1", 31),))


def test_without_a_table_they_are_forgotten(lab: Lab) -> None:
    topic = filled(lab, has_lake=False)
    topic.shard.delete(3, 25)
    topic.shard.delete_key(b"k1")
    topic.shard.delete_before(32)
    topic.shard.delete(5)
    topic.shard.delete_key(b"k2")
    assert hidden(topic) == ((), ())
    assert planned(topic).retired is None
    assert entries(lab) == []


def test_only_what_is_told_is_dropped(lab: Lab) -> None:
    """1. A plan is made. 2. More is retired, an older deletion of a key among it. 3. What the plan
    had is dropped, as far as it is below the table's end, and nothing of what came after."""
    topic = filled(lab)
    topic.shard.delete(3, 15)
    topic.shard.delete_key(b"k1")
    topic.shard.delete_before(10)
    kept = lab.store.state.retired_deletions
    number = kept.read(uid(topic)).number
    assert planned(topic).retired == f":{number}"
    topic.shard.delete_before(20)
    assert kept.drop(uid(topic), number, 3) == 0
    assert kept.drop(uid(topic), number, 30) == 1
    assert hidden(topic) == ((15,), ((b"k1", 31),))
    number = kept.read(uid(topic)).number
    topic.shard.append(NewRecord(key=b"k1", value=b"again"))
    topic.shard.delete_key(b"k1")
    topic.shard.append(NewRecord(key=b"k1", value=b"and again"))
    topic.shard.delete_before(33)
    assert kept.drop(uid(topic), number, 33) == 1
    assert hidden(topic) == ((), ((b"k1", 33),))
    assert kept.drop(uid(topic), kept.read(uid(topic)).number, 32) == 0
    assert kept.drop(uid(topic), kept.read(uid(topic)).number, 33) == 1
    assert hidden(topic) == ((), ())


def test_what_only_the_table_has_can_be_deleted(lab: Lab) -> None:
    topic = filled(lab)
    topic.shard.delete_before(20)
    topic.shard.append(NewRecord(key=b"other", value=b""))
    topic.shard.delete_before(30)
    topic.shard.delete(7, 30, -1, 99)
    topic.shard.delete_key(b"k2")
    assert live(topic) == ({30}, {})
    assert hidden(topic) == ((7, 30), ((b"k2", 32),))
    topic.lab.reopen()
    assert hidden(topic)[0][0] == 7
    assert dict(hidden(topic)[1])[b"k2"] >= 30


def test_a_crash_when_the_start_has_moved(disk_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the shard does what was not done any more."""
    topic = filled(disk_lab)
    topic.shard.delete(3, 25)
    with monkeypatch.context() as patch:
        patch.setattr(disk_lab.store.state.deletions, "trim", lambda *_: None)
        topic.shard.delete_before(20)
    disk_lab.crash()
    assert hidden(topic) == ((3, 25), ())
    assert retired(topic).holes == {3}
    assert live(topic)[0] == {25}


def test_a_crash_loses_none(lab: Lab) -> None:
    if lab.storage_type == StorageType.MEMORY.value:
        pytest.skip("a crash takes the log, and the next test is about that")
    topic = filled(lab)
    topic.shard.delete(3)
    topic.shard.delete_key(b"k1")
    topic.shard.append(NewRecord(key=b"k9", value=b"last"))
    topic.shard.delete_before(30)
    lab.crash()
    assert hidden(topic) == ((3,), ((b"k1", 31),))


def test_a_memory_topic_that_is_gone_has_its_table_left(tmp_path: Path) -> None:
    """1. Of forty records in memory the table has thirty. 2. Some of both are deleted. 3. The node
    begins anew: the table's stay deleted, and the others' offsets are given to new records."""
    lab = Lab(tmp_path / "data", StorageType.MEMORY.value)
    topic = LakeTopic(lab)
    for number in range(40):
        topic.shard.append(NewRecord(key=b"k%d" % (number % 5), value=b"v"))
    lab.store.shards.move_lake_end(uid(topic), 30)
    topic.shard.delete(3, 35)
    topic.shard.delete_key(b"k1")
    lab.crash()
    assert (topic.shard.start, topic.shard.end) == (30, 30)
    assert hidden(topic) == ((3,), ((b"k1", 30),))
    for _ in range(10):
        topic.shard.append(NewRecord(key=b"k1", value=b"new"))
    assert [row["offset"] for row in topic.stored()] == list(range(30, 40))
    assert hidden(topic) == ((3,), ((b"k1", 30),))
    assert lab.store.verifier.verify(topic.shard.name).findings == ()
    lab.close()


def test_what_is_cut_off_is_not_hidden_when_it_is_written_again(lab: Lab) -> None:
    """1. A key that the log has no more is deleted for the table's sake. 2. The log is cut. 3. New
    records of the key are there."""
    topic = filled(lab)
    topic.shard.append(NewRecord(key=b"other", value=b""))
    topic.shard.delete_before(30)
    topic.shard.append(NewRecord(key=b"other", value=b""))
    topic.shard.delete_key(b"k1")
    assert hidden(topic) == ((), ((b"k1", 32),))
    topic.shard.truncate(31)
    assert hidden(topic) == ((), ((b"k1", 31),))
    topic.shard.append(NewRecord(key=b"k1", value=b"new"))
    assert [row["key"] for row in topic.stored()] == [b"other", b"k1"]
    assert hidden(topic) == ((), ((b"k1", 31),))


def test_they_go_with_their_topic(lab: Lab) -> None:
    topic, other = filled(lab), filled(lab)
    for each in (topic, other):
        each.shard.delete(3)
        each.shard.delete_key(b"k1")
        each.shard.delete_before(31)
    assert len(entries(lab)) == 6
    run_blocking(lab.store.manager.delete_topic(topic.topic.name))
    assert len(entries(lab)) == 3
    assert hidden(other) == ((3,), ((b"k1", 31),))


def test_entries_that_cannot_be_are_found(disk_lab: Lab) -> None:
    topic = filled(disk_lab)
    kept = disk_lab.store.state.retired_deletions
    with kept.adding(uid(topic), [500], {b"k": 600}) as batch:
        batch.put(Family.STATE, b"k" + uid(topic).to_bytes(4, "big") + b"bad", b"short")
    found = disk_lab.store.verifier.verify(topic.shard.name).findings
    assert {each.kind for each in found} == {FindingKind.DELETION}
    assert sorted(each.message.split(",")[0] for each in found) == [
        "a deletion kept for the table reaches 501",
        "a deletion kept for the table reaches 600",
        "entry b'k\\x00\\x00\\x00\\x01bad' of a deletion kept for the table cannot be read",
    ]


def test_compaction_leaves_them_alone(lab: Lab) -> None:
    topic = filled(lab, options={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    topic.shard.delete(3)
    topic.shard.delete_key(b"k1")
    lab.clock.advance(10_000_000)
    lab.store.housekeep()
    assert hidden(topic) == ((3,), ((b"k1", 31),))
    topic.shard.delete_before(20)
    assert hidden(topic) == ((3,), ((b"k1", 31),))
