"""What a shard knows of producers, and what readers see of their transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from firnmq.config import StorageType, StoreConfig
from firnmq.disk import Family
from firnmq.engines import AdapterOffsetStrategy
from firnmq.engines.catalog.transactions import (
    AbortedTransaction,
    AbortedTransactions,
    is_commit_marker,
    marker_batch,
)
from firnmq.engines.engine import LogEngine
from firnmq.engines.shardlog.producers import Producer, ProducerStates
from firnmq.errors import (
    InvalidRecord,
    InvalidTransactionState,
    KeyNotFound,
    OutOfOrderSequence,
    ProducerFenced,
)
from firnmq.index.layout import aborted_range
from firnmq.record import NewRecord, Selection, decode, parse_header, validate
from tests.conformance.lab import Lab, Shard
from tests.unit.engines.transactional import (
    TransactionalProducer,
    aborted,
    committed,
    stable,
)

DURABLE = [StorageType.SEGMENT.value, StorageType.ROCKSDB.value]


@pytest.fixture(params=[*DURABLE, StorageType.MEMORY.value])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


@pytest.fixture(params=DURABLE)
def durable_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


# Markers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_is_a_control_batch_of_one_record(is_commit: bool) -> None:
    batch = marker_batch(7, 3, is_commit=is_commit)
    header = validate(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert header.is_control
    assert header.is_transactional
    (record,) = decode([batch], Selection(include_control=True)).records()
    assert record.key == bytes((0, 0, 0, int(is_commit)))
    assert record.value == bytes(6)
    assert is_commit_marker(batch) is is_commit
    assert len(decode([batch])) == 0


def test_aborted_transactions_are_found_by_range() -> None:
    transactions = AbortedTransactions(
        [
            AbortedTransaction(1, 10, 20, 5),
            AbortedTransaction(2, 5, 30, 31),
            AbortedTransaction(1, 40, 50, 51),
        ]
    )
    assert [each.first_offset for each in transactions.overlapping(0, 6)] == [5]
    assert [each.first_offset for each in transactions.overlapping(0, 11)] == [5, 10]
    assert [each.first_offset for each in transactions.overlapping(21, 41)] == [5, 40]
    assert transactions.overlapping(31, 40) == []
    assert transactions.overlapping(51, 99) == []
    assert [each.last_offset for each in transactions.without(0, 30)] == [30, 50]


def test_overlap_is_the_same_as_by_looking_at_each() -> None:
    """Random transactions of several producers: the early end of the search loses nothing."""
    random = Random(5)
    for _ in range(200):
        offset, open_since, entries = 0, {}, []
        for _ in range(random.randrange(40)):
            producer_id = random.randrange(4)
            if producer_id in open_since and random.random() < 0.5:
                first = open_since.pop(producer_id)
                after = min(open_since.values(), default=offset + 1)
                if random.random() < 0.7:
                    entries.append(AbortedTransaction(producer_id, first, offset, after))
            else:
                open_since.setdefault(producer_id, offset)
            offset += 1
        transactions = AbortedTransactions(entries)
        start = random.randrange(offset + 2)
        end = start + random.randrange(10)
        expected = [
            each for each in entries if each.first_offset < end and each.last_offset >= start
        ]
        assert sorted(expected) == sorted(transactions.overlapping(start, end))


# States -------------------------------------------------------------------------------------------


def test_a_producer_keeps_its_state_through_its_bytes() -> None:
    states = ProducerStates()
    producer = TransactionalProducer(4, epoch=2)
    header = parse_header(producer.batch(_Named("s"), NewRecord(value=b"v")))  # type: ignore[arg-type]
    for number in range(7):
        states.note(header._replace(base_sequence=number), 10 + number, b"", 1_000 + number)
    known = states.get(4)
    assert known is not None
    again = Producer.unpack(known.pack())
    assert (again.epoch, again.transaction_start, again.stored_ms) == (2, 10, 1_006)
    assert list(again.batches) == list(known.batches)
    assert [batch.first_sequence for batch in again.batches] == [2, 3, 4, 5, 6]


class _Named:
    """Only a name and a clock are asked of the shard of a batch that goes nowhere."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lab = self
        self.clock = self

    def now_ms(self) -> int:
        return 0


def test_a_shard_refuses_what_does_not_follow(lab: Lab) -> None:
    shard = lab.shard()
    producer = TransactionalProducer(1, epoch=3)
    first = producer.batch(shard, NewRecord(value=b"0"))
    assert shard.append_raw(first).base_offset == 0
    assert shard.append_raw(first).base_offset == 0, "sent again it is answered, not stored"
    producer.batch(shard, NewRecord(value=b"lost"))
    with pytest.raises(OutOfOrderSequence):
        producer.write(shard, b"2")
    with pytest.raises(ProducerFenced):
        TransactionalProducer(1, epoch=2).write(shard, b"old")
    plain = TransactionalProducer(1, epoch=3).batch(
        shard, NewRecord(value=b"x"), transactional=False
    )
    with pytest.raises(InvalidTransactionState):
        shard.append_raw(plain)
    assert shard.end == 1


def test_clients_cannot_write_markers_or_nameless_transactions(lab: Lab) -> None:
    shard = lab.shard()
    with pytest.raises(InvalidRecord):
        shard.append_raw(bytes(marker_batch(1, 0, is_commit=True)))
    with pytest.raises(InvalidRecord):
        TransactionalProducer(-1, epoch=-1).write(shard, b"v")
    assert shard.end == 0


def test_a_marker_with_a_newer_epoch_fences(lab: Lab) -> None:
    shard = lab.shard()
    old, new = TransactionalProducer(1), TransactionalProducer(1, epoch=1)
    old.write(shard, b"a")
    new.abort(shard)
    with pytest.raises(ProducerFenced):
        old.write(shard, b"late")
    new.write(shard, b"b")
    new.commit(shard)
    assert shard.values() == [b"b"]


# What readers see ---------------------------------------------------------------------------------


def test_nothing_is_shown_before_its_transaction_ends(lab: Lab) -> None:
    """1. another record, 2. a transaction begins, 3. records after it wait too, 4. it commits."""
    shard = lab.shard()
    shard.append_values(b"before")
    producer = TransactionalProducer(1)
    producer.write(shard, b"t0", b"t1")
    shard.append_values(b"after")
    assert (stable(shard), shard.end) == (1, 4)
    assert shard.values() == [b"before"]
    assert shard.read(0).next_offset == 1
    assert shard.read(2).records() == []
    assert shard.read(2).next_offset == 2
    assert len(decode(committed(shard).batches)) == 1
    assert len(shard.raw_records()) == 4
    assert producer.commit(shard) == 4
    assert stable(shard) == 5
    assert shard.values() == [b"before", b"t0", b"t1", b"after"]
    assert shard.read(0).next_offset == 5, "the marker is passed over"
    assert committed(shard).aborted == ()


def test_an_aborted_transaction_is_passed_over(lab: Lab) -> None:
    shard = lab.shard()
    producer, other = TransactionalProducer(1), TransactionalProducer(2)
    producer.write(shard, b"a0")
    other.write(shard, b"b0")
    producer.write(shard, b"a1")
    producer.abort(shard)
    assert stable(shard) == 1, "the other one is open"
    other.commit(shard)
    producer.write(shard, b"a2")
    producer.commit(shard)
    assert shard.values() == [b"b0", b"a2"]
    assert shard.offsets() == [1, 5]
    page = committed(shard)
    assert aborted(page) == [(1, 0)]
    assert page.stable_offset == 7
    assert aborted(committed(shard, 4)) == []
    assert aborted(committed(shard, 3)) == [(1, 0)], "its marker is in the range"


def test_reading_on_passes_over_an_aborted_end(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"v")
    producer = TransactionalProducer(1)
    for number in range(20):
        producer.write(shard, b"%d" % number)
    producer.abort(shard)
    assert shard.read(0, max_records=1).next_offset in (1, 22)
    assert shard.read(1).next_offset == 22
    assert shard.read(5).records() == []


def test_keys_and_tags_show_only_what_counts(lab: Lab) -> None:
    shard = lab.shard({"index.key": "true", "index.tag": "true"})
    shard.append(NewRecord(value=b"old", key=b"k", tags=("t",)))
    producer = TransactionalProducer(1)
    producer.write(shard, b"aborted", key=b"k", tags=("t",))
    assert shard.by_key(b"k").value == b"old"
    assert shard.tagged("t") == [0]
    producer.abort(shard)
    assert shard.by_key(b"k").value == b"old"
    assert shard.tagged("t") == [0]
    producer.write(shard, b"new", key=b"k", tags=("t",))
    producer.write(shard, b"only", key=b"other")
    assert shard.by_key(b"k").value == b"old"
    with pytest.raises(KeyNotFound):
        shard.by_key(b"other")
    producer.commit(shard)
    assert shard.by_key(b"k").value == b"new"
    assert shard.by_key(b"other").value == b"only"
    assert shard.tagged("t") == [0, 3]
    page = shard.by_tag("t")
    assert page.next_offset == shard.end


def test_a_deleted_key_may_come_back_with_a_commit(lab: Lab) -> None:
    shard = lab.shard({"index.key": "true"})
    shard.append(NewRecord(value=b"old", key=b"k"))
    producer = TransactionalProducer(1)
    producer.write(shard, b"new", key=b"k")
    shard.delete_key(b"k")
    with pytest.raises(KeyNotFound):
        shard.by_key(b"k")
    producer.commit(shard)
    assert shard.by_key(b"k").value == b"new"


def test_lookups_by_time_find_only_what_counts(lab: Lab) -> None:
    shard = lab.shard()
    producer = TransactionalProducer(1)
    producer.write(shard, b"aborted", timestamp_ms=1_000)
    producer.abort(shard)
    shard.append(NewRecord(value=b"v", timestamp_ms=1_000))
    producer.write(shard, b"open", timestamp_ms=2_000)
    shard.append(NewRecord(value=b"later", timestamp_ms=2_000))
    assert shard.at_time(500) == 2
    assert shard.at_time(1_500) == 3
    find = shard.engine.get_offset_by_timestamp
    latest = AdapterOffsetStrategy.LATEST
    assert find(shard.name, 1_500, latest, committed=False) == 3
    assert find(shard.name, 9_000, latest, committed=False) == 5
    assert shard.status.max_timestamp == 2_000, "markers have no time"


def test_deleted_records_leave_batches_that_clients_can_judge(lab: Lab) -> None:
    """Batches that are rewritten keep their producer, and markers stay."""
    shard = lab.shard()
    producer = TransactionalProducer(1)
    producer.write(shard, b"a0", b"a1")
    producer.abort(shard)
    producer.write(shard, b"c0", b"c1")
    producer.commit(shard)
    shard.delete(0, 3)
    page = committed(shard)
    headers = [parse_header(batch) for batch in page.batches]
    assert [header.is_control for header in headers] == [False, True, False, True, True]
    entry = headers.pop()
    assert all(header.is_transactional and header.producer_id == 1 for header in headers)
    assert (entry.is_transactional, entry.producer_id, entry.base_offset) == (False, -1, 6)
    assert aborted(page) == [(1, 0)]
    assert shard.values() == [b"c1"]
    assert [record.offset for record in decode(page.batches).records()] == [1, 4]


# What survives ------------------------------------------------------------------------------------


def _history(shard: Shard) -> dict[str, object]:
    """Everything that is to be the same before and after."""
    page = committed(shard)
    return {
        "bounds": (shard.start, shard.end, stable(shard)),
        "records": [(record.offset, record.value) for record in shard.records()],
        "aborted": aborted(page),
        "raw": b"".join(map(bytes, page.batches)),
    }


def _write_some(shard: Shard, *, rolls: bool) -> TransactionalProducer:
    """A commit, an abort over the border of a segment, and a transaction that stays open."""
    first, second, third = map(TransactionalProducer, (1, 2, 3))
    first.write(shard, b"c0")
    second.write(shard, b"a0")
    if rolls:
        shard.roll()
    first.write(shard, b"c1")
    second.write(shard, b"a1")
    second.abort(shard)
    first.commit(shard)
    third.write(shard, b"o0")
    if rolls:
        shard.roll()
    shard.append_values(b"plain")
    return third


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("ends", ["reopen", "crash"])
def test_transactions_survive(durable_lab: Lab, rolls: bool, durability: str, ends: str) -> None:
    shard = durable_lab.shard({"durability": durability})
    third = _write_some(shard, rolls=rolls)
    before = _history(shard)
    assert [value for _, value in before["records"]] == [b"c0", b"c1"]  # type: ignore[attr-defined]
    for _ in range(2):
        durable_lab.reopen() if ends == "reopen" else durable_lab.crash()
        assert _history(shard) == before
    third.abort(shard)
    assert shard.values() == [b"c0", b"c1", b"plain"]
    assert aborted(committed(shard)) == [(2, 1), (3, 6)]
    durable_lab.reopen()
    assert shard.values() == [b"c0", b"c1", b"plain"]


def test_a_lost_index_is_made_anew(durable_lab: Lab) -> None:
    """1. The active segment's entries are gone, as after a cut, 2. it is scanned from its start,
    with what was open when the segment before was sealed."""
    shard = durable_lab.shard()
    _write_some(shard, rolls=True)
    before = _history(shard)
    spec = shard.status.spec
    segment = shard.lab.store.engines[durable_lab.storage_type].log(shard.name).tail.segment  # type: ignore[attr-defined]
    assert spec.uid
    segment.index.clear()
    durable_lab.reopen()
    assert _history(shard) == before


def test_a_marker_is_synced_whatever_the_topic_asks(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data", StorageType.SEGMENT.value)
    shard = lab.shard({"durability": "os"})
    producer = TransactionalProducer(1)
    producer.write(shard, b"v")
    before = lab.store.files.statistics().sync_count
    producer.commit(shard)
    assert lab.store.files.statistics().sync_count == before + 1
    lab.close()


@pytest.mark.parametrize("rolls", [False, True])
def test_a_cut_opens_again_what_had_ended(lab: Lab, rolls: bool) -> None:
    """Cutting off a marker leaves its transaction as it was before the marker."""
    shard = lab.shard()
    producer, other = TransactionalProducer(1), TransactionalProducer(2)
    producer.write(shard, b"a0")
    other.write(shard, b"b0")
    if rolls:
        shard.roll()
    producer.write(shard, b"a1")
    cut_at = producer.abort(shard)
    other.commit(shard)
    assert shard.values() == [b"b0"]
    shard.truncate(cut_at)
    assert (stable(shard), shard.end) == (0, 3)
    assert shard.values() == []
    assert aborted(committed(shard)) == []
    producer.commit(shard)
    assert stable(shard) == 1
    other.commit(shard)
    assert shard.values() == [b"a0", b"b0", b"a1"]
    if lab.storage_type != StorageType.MEMORY.value:
        lab.reopen()
        assert shard.values() == [b"a0", b"b0", b"a1"]
        assert aborted(committed(shard)) == []


def test_what_was_cut_off_hides_nothing_later(durable_lab: Lab) -> None:
    """An aborted transaction that was cut off must not hide what takes its offsets."""
    shard = durable_lab.shard()
    producer = TransactionalProducer(1)
    shard.append_values(b"v")
    producer.write(shard, b"a0")
    producer.abort(shard)
    shard.truncate(1)
    fresh = TransactionalProducer(1, epoch=1)
    fresh.write(shard, b"c0")
    fresh.commit(shard)
    assert shard.values() == [b"v", b"c0"]
    durable_lab.reopen()
    assert shard.values() == [b"v", b"c0"]


def test_aborted_transactions_go_with_the_start(lab: Lab) -> None:
    shard = lab.shard()
    producer = TransactionalProducer(1)
    for _ in range(3):
        producer.write(shard, b"a")
        producer.abort(shard)
    shard.append_values(b"v")
    assert len(committed(shard).aborted) == 3
    shard.delete_before(3)
    assert aborted(committed(shard)) == [(1, 2), (1, 4)]
    shard.delete_before(4)
    assert aborted(committed(shard)) == [(1, 4)]
    assert shard.values() == [b"v"]
    if lab.storage_type != StorageType.MEMORY.value:
        lab.reopen()
        assert aborted(committed(shard)) == [(1, 4)]


def test_the_start_may_pass_an_open_transaction(lab: Lab) -> None:
    shard = lab.shard()
    producer = TransactionalProducer(1)
    producer.write(shard, b"a")
    shard.append_values(b"v")
    shard.delete_before(1)
    assert stable(shard) == 1
    assert shard.values() == []
    producer.abort(shard)
    assert shard.values() == [b"v"]


def test_spilled_segments_come_back_without_what_was_aborted(tmp_path: Path) -> None:
    """1. an aborted and an open transaction are in the spilled segment, 2. the process ends,
    3. the rest of the open one is lost with the memory, so it does not count."""
    lab = Lab(tmp_path / "data", StorageType.MEMORY.value)
    shard = lab.shard({"memory.overflow": "spill"})
    first, second, third = map(TransactionalProducer, (1, 2, 3))
    first.write(shard, b"a0")
    second.write(shard, b"o0")
    third.write(shard, b"c0")
    first.abort(shard)
    third.commit(shard)
    shard.roll()
    lab.engine.housekeep()
    second.commit(shard)
    assert shard.values() == [b"o0", b"c0"]
    lab.reopen()
    assert shard.values() == [b"c0"]
    assert stable(shard) == shard.end
    fresh = TransactionalProducer(2, epoch=1)
    fresh.write(shard, b"again")
    fresh.commit(shard)
    assert shard.values() == [b"c0", b"again"]
    lab.close()


def spilled_lab(tmp_path: Path) -> tuple[Lab, Shard]:
    lab = Lab(tmp_path / "data", StorageType.MEMORY.value)
    return lab, lab.shard({"memory.overflow": "spill"})


def spill(shard: Shard) -> None:
    shard.roll()
    shard.engine.housekeep()


def assert_whole(shard: Shard) -> None:
    assert shard.lab.store.verifier.verify(shard.name).findings == ()


def test_what_was_aborted_in_a_lost_memory_does_not_hide_what_comes_after(tmp_path: Path) -> None:
    """1. A transaction begins in a spilled segment and is aborted in memory. 2. The memory is
    lost, its offsets are given out again, to the same producer. 3. They are spilled, and come
    back after another restart."""
    lab, shard = spilled_lab(tmp_path)
    producer = TransactionalProducer(1)
    producer.write(shard, b"a0")
    shard.roll()
    producer.write(shard, b"a1")
    for _ in range(3):
        shard.append_values(b"lost")
    producer.abort(shard)
    lab.engine.housekeep()
    lab.reopen()
    assert (shard.values(), shard.end) == ([], 1)
    assert_whole(shard)
    fresh = TransactionalProducer(1, epoch=1)
    fresh.write(shard, b"c0", b"c1")
    fresh.commit(shard)
    spill(shard)
    assert shard.values() == [b"c0", b"c1"]
    assert_whole(shard)
    lab.reopen()
    assert shard.values() == [b"c0", b"c1"]
    assert_whole(shard)
    lab.close()


def test_transactions_that_lost_their_rest_stay_aborted(tmp_path: Path) -> None:
    """1. Two are open where the last spilled segment ends. 2. The process ends, more is spilled,
    and the process ends again."""
    lab, shard = spilled_lab(tmp_path)
    producers = list(map(TransactionalProducer, (1, 2, 3)))
    for producer in producers:
        producer.write(shard, b"lost %d" % producer.producer_id)
    producers[0].commit(shard)
    spill(shard)
    for round_number in range(3):
        lab.reopen()
        assert shard.values() == [b"lost 1", *(b"v%d" % each for each in range(round_number))]
        assert stable(shard) == shard.end
        assert_whole(shard)
        shard.append_values(b"v%d" % round_number)
        spill(shard)
        assert_whole(shard)
    shard.delete_before(4)
    lab.reopen()
    assert aborted(committed(shard)) == []
    assert shard.values() == [b"v0", b"v1", b"v2"]
    assert_whole(shard)
    lab.close()


def test_nothing_is_kept_of_transactions_once_no_segment_is(tmp_path: Path) -> None:
    """Offsets begin where the start is, and an entry beyond would hide what is stored there."""
    lab, shard = spilled_lab(tmp_path)
    producer = TransactionalProducer(1)
    producer.write(shard, b"a0")
    shard.roll()
    producer.write(shard, b"a1")
    producer.abort(shard)
    lab.engine.housekeep()
    shard.delete_before(1)
    lab.reopen()
    assert (shard.start, shard.end) == (1, 1)
    uid = shard.status.spec.uid
    assert lab.store.kv.items(Family.INDEX, *aborted_range(uid)) == []
    lab.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_read_the_same_after_every_restart(durable_lab: Lab, seed: int) -> None:
    """Random commits, aborts, rolls, crashes and cuts against a plain model of the log."""
    random = Random(seed)
    shard = durable_lab.shard({"durability": random.choice(["fsync", "os"])})
    log: list[tuple[int, bytes] | tuple[int, bool] | bytes] = []
    """By offset: a producer's value, a producer's marker, or anyone's value."""
    producers = {number: TransactionalProducer(number) for number in range(3)}
    active_base = 0
    for step in range(60):
        kind = random.choices(
            ["write", "plain", "end", "roll", "crash", "cut"], [9, 3, 6, 1.5, 1, 1]
        )[0]
        number = random.randrange(3)
        if kind == "write":
            value = b"%d-%d" % (number, step)
            assert producers[number].write(shard, value).base_offset == len(log)
            log.append((number, value))
        elif kind == "plain":
            shard.append_values(b"p%d" % step)
            log.append(b"p%d" % step)
        elif kind == "end":
            is_commit = random.random() < 0.5
            producer = producers[number]
            producer.commit(shard) if is_commit else producer.abort(shard)
            log.append((number, is_commit))
        elif kind == "roll":
            shard.roll()
            active_base = shard.segment_bases[-1]
        elif kind == "crash":
            durable_lab.crash()
        elif len(log) > active_base:
            cut_at = random.randrange(active_base, len(log))
            shard.truncate(cut_at)
            del log[cut_at:]
            for number in producers:  # As a client does that has lost track of its sequence.
                producers[number] = TransactionalProducer(number, producers[number].epoch + 1)
        _judge(shard, log)
    durable_lab.reopen()
    _judge(shard, log)


def _judge(shard: Shard, log: list[object]) -> None:
    open_since: dict[int, int] = {}
    hidden: set[int] = set()
    members: dict[int, list[int]] = {}
    for offset, entry in enumerate(log):
        if not isinstance(entry, tuple):
            continue
        number, content = entry
        if isinstance(content, bool):
            if not content:
                hidden.update(members.get(number, ()))
            open_since.pop(number, None)
            members.pop(number, None)
        else:
            open_since.setdefault(number, offset)
            members.setdefault(number, []).append(offset)
    end = min(open_since.values(), default=len(log))
    assert (shard.end, stable(shard)) == (len(log), end)
    expected = []
    for offset, entry in enumerate(log[:end]):
        value = entry[1] if isinstance(entry, tuple) else entry
        if isinstance(value, bytes) and offset not in hidden:
            expected.append((offset, value))
    assert [(record.offset, record.value) for record in shard.records()] == expected


# Forgetting ---------------------------------------------------------------------------------------

DAY_MS = 24 * 60 * 60 * 1000


def known_ids(shard: Shard) -> list[int]:
    engine = shard.engine
    assert isinstance(engine, LogEngine)
    return sorted(producer_id for producer_id, _ in engine.log(shard.name).producers)


def test_a_silent_producer_is_forgotten_and_another_is_not(lab: Lab) -> None:
    shard = lab.shard()
    silent, busy = TransactionalProducer(1), TransactionalProducer(2)
    for producer in (silent, busy):
        shard.append_raw(producer.batch(shard, NewRecord(value=b"v"), transactional=False))
    lab.clock.advance(DAY_MS)
    shard.append_raw(busy.batch(shard, NewRecord(value=b"v"), transactional=False))
    lab.engine.housekeep()
    assert known_ids(shard) == [1, 2], "a day is not over before it is over"
    lab.clock.advance(1)
    lab.engine.housekeep()
    assert known_ids(shard) == [2]
    # It is a producer like one never seen: whatever it goes on with is taken.
    shard.append_raw(silent.batch(shard, NewRecord(value=b"late"), transactional=False))
    assert known_ids(shard) == [1, 2]
    lab.clock.advance(DAY_MS + 1)
    lab.engine.housekeep()
    assert known_ids(shard) == []


def test_clients_timestamps_do_not_matter(lab: Lab) -> None:
    shard = lab.shard()
    for producer_id, timestamp_ms in ((1, 0), (2, lab.clock.now_ms() + 1000 * DAY_MS)):
        record = NewRecord(value=b"v", timestamp_ms=timestamp_ms)
        batch = TransactionalProducer(producer_id).batch(shard, record, transactional=False)
        shard.append_raw(batch)
    lab.engine.housekeep()
    assert known_ids(shard) == [1, 2]
    lab.clock.advance(DAY_MS + 1)
    lab.engine.housekeep()
    assert known_ids(shard) == []


def test_a_producer_with_an_open_transaction_is_not_forgotten(lab: Lab) -> None:
    shard = lab.shard()
    producer, other = TransactionalProducer(1), TransactionalProducer(2)
    producer.write(shard, b"open")
    other.write(shard, b"ended")
    other.commit(shard)
    lab.clock.advance(30 * DAY_MS)
    lab.engine.housekeep()
    assert known_ids(shard) == [1]
    assert stable(shard) == 0
    producer.write(shard, b"more")
    producer.abort(shard)
    assert aborted(committed(shard)) == [(1, 0)]
    lab.clock.advance(DAY_MS)
    lab.engine.housekeep()
    assert known_ids(shard) == [1], "its marker was the last that was heard of it"
    lab.clock.advance(1)
    lab.engine.housekeep()
    assert known_ids(shard) == []
    assert aborted(committed(shard)) == [(1, 0)], "what was aborted stays so"


def test_a_fenced_producer_stays_so_for_as_long_as_any_is_known(lab: Lab) -> None:
    """A marker of a newer epoch leaves a producer without batches, not without a time."""
    shard = lab.shard()
    TransactionalProducer(1, epoch=0).write(shard, b"v")
    TransactionalProducer(1, epoch=1).abort(shard)
    lab.clock.advance(DAY_MS)
    lab.engine.housekeep()
    with pytest.raises(ProducerFenced):
        TransactionalProducer(1, epoch=0).write(shard, b"zombie")


@pytest.mark.parametrize("way", ["reopen", "crash"])
def test_the_time_and_the_forgetting_survive_a_restart(durable_lab: Lab, way: str) -> None:
    lab = durable_lab
    shard = lab.shard()
    old, new = TransactionalProducer(1), TransactionalProducer(2)
    shard.append_raw(old.batch(shard, NewRecord(value=b"v"), transactional=False))
    lab.clock.advance(DAY_MS)
    shard.append_raw(new.batch(shard, NewRecord(value=b"v"), transactional=False))
    lab.store.kv.sync_late()  # As a node does every second.
    getattr(lab, way)()
    assert known_ids(shard) == [1, 2]
    lab.clock.advance(1)
    lab.engine.housekeep()
    assert known_ids(shard) == [2]
    getattr(lab, way)()
    assert known_ids(shard) == [2]
    new.batch(shard, NewRecord(value=b"skipped"), transactional=False)
    after_gap = new.batch(shard, NewRecord(value=b"v"), transactional=False)
    with pytest.raises(OutOfOrderSequence):
        shard.append_raw(after_gap)


def test_the_time_can_be_set(tmp_path: Path) -> None:
    config = StoreConfig(producer_expiration_ms=1_000)
    lab = Lab(tmp_path, StorageType.SEGMENT.value, config=config)
    shard = lab.shard()
    producer = TransactionalProducer(1)
    shard.append_raw(producer.batch(shard, NewRecord(value=b"v"), transactional=False))
    lab.clock.advance(1_001)
    lab.engine.housekeep()
    assert known_ids(shard) == []
    lab.close()
