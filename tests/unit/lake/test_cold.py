"""Segments in the object store are read from there, with a node that plans or without one."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from firnmq.config import StorageType
from firnmq.errors import Corruption, InvalidArgument, StoreUnavailable, TopicNotFound
from firnmq.lake.plans import planning
from firnmq.lake.plans.places import make_plan
from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.reading import reader as reading
from firnmq.lake.reading import runs
from firnmq.lake.reading.marks import LogReplaced
from firnmq.lake.reading.reader import SegmentUnavailable
from firnmq.lake.spark.columns import RECORD
from firnmq.lake.spark.options import read_options
from firnmq.lake.spark.streaming import FirnStreamReader
from firnmq.record import NewRecord
from tests.conformance.lab import numbered
from tests.conformance.tier_lab import TierLab
from tests.unit.engines.transactional import TransactionalProducer
from tests.unit.lake.lake_lab import LakeTopic, read_all, rows

TIERED = {"tiering": "on", "local.retention.ms": 0, "segment.bytes": 4096}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[TierLab]:
    lab = TierLab(tmp_path / "data", StorageType.SEGMENT.value)
    yield lab
    lab.close()
    reading._store.cache_clear()


def filled(lab: TierLab, **options: object) -> LakeTopic:
    """Twelve segments, ten of them only in the store; some records deleted, some aborted."""
    topic = LakeTopic(lab, {**TIERED, **options})
    shard = topic.shard
    producer = TransactionalProducer(9)
    for segment in range(12):
        for n in range(5):
            at = segment * 20 + n
            shard.append(
                *(
                    NewRecord(
                        value=b"%d-%d" % (at, i),
                        key=b"only-%d" % segment if n == 2 else b"k%d" % i,
                        tags=(f"tag-{segment}",) if n == 1 and i == 0 else (),
                        timestamp_ms=1_000_000 + at,
                    )
                    for i in range(4)
                )
            )
        producer.write(shard, b"to be aborted")
        producer.abort(shard)
        if segment == 9:
            lab.clock.advance(10_000)
            shard.roll()
            for _ in range(8):
                lab.move()
        shard.roll()
    shard.delete_key(b"only-4")
    shard.delete(25, 26)
    shard.append(*numbered(3))
    return topic


def test_cold_and_local_segments_together(lab: TierLab) -> None:
    topic = filled(lab)
    segments = topic.plan(store=lab.objects).shards[0].segments
    assert [each.path is None for each in segments].count(True) >= 8
    assert segments[-1].path is not None
    assert rows(topic.read(store=lab.objects)) == topic.stored()


def test_indexes_of_cold_segments_are_asked(lab: TierLab) -> None:
    topic = filled(lab)
    for wanted in (Wanted(keys=(b"only-3",)), Wanted(tags=("tag-3",))):
        plan = topic.plan(wanted, lab.objects)
        assert len(plan.shards[0].segments) == 1
        expected = [
            row
            for row in topic.stored()
            if row["key"] == b"only-3" or (wanted.tags and row["tags"] == ["tag-3"])
        ]
        if wanted.tags:
            expected = [row for row in expected if row["tags"] == ["tag-3"]]
        assert rows(topic.read(wanted, plan=plan)) == expected
        assert expected


def test_a_store_that_cannot_be_asked_prunes_nothing(lab: TierLab) -> None:
    topic = filled(lab)
    lab.reopen()
    for path in lab.path.with_name("cache").rglob("*"):
        if path.is_file():
            path.unlink()
    lab.faults.calls_left = 0
    plan = topic.plan(Wanted(keys=(b"only-3",)), lab.objects)
    lab.faults.calls_left = None
    assert len(plan.shards[0].segments) > 1
    assert [row["key"] for row in rows(topic.read(Wanted(keys=(b"only-3",)), plan=plan))] == [
        b"only-3"
    ] * 4


@pytest.mark.parametrize("chunk_bytes", [70, 999, 10**6])
def test_objects_in_chunks(lab: TierLab, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    topic = filled(lab)
    monkeypatch.setattr(runs, "CHUNK_BYTES", chunk_bytes)
    assert rows(topic.read(store=lab.objects)) == topic.stored()


def test_large_cold_segments_are_divided(lab: TierLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PART_BYTES", 5_000)
    topic = LakeTopic(lab, {**TIERED, "segment.bytes": 10**6})
    for _ in range(50):
        topic.shard.append(*numbered(100, size=20))
    topic.shard.roll()
    lab.clock.advance(10)
    lab.move()
    lab.move()
    plan = topic.plan(store=lab.objects)
    (segment,) = plan.shards[0].segments
    assert segment.path is None
    assert segment.points
    splits = split_plan(plan, target_bytes=40_000)
    assert len(splits) >= 3
    assert rows(read_all(splits)) == topic.stored()


def options_of(lab: TierLab, topic: LakeTopic) -> dict[str, str]:
    return {"store": f"file://{lab.objects}", "topic": topic.topic.name}


def bucket(lab: TierLab, topic: LakeTopic, wanted: Wanted | None = None) -> Plan:
    plan = make_plan(options_of(lab, topic), wanted)
    return msgspec.json.decode(msgspec.json.encode(plan), type=Plan)


def test_a_bucket_without_a_node(lab: TierLab) -> None:
    topic = filled(lab)
    others = filled(lab)
    assert others.topic.topic_id != topic.topic.topic_id
    lab.move()
    stored = topic.stored()
    lab.close()
    plan = bucket(lab, topic)
    assert (plan.topic_id, plan.cluster) == (topic.topic.topic_id, "lab")
    assert plan.shards[0].leader is None
    end = plan.shards[0].end_offset
    expected = [row for row in stored if row["offset"] < end]
    assert len(expected) >= 190
    found = rows(topic.read(plan=plan))
    assert found == expected
    wanted = Wanted(keys=(b"only-3",))
    narrow = bucket(lab, topic, wanted)
    assert len(narrow.shards[0].segments) == 1
    assert rows(topic.read(wanted, plan=narrow)) == [
        row for row in expected if row["key"] == b"only-3"
    ]


def test_a_stream_of_a_bucket_knows_the_log_again(lab: TierLab) -> None:
    """1. Without a node the last record is looked for in the store. 2. It is the one that the log
    has. 3. A stream that has noted another one there does not go on."""
    topic = filled(lab)
    stored = {row["offset"] for row in topic.stored()}
    lab.close()
    options = read_options(options_of(lab, topic), is_stream=True)
    end = FirnStreamReader(options, RECORD).latestOffset()
    offset, _, digest = end["last"]["0"].partition(":")
    assert int(offset) == max(each for each in stored if each < end["shards"]["0"])
    for noted, is_known in ((digest, True), ("0" * 16, False)):
        reader = FirnStreamReader(options, RECORD)
        begin = {
            "last": {"0": f"{offset}:{noted}"},
            "shards": {"0": end["shards"]["0"] - 1},
            "topic": topic.topic.topic_id,
        }
        reader.partitions(begin, begin)
        if is_known:
            assert reader.latestOffset()["shards"] == end["shards"]
        else:
            with pytest.raises(LogReplaced, match="new checkpoint"):
                reader.latestOffset()


def test_a_bucket_without_the_topic(lab: TierLab) -> None:
    topic = filled(lab)
    with pytest.raises(TopicNotFound, match="nothing"):
        make_plan({**options_of(lab, topic), "topic": "nothing"})
    with pytest.raises(InvalidArgument, match="no source"):
        make_plan({"topic": "x"})
    nowhere = lab.objects.with_name("nowhere")
    with pytest.raises(StoreUnavailable, match="no such directory"):
        make_plan({**options_of(lab, topic), "store": f"file://{nowhere}"})
    assert not nowhere.exists()
    with pytest.raises(InvalidArgument, match="cluster"):
        make_plan({**options_of(lab, topic), "cluster": "another"})


def test_objects_that_are_gone_or_damaged(lab: TierLab) -> None:
    topic = filled(lab)
    plan = topic.plan(store=lab.objects)
    cold = next(each for each in plan.shards[0].segments if each.path is None)
    assert cold.object is not None
    path = lab.objects / f"{cold.object.key}.seg"
    content = bytearray(path.read_bytes())
    content[80] ^= 1  # In the first batch's records.
    path.chmod(0o640)
    path.write_bytes(content)
    with pytest.raises(Corruption, match=r"\.seg"):
        topic.read(plan=plan)
    path.unlink()
    with pytest.raises(SegmentUnavailable, match="make a new plan"):
        topic.read(plan=plan)
