"""Compaction keeps the newest record of each key, at its offset, and nothing that matters goes."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import StoreConfig, TopicConfig
from firnmq.engines import AdapterOffsetStrategy
from firnmq.engines.catalog.segments import Medium
from firnmq.errors import InvalidRecord, KeyNotFound, KeyRequired
from firnmq.record import Compression, NewRecord, decode, encode, parse_header, walk
from tests.conformance.lab import EVERYTHING, SHARED_FILE, Lab, Shard
from tests.conformance.stored import content as content_of
from tests.conformance.stored import stored
from tests.unit.engines.transactional import TransactionalProducer, aborted, committed

DAY_MS = 24 * 3600 * 1000
ALWAYS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def compacted(lab: Lab, **options: object) -> Shard:
    """A shard that is compacted whenever something sealed is new."""
    return lab.shard({**ALWAYS, **{name.replace("_", "."): at for name, at in options.items()}})


def write(shard: Shard, *pairs: tuple[str, str | None], tags: tuple[str, ...] = ()) -> int:
    """Appends keys with values, as one batch; returns the first offset."""
    records = [
        NewRecord(
            key=key.encode(),
            value=None if value is None else value.encode(),
            tags=tags,
            timestamp_ms=shard.lab.clock.now_ms() + number,
        )
        for number, (key, value) in enumerate(pairs)
    ]
    return shard.append(*records).base_offset


def compact(shard: Shard, *, roll: bool = True) -> None:
    if roll:
        shard.roll()
    shard.engine.housekeep()
    found = shard.lab.store.verifier.verify(shard.name).findings
    assert found == (), found


def content(shard: Shard) -> list[tuple[int, str, str | None]]:
    """Offset, key and value of every record; the same however it is read."""
    records = shard.records()
    offsets = [each.offset for each in records]
    assert [record.offset for record in shard.raw_records()] == offsets
    assert _offsets_for_a_client(shard) == offsets
    return [
        (
            record.offset,
            (record.key or b"").decode(),
            None if record.value is None else record.value.decode(),
        )
        for record in records
    ]


def _offsets_for_a_client(shard: Shard) -> list[int]:
    """Of the records that one gets who goes on from page to page, as a broker reads them."""
    at, found = shard.start, []
    while at < shard.end:
        page = stored(shard, at, max_bytes=300)
        assert page.next_offset > at
        data = content_of(page)
        found += [each.offset for each in decode([data]).records() if each.offset >= at]
        at = page.next_offset
    return found


def batches(shard: Shard, offset: int | None = None) -> list[bytes]:
    """Stored batches one by one."""
    start = shard.start if offset is None else offset
    page = shard.engine.read_batches(shard.name, start, max_bytes=EVERYTHING)
    found = []
    for piece in page.batches:
        for entry in walk(piece).headers:
            found.append(bytes(piece[entry.position : entry.position + entry.size]))
    return found


# What stays --------------------------------------------------------------------------------------


def test_the_newest_record_of_each_key_stays_at_its_offset(lab: Lab) -> None:
    shard = compacted(lab)
    write(shard, ("a", "1"), ("b", "1"), ("a", "2"))
    write(shard, ("c", "1"), ("b", "2"))
    write(shard, ("d", "1"))
    compact(shard)
    assert content(shard) == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2"), (5, "d", "1")]
    assert (shard.start, shard.end) == (0, 6)
    assert write(shard, ("a", "3")) == 6
    assert content(shard)[-1] == (6, "a", "3")


def test_records_go_also_from_segments_compacted_before(lab: Lab) -> None:
    shard = compacted(lab)
    for number in range(5):
        write(shard, ("a", str(number)), (f"k{number}", "x"))
        compact(shard)
    assert content(shard) == [(2 * n + 1, f"k{n}", "x") for n in range(4)] + [
        (8, "a", "4"),
        (9, "k4", "x"),
    ]


def test_the_active_segment_is_never_compacted(lab: Lab) -> None:
    shard = compacted(lab)
    write(shard, ("a", "1"), ("a", "2"))
    compact(shard, roll=False)
    assert [offset for offset, _, _ in content(shard)] == [0, 1]
    shard.roll()
    write(shard, ("a", "3"), ("a", "4"))
    compact(shard, roll=False)
    assert content(shard) == [(1, "a", "2"), (2, "a", "3"), (3, "a", "4")]


def test_a_topic_that_only_deletes_is_not_compacted(lab: Lab) -> None:
    shard = lab.shard({"min.cleanable.dirty.ratio": 0})
    write(shard, ("a", "1"), ("a", "2"))
    compact(shard)
    assert [offset for offset, _, _ in content(shard)] == [0, 1]


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_stays_in_part_keeps_its_header(lab: Lab, codec: Compression) -> None:
    shard = compacted(lab)
    records = [
        NewRecord(
            key=key, value=b"v" * 50, headers=(("h", key), ("n", None)), timestamp_ms=1000 + at
        )
        for at, key in enumerate([b"x", b"a", b"y", b"b", b"z"])
    ]
    made = encode(
        records,
        now_ms=0,
        compression=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
    )
    shard.append_raw(bytes(made))
    write(shard, ("x", "new"), ("y", "new"), ("z", "new"))
    before = batches(shard)
    compact(shard)
    after = batches(shard)
    assert after[1] == before[1], "a batch of which all stays is the same byte for byte"
    old, new = parse_header(before[0]), parse_header(after[0])
    assert new._replace(batch_length=0, crc=0) == old._replace(
        batch_length=0, crc=0, record_count=2, max_timestamp=1003
    )
    kept = [record for record in shard.records() if record.key in (b"a", b"b")]
    assert [(r.offset, r.timestamp_ms, r.headers) for r in kept] == [
        (1, 1001, (("h", b"a"), ("n", None))),
        (3, 1003, (("h", b"b"), ("n", None))),
    ]


def test_a_producers_last_batch_stays_even_if_it_is_empty(lab: Lab) -> None:
    shard = compacted(lab)
    for sequence in range(2):
        batch = encode(
            [NewRecord(key=b"a", value=b"1")],
            now_ms=5,
            producer_id=9,
            producer_epoch=0,
            base_sequence=sequence,
        )
        shard.append_raw(bytes(batch))
    write(shard, ("a", "2"))
    compact(shard)
    (empty, last) = map(parse_header, batches(shard))
    assert (empty.base_offset, empty.record_count, empty.base_sequence) == (1, 0, 1)
    assert (empty.producer_id, empty.producer_epoch) == (9, 0)
    assert last.base_offset == 2
    assert content(shard) == [(2, "a", "2")]


def test_long_keys_are_told_apart(lab: Lab) -> None:
    shard = compacted(lab)
    keys = ["k" * 200 + str(number) for number in range(4)] + ["k" * 15, "k" * 16]
    for value in ("1", "2"):
        write(shard, *((key, value) for key in keys))
    compact(shard)
    assert content(shard) == [(6 + at, key, "2") for at, key in enumerate(keys)]


def test_more_keys_than_fit_in_memory_take_several_stretches(
    storage_type: str, tmp_path: Path
) -> None:
    lab = Lab(tmp_path / "data", storage_type, config=StoreConfig(compaction_bytes=192 * 3))
    shard = compacted(lab, segment_bytes=1024)
    for number in range(60):
        write(shard, (f"k{number % 13}", str(number)), (f"m{number % 4}", "x" * 40))
    compact(shard)
    newest = {}
    for offset in range(120):
        number = offset // 2
        newest[f"m{number % 4}" if offset % 2 else f"k{number % 13}"] = offset
    assert [offset for offset, _, _ in content(shard)] == sorted(newest.values())
    lab.close()


# What may not come in ----------------------------------------------------------------------------


def test_records_without_a_key_are_refused(lab: Lab) -> None:
    shard = compacted(lab)
    with pytest.raises(KeyRequired, match=r"cleanup\.policy"):
        shard.append(NewRecord(value=b"v", key=b"k"), NewRecord(value=b"v"))
    with pytest.raises(KeyRequired):
        shard.append(*[NewRecord(value=b"v")] * 100)
    assert shard.end == 0
    shard.append(NewRecord(value=b"v", key=b""))


@pytest.mark.parametrize("options", [{}, {"index.key": False, "index.tag": False}])
@pytest.mark.parametrize("codec", list(Compression))
def test_batches_with_a_record_without_a_key_are_refused(
    lab: Lab, codec: Compression, options: dict[str, object]
) -> None:
    shard = lab.shard({**ALWAYS, **options})
    records = [NewRecord(value=b"v", key=b"k"), NewRecord(value=b"v", key=None)]
    with pytest.raises(InvalidRecord):
        shard.append_raw(bytes(encode(records, now_ms=1, compression=codec)))
    shard.append_raw(bytes(encode(records[:1], now_ms=1, compression=codec)))
    assert shard.offsets() == [0]


def test_keyless_records_from_before_go(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"1", b"2")
    write(shard, ("a", "1"))
    config = dataclasses.replace(
        shard.status.spec.config,
        cleanup_policy=TopicConfig.from_options(ALWAYS).cleanup_policy,
        min_cleanable_dirty_ratio=0,
    )
    shard.engine.reconfigure(shard.name, config)
    compact(shard)
    assert content(shard) == [(2, "a", "1")]


# Tombstones --------------------------------------------------------------------------------------


def test_readers_get_past_a_segment_of_which_nothing_is_left(lab: Lab) -> None:
    shard = compacted(lab, delete_retention_ms=1_000)
    write(shard, ("a", "1"), ("b", "1"))
    write(shard, ("a", None), ("b", None))
    shard.roll()
    write(shard, ("c", "1"))
    for _ in range(4):
        lab.clock.advance(2_000)
        compact(shard, roll=False)
    assert shard.status.segments[0].length == 0
    assert content(shard) == [(4, "c", "1")]
    for offset in range(5):
        assert [each.offset for each in shard.read(offset)] == [4]
        assert stored(shard, offset).next_offset == 5


def test_tombstones_stay_for_a_while_and_then_go(lab: Lab) -> None:
    shard = compacted(lab, delete_retention_ms=1000)
    write(shard, ("a", "1"), ("b", "1"))
    write(shard, ("a", None))
    compact(shard)
    assert content(shard) == [(1, "b", "1"), (2, "a", None)]
    lab.clock.advance(999)
    compact(shard)
    assert content(shard) == [(1, "b", "1"), (2, "a", None)]
    lab.clock.advance(1)
    compact(shard)
    assert content(shard) == [(1, "b", "1")]
    assert shard.end == 3
    with pytest.raises(KeyNotFound):
        shard.by_key(b"a")


def test_new_segments_do_not_prolong_the_life_of_tombstones(lab: Lab) -> None:
    shard = compacted(lab, delete_retention_ms=1000)
    write(shard, ("a", None), ("z", "0"))
    compact(shard)
    for number in range(4):
        lab.clock.advance(250)
        write(shard, (f"k{number}", "1"))
        compact(shard)
    assert "a" not in [key for _, key, _ in content(shard)]


def test_a_tombstone_does_not_bring_back_what_it_deleted(lab: Lab) -> None:
    shard = compacted(lab, delete_retention_ms=0, segment_bytes=1024)
    for number in range(40):
        write(shard, ("a", f"{number}" * 20))
    write(shard, ("a", None))
    shard.roll()
    for _ in range(3):
        compact(shard, roll=False)
        assert [value for _, _, value in content(shard)] in ([None], [])
    assert content(shard) == []
    assert shard.read(0).next_offset == shard.end


# When --------------------------------------------------------------------------------------------


def test_little_that_is_new_waits(lab: Lab) -> None:
    shard = compacted(lab, min_cleanable_dirty_ratio=0.5)
    write(shard, *((f"k{number}", "v" * 50) for number in range(10)))
    compact(shard)
    write(shard, ("k0", "new"))
    compact(shard)
    assert len(content(shard)) == 11
    write(shard, *((f"k{number}", "w" * 50) for number in range(10)))
    compact(shard)
    assert len(content(shard)) == 10


def test_young_records_wait(lab: Lab) -> None:
    shard = compacted(lab, min_compaction_lag_ms=5000)
    write(shard, ("a", "1"))
    write(shard, ("a", "2"))
    shard.roll()
    lab.clock.advance(4000)
    write(shard, ("a", "3"))
    compact(shard)
    assert len(content(shard)) == 3
    lab.clock.advance(1000)
    compact(shard)
    assert content(shard) == [(1, "a", "2"), (2, "a", "3")]


def test_no_record_waits_for_ever(lab: Lab) -> None:
    shard = compacted(lab, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=9000)
    write(shard, *((f"k{number}", "v" * 50) for number in range(10)))
    compact(shard)
    write(shard, ("k0", "new"))
    compact(shard, roll=False)
    assert len(content(shard)) == 11
    lab.clock.advance(9000)
    compact(shard, roll=False)
    assert len(content(shard)) == 10
    assert len(shard.segment_bases) == 2, "sealed by its age and merged"


def test_small_neighbours_become_one_segment(lab: Lab) -> None:
    shard = compacted(lab, segment_bytes=2048)
    for number in range(60):
        write(shard, (f"k{number % 3}", "x" * 200))
    before = len(shard.segment_bases)
    compact(shard)
    assert before > 5
    sizes = [segment.length for segment in shard.status.segments]
    assert len(sizes) == 2
    assert sizes[0] <= 2048 * 11 // 10
    assert shard.start == 0


# Deletions, expiry, retention --------------------------------------------------------------------


def test_a_deleted_record_does_not_count_as_the_newest(lab: Lab) -> None:
    shard = compacted(lab)
    write(shard, ("a", "1"), ("b", "1"), ("a", "2"), ("b", "2"), ("c", "1"))
    shard.delete(2)
    shard.delete_key(b"c")
    compact(shard)
    assert content(shard) == [(0, "a", "1"), (3, "b", "2")]
    assert shard.by_key(b"a").offset == 0


def test_an_expired_record_does_not_count_as_the_newest(lab: Lab) -> None:
    shard = compacted(lab)
    now = lab.clock.now_ms()
    shard.append(
        NewRecord(key=b"a", value=b"old"),
        NewRecord(key=b"a", value=b"brief", expire_at_ms=now + 10),
        NewRecord(key=b"b", value=b"long", expire_at_ms=now + DAY_MS),
    )
    lab.clock.advance(10)
    compact(shard)
    assert content(shard) == [(0, "a", "old"), (2, "b", "long")]
    lab.clock.advance(DAY_MS)
    assert content(shard) == [(0, "a", "old")]


def test_only_the_policy_that_deletes_drops_by_retention(lab: Lab) -> None:
    for policy, is_dropped in (("compact", False), ("compact,delete", True)):
        shard = compacted(lab, cleanup_policy=policy, retention_ms=1000)
        write(shard, ("a", "1"), ("b", "1"), ("a", "2"))
        compact(shard)
        assert content(shard) == [(1, "b", "1"), (2, "a", "2")]
        lab.clock.advance(1100)
        write(shard, ("c", "1"))
        compact(shard, roll=False)
        assert [key for _, key, _ in content(shard)] == (["c"] if is_dropped else ["b", "a", "c"])
        assert shard.start == (3 if is_dropped else 0)


def test_what_is_below_the_start_goes(lab: Lab) -> None:
    shard = compacted(lab)
    write(shard, ("a", "1"), ("b", "1"), ("c", "1"))
    shard.delete_before(1)
    compact(shard)
    assert content(shard) == [(1, "b", "1"), (2, "c", "1")]
    assert parse_header(batches(shard)[0]).record_count == 2


# Transactions ------------------------------------------------------------------------------------


def test_what_was_aborted_is_removed_and_never_the_newest(lab: Lab) -> None:
    shard = compacted(lab)
    producer = TransactionalProducer(5)
    write(shard, ("a", "1"), ("b", "1"))
    producer.write(shard, b"never", key=b"a")
    producer.abort(shard)
    producer.write(shard, b"2", key=b"b")
    producer.commit(shard)
    compact(shard)
    assert [(r.offset, r.value) for r in shard.records()] == [(0, b"1"), (4, b"2")]
    page = committed(shard)
    kinds = [
        (header.base_offset, header.is_control, header.is_transactional, header.record_count)
        for header in map(parse_header, batches(shard))
    ]
    # The abort's marker is there for those who are told of the transaction; the batch of 4 stays.
    assert kinds == [(0, False, False, 1), (3, True, True, 1), (4, False, True, 1)]
    assert aborted(page) == [(5, 2)]


def test_nothing_of_an_open_transaction_is_touched(lab: Lab) -> None:
    shard = compacted(lab)
    producer = TransactionalProducer(6)
    write(shard, ("a", "1"), ("a", "2"))
    shard.roll()
    write(shard, ("a", "3"))
    producer.write(shard, b"4", key=b"a")
    shard.roll()
    write(shard, ("a", "5"))
    compact(shard)
    offsets = [record.offset for record in shard.raw_records()]
    assert offsets == [1, 2, 3, 4], "only what is sealed below the stable offset is compacted"
    producer.commit(shard)
    write(shard, ("b", "1"))
    compact(shard)
    assert content(shard) == [(4, "a", "5"), (6, "b", "1")]


def test_a_reader_gets_past_a_marker_that_is_gone(lab: Lab) -> None:
    shard = compacted(lab)
    producer = TransactionalProducer(8)
    producer.write(shard, b"1", key=b"a")
    producer.commit(shard)
    compact(shard)
    page = committed(shard, 1)
    (header,) = map(parse_header, page.batches)
    assert (header.base_offset, header.last_offset, header.record_count) == (1, 1, 0)
    assert page.next_offset == shard.end == 2


# Reading what is left ----------------------------------------------------------------------------


@pytest.fixture
def sparse(lab: Lab) -> Shard:
    """Three segments' worth of records of which every tenth is left, tagged and in time order."""
    shard = compacted(lab, segment_bytes=4096)
    start_ms = lab.clock.now_ms()
    for number in range(100):
        shard.append(
            NewRecord(
                key=b"always" if number % 10 else b"k%d" % number,
                value=b"v" * 100,
                tags=("even" if number % 20 == 0 else "odd",),
                timestamp_ms=start_ms + number,
            )
        )
    compact(shard)
    return shard


LEFT = [*range(0, 100, 10), 99]


def test_reading_from_within_a_gap_gives_the_next_record(sparse: Shard) -> None:
    assert sparse.offsets() == LEFT
    for offset in range(101):
        wanted = [each for each in LEFT if each >= offset]
        assert [r.offset for r in sparse.read(offset)] == wanted
        assert [r.offset for r in sparse.raw_records(offset) if r.offset >= offset] == wanted
        one = sparse.read(offset, max_records=1)
        assert [r.offset for r in one] == wanted[:1]
        assert one.next_offset == (wanted[0] + 1 if wanted else 100)


def test_reading_page_by_page_comes_to_the_end(sparse: Shard) -> None:
    seen, at = [], 0
    while at < sparse.end:
        page = sparse.read(at, max_records=3)
        seen += [record.offset for record in page]
        assert page.next_offset > at
        at = page.next_offset
    assert seen == LEFT
    seen, at = [], 0
    while at < sparse.end:
        page = sparse.engine.read_batches(sparse.name, at, max_bytes=1)
        seen += [record.offset for record in sparse.raw_records(at, 1) if record.offset >= at]
        assert page.next_offset > at
        at = page.next_offset
    assert seen == LEFT


def test_indexes_answer_for_what_is_left(sparse: Shard) -> None:
    assert sparse.by_key(b"always").offset == 99
    assert [sparse.by_key(b"k%d" % number).offset for number in LEFT[:-1]] == LEFT[:-1]
    assert sparse.tagged("even") == LEFT[:-1:2]
    assert sparse.tagged("odd", 11) == [30, 50, 70, 90, 99]
    first_ms = sparse.records()[0].timestamp_ms
    for number in range(100):
        wanted = min(each for each in LEFT if each >= number)
        assert sparse.at_time(first_ms + number) == wanted
    assert sparse.at_time(first_ms + 100, AdapterOffsetStrategy.LATEST) == 100
    assert sparse.at_time(first_ms + 100, AdapterOffsetStrategy.EARLIEST) == 0


def test_a_compacted_shard_is_the_same_after_a_restart(own_lab: Lab) -> None:
    shard = compacted(own_lab, memory_overflow="spill", segment_bytes=1024)
    for number in range(60):
        write(shard, (f"k{number % 7}", str(number)), ("a", "x" * 30), tags=("t",))
        if number % 15 == 14:
            compact(shard)
    shard.roll()
    compact(shard)
    expected = content(shard)
    assert len(expected) == 8
    for restart in (own_lab.reopen, own_lab.crash):
        restart()
        assert content(shard) == expected
        assert shard.by_key(b"k3").value == next(
            v.encode() for _, k, v in expected if k == "k3" and v
        )
        assert shard.tagged("t") == [offset for offset, _, _ in expected]
        assert own_lab.store.verifier.verify(shard.name).findings == ()
        assert shard.start == 0
        media = {segment.medium for segment in shard.status.segments[:-1]}
        kept_in = {"EngineMemory": Medium.FILE, SHARED_FILE: Medium.SHARED}
        assert media == {kept_in.get(own_lab.kind, Medium.NATIVE)}
    write(shard, ("a", "again"))
    compact(shard)
    assert [key for _, key, _ in content(shard)].count("a") == 1


def test_readers_never_notice(lab: Lab) -> None:
    """Each reader always finds exactly one record of each key, none older than it found before."""
    shard = compacted(lab, segment_bytes=1024)
    keys = [f"k{number}" for number in range(5)]
    write(shard, *((key, "0") for key in keys))
    failures: list[BaseException] = []
    is_done = threading.Event()

    def guarded(look: Iterator[None]) -> None:
        try:
            while not is_done.is_set():
                next(look)
        except BaseException as error:
            failures.append(error)

    def by_offset() -> Iterator[None]:
        while True:
            found = {record.key: record.offset for record in shard.records()}
            assert sorted(found) == [key.encode() for key in keys]
            yield

    def raw() -> Iterator[None]:
        while True:
            found = {record.key for record in shard.raw_records()}
            assert found == {key.encode() for key in keys}
            yield

    def by_key() -> Iterator[None]:
        newest: dict[str, int] = {}
        for key in itertools.cycle(keys):
            offset = shard.by_key(key.encode()).offset
            assert offset >= newest.get(key, 0)
            newest[key] = offset
            yield

    threads = [
        threading.Thread(target=guarded, args=(look(),)) for look in (by_offset, raw, by_key)
    ]
    for thread in threads:
        thread.start()
    try:
        for number in range(15):
            for _ in range(3):
                write(shard, *((key, f"{number}" * 20) for key in keys))
            shard.roll()
            shard.engine.housekeep()
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    assert len(shard.segment_bases) <= 3
