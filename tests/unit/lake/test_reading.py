"""A split gives the rows that the engine would, whatever they look like and whatever became of
some of them."""

import gc
import threading
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from firnmq.errors import Corruption, InvalidArgument
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.reading import reader as reading
from firnmq.lake.reading import runs
from firnmq.lake.reading.reader import SegmentUnavailable, read_split
from firnmq.lake.reading.rows import TIMESTAMP_MS_MAX
from firnmq.lake.reading.schema import RAW
from firnmq.record import Compression, NewRecord, encode
from tests.conformance.lab import Lab, numbered
from tests.unit.engines.transactional import TransactionalProducer
from tests.unit.lake.lake_lab import LakeTopic, offsets, read_all, rows

STRANGE = [
    NewRecord(value=b"plain"),
    NewRecord(value=None, key=b"tombstone"),
    NewRecord(value=b"", key=b""),
    NewRecord(value=b"v" * 300, key=None, timestamp_ms=0),
    NewRecord(value=b"\xff\x00", key=b"k", headers=(("a", None), ("a", b""), ("ü", b"\xff"))),
    NewRecord(value=b"tagged", key=b"k", tags=("one", "zwölf"), timestamp_ms=123_456_789),
]


@pytest.mark.parametrize("compression", Compression)
def test_every_kind_of_record_in_every_codec(lab: Lab, compression: Compression) -> None:
    topic = LakeTopic(lab)
    for _ in range(3):
        topic.shard.append_raw(bytes(encode(STRANGE, now_ms=1_000, compression=compression)))
        topic.shard.roll()
    topic.shard.append_raw(bytes(encode(STRANGE, now_ms=1_000, compression=compression)))
    found = topic.read()
    assert found.num_rows == 4 * len(STRANGE)
    assert rows(found) == topic.stored()


def test_an_empty_topic_has_no_splits(lab: Lab) -> None:
    topic = LakeTopic(lab, shards=2)
    assert split_plan(topic.plan()) == []
    assert topic.read().schema.equals(RAW)


def test_columns_are_narrowed_in_the_order_they_are_named(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*STRANGE)
    found = topic.read(columns=["tags", "offset"])
    assert found.schema.names == ["tags", "offset"]
    assert rows(found) == [
        {name: row[name] for name in found.schema.names} for row in topic.stored()
    ]
    for names in (["timestamp"], ["shard"], ["headers", "key", "value"], []):
        assert topic.read(columns=names).schema.names == names
    with pytest.raises(InvalidArgument, match="nonsense"):
        topic.read(columns=["nonsense"])


def test_without_columns_rows_are_still_counted(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*STRANGE)
    (split,) = split_plan(topic.plan())
    assert sum(batch.num_rows for batch in read_split(split, columns=["shard"])) == len(STRANGE)


def test_timestamps_beyond_microseconds_are_the_last_there_is(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(
        NewRecord(value=b"a", timestamp_ms=2**62 - 1), NewRecord(value=b"b", timestamp_ms=5)
    )
    times = topic.read().column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [TIMESTAMP_MS_MAX * 1000, 5000]


# What is not to be seen ---------------------------------------------------------------------------


def test_aborted_transactions_and_markers_are_passed_over(lab: Lab) -> None:
    topic = LakeTopic(lab)
    shard = topic.shard
    good, bad = TransactionalProducer(1), TransactionalProducer(2)
    for round_ in range(4):
        bad.write(shard, b"bad 1")
        good.write(shard, b"good", b"good")
        shard.append(NewRecord(value=b"without"))
        bad.write(shard, b"bad 2")
        good.commit(shard)
        if round_ % 2:
            shard.roll()
        bad.abort(shard)
        bad.write(shard, b"good after all")
        bad.commit(shard)
    assert rows(topic.read()) == topic.stored()
    assert set(topic.read().column("value").to_pylist()) == {b"good", b"without", b"good after all"}
    for split in split_plan(topic.plan(), target_bytes=1):
        assert rows(read_all([split])) == [
            row for row in topic.stored() if split.start_offset <= row["offset"] < split.end_offset
        ]


def test_nothing_is_read_beyond_an_open_transaction(lab: Lab) -> None:
    topic = LakeTopic(lab)
    shard = topic.shard
    shard.append(*numbered(5))
    producer = TransactionalProducer(1)
    producer.write(shard, b"undecided")
    shard.append(*numbered(3))
    shard.roll()
    shard.append(*numbered(2))
    plan = topic.plan()
    assert plan.shards[0].end_offset == 5
    assert offsets(topic.read()) == [0, 1, 2, 3, 4]
    producer.commit(shard)
    assert rows(topic.read()) == topic.stored()


def test_deleted_records_are_gone(lab: Lab) -> None:
    topic = LakeTopic(lab)
    shard = topic.shard
    for _ in range(3):
        shard.append(*(NewRecord(value=b"%d" % n, key=b"k%d" % (n % 5)) for n in range(20)))
        shard.roll()
    shard.delete_key(b"k2")
    shard.append(NewRecord(value=b"again", key=b"k2"))
    shard.delete(4, 25, 26)
    shard.delete_before(3)
    found = topic.read()
    assert rows(found) == topic.stored()
    assert offsets(found)[:3] == [3, 5, 6]
    assert found.column("key").to_pylist().count(b"k2") == 1


def test_expired_records_are_gone(lab: Lab) -> None:
    now_ms = time.time_ns() // 1_000_000
    lab.clock.advance(now_ms - lab.clock.now_ms())
    topic = LakeTopic(lab, {"ttl.ms": 3_600_000})
    topic.shard.append(
        NewRecord(value=b"old", timestamp_ms=now_ms - 3_700_000),
        NewRecord(value=b"over", timestamp_ms=now_ms, expire_at_ms=now_ms - 1),
        NewRecord(value=b"young", timestamp_ms=now_ms),
        NewRecord(value=b"later", timestamp_ms=now_ms, expire_at_ms=now_ms + 3_000_000),
    )
    assert rows(topic.read()) == topic.stored()
    assert topic.read().column("value").to_pylist() == [b"young", b"later"]


def test_compacted_segments_have_gaps(lab: Lab) -> None:
    topic = LakeTopic(lab, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    shard = topic.shard
    for n in range(30):
        shard.append(NewRecord(value=b"%d" % n, key=b"k%d" % (n % 4)))
        if n % 5 == 4:
            shard.roll()
    before = topic.plan()
    lab.store.housekeep()
    assert any(each.has_gaps for each in topic.plan().shards[0].segments)
    assert rows(topic.read()) == topic.stored()
    assert len(topic.stored()) == 4
    # What the first plan names was replaced, and no other place has it.
    with pytest.raises(SegmentUnavailable, match="make a new plan"):
        topic.read(plan=before)


# How it is read -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [64, 100, 1000, 5000])
def test_batches_that_lie_across_chunks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    topic = LakeTopic(lab)
    for size in (1, 50, 3000, 10, 700):
        topic.shard.append(*numbered(3, size=size))
        topic.shard.append(NewRecord(value=b"x" * size))
    topic.shard.roll()
    topic.shard.append(*numbered(5, size=200))
    monkeypatch.setattr(runs, "CHUNK_BYTES", chunk_bytes)
    assert rows(topic.read()) == topic.stored()


def test_arrow_batches_are_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*numbered(500, size=100))
    for _ in range(20):
        topic.shard.append(*numbered(10, size=100))
    monkeypatch.setattr(reading, "BATCH_ROWS", 64)
    (split,) = split_plan(topic.plan())
    sizes = [batch.num_rows for batch in read_split(split)]
    assert max(sizes) <= 64
    assert sum(sizes) == 700
    assert rows(topic.read()) == topic.stored()
    monkeypatch.setattr(reading, "BATCH_BYTES", 1000)
    monkeypatch.setattr(reading, "_DECODED_BYTES_MAX", 2000)
    sizes = [batch.num_rows for batch in read_split(split)]
    assert max(sizes[1:]) <= 20
    assert rows(topic.read()) == topic.stored()


def test_a_reader_that_leaves_early_lets_go_of_everything(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = LakeTopic(lab)
    for _ in range(50):
        topic.shard.append(*numbered(10, size=100))
    monkeypatch.setattr(runs, "CHUNK_BYTES", 1000)
    (split,) = split_plan(topic.plan())
    before = set(threading.enumerate())
    reader = read_split(split)
    next(reader)
    assert not gc.isenabled()
    reader.close()
    assert gc.isenabled()
    assert set(threading.enumerate()) == before


# Files that are not what they were ----------------------------------------------------------------


def test_a_flipped_bit_is_found(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*numbered(100, size=50))
    topic.shard.roll()
    (segment,) = topic.plan().shards[0].segments
    path = Path(segment.path or "")
    content = bytearray(path.read_bytes())
    for position in (3, 8, 25, len(content) // 2, len(content) - 1):
        content[position] ^= 4
        path.write_bytes(content)
        with pytest.raises(Corruption) as caught:
            topic.read()
        assert str(path) in str(caught.value)
        content[position] ^= 4
    path.write_bytes(content)
    assert len(topic.read()) == 100


def test_a_file_that_is_gone_shorter_or_another_is_no_place(lab: Lab, tmp_path: Path) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*numbered(100, size=50))
    topic.shard.roll()
    plan = topic.plan()
    (segment,) = plan.shards[0].segments
    path = Path(segment.path or "")
    content = path.read_bytes()
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(SegmentUnavailable, match="No such file"):
        topic.read(plan=plan)
    path.write_bytes(content)
    with pytest.raises(SegmentUnavailable, match="another file"):
        topic.read(plan=plan)
    with path.open("r+b") as file:
        file.truncate(len(content) - 1)
    with pytest.raises(SegmentUnavailable, match="bytes"):
        topic.read(plan=topic.plan())
    path.unlink()
    (tmp_path / "elsewhere").rename(path)
    assert len(topic.read(plan=plan)) == 100


def test_paths_of_another_machine_mean_nothing(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*numbered(10))
    plan = msgspec.structs.replace(topic.plan(), machine="another")
    with pytest.raises(SegmentUnavailable, match="no place"):
        topic.read(plan=plan)


def test_appends_after_the_plan_are_not_seen(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*numbered(10))
    plan = topic.plan()
    topic.shard.append(*numbered(10))
    topic.shard.roll()
    topic.shard.append(*numbered(10))
    assert offsets(topic.read(plan=plan)) == list(range(10))


def test_nothing_is_wanted_by_no_keys(lab: Lab) -> None:
    topic = LakeTopic(lab)
    topic.shard.append(*numbered(10))
    for wanted in (Wanted(keys=()), Wanted(tags=())):
        assert len(topic.read(wanted, plan=topic.plan())) == 0
