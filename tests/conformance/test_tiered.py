"""Segments that are only in an object store: every question has the same answer as before."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.config import StorageType, TopicConfig
from firnmq.engines import AdapterOffsetStrategy
from firnmq.engines.catalog.segments import Segment, SegmentState
from firnmq.engines.engine import LogEngine
from firnmq.errors import (
    Corruption,
    InvalidArgument,
    KeyNotFound,
    NoObjectStore,
    StaleEpoch,
    StorageFailed,
    StoreUnavailable,
)
from firnmq.record import NewRecord, decode
from tests.conformance.copied import Copied, CopiedStore, begin, copy_bytes, upload
from tests.conformance.lab import Lab, Shard
from tests.conformance.lost_answers import lost_answers
from tests.conformance.stored import checked, content, nowait
from tests.unit.engines.transactional import TransactionalProducer, aborted, committed

OPTIONS = {"tiering": "on", "memory.overflow": "spill", "local.retention.ms": 0}


@pytest.fixture
def copies() -> CopiedStore:
    return CopiedStore()


@pytest.fixture
def cold_lab(storage_type: str, copies: CopiedStore, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", storage_type, cold=copies)
    yield lab
    copies.gate.set()
    lab.close()


@pytest.fixture
def cold(cold_lab: Lab) -> Shard:
    """Three segments of three records each in the object store alone, and two records here."""
    shard = cold_lab.shard(OPTIONS)
    for first in (0, 3, 6):
        for number in range(first, first + 3):
            shard.append(_record(number))
        seal(shard)
    shard.append(_record(9), _record(10))
    for seq in (0, 1, 2):
        send(shard, seq)
    return shard


def _record(number: int) -> NewRecord:
    return NewRecord(
        key=b"k%d" % (number % 4),
        value=b"value %d" % number,
        tags=("even",) if number % 2 == 0 else ("odd",),
        timestamp_ms=1000 * number,
    )


def seal(shard: Shard) -> None:
    """Seals the active segment, so that it is kept beyond the process."""
    shard.roll()
    shard.engine.housekeep()


def send(shard: Shard, seq: int) -> None:
    """Copies a segment and drops it here."""
    store = shard.lab.cold
    assert isinstance(store, CopiedStore)
    upload(store, shard.engine, shard.name, seq)
    shard.engine.drop_local(shard.name, seq)


def places(shard: Shard) -> list[bool]:
    return [meta.is_local for meta in shard.status.segments]


# Reading ----------------------------------------------------------------------------------------


def test_a_reader_walks_from_the_first_cold_segment_to_the_tail(cold: Shard) -> None:
    assert places(cold) == [False, False, False, True]
    assert cold.offsets() == list(range(11))
    assert cold.values() == [b"value %d" % number for number in range(11)]
    assert [record.offset for record in cold.read(4, max_records=3)] == [4, 5, 6]
    assert cold.raw_offsets() == list(range(11))


def test_the_newest_record_of_a_key_is_found_wherever_it_is(cold: Shard) -> None:
    assert [cold.by_key(b"k%d" % key).offset for key in range(4)] == [8, 9, 10, 7]
    with pytest.raises(KeyNotFound):
        cold.by_key(b"k9")


def test_tags_and_times_are_found_wherever_they_are(cold: Shard) -> None:
    assert cold.tagged("even") == [0, 2, 4, 6, 8, 10]
    assert cold.tagged("odd", 4) == [5, 7, 9]
    assert [cold.at_time(1000 * number) for number in (0, 2, 5, 9)] == [0, 2, 5, 9]
    assert cold.at_time(1500) == 2
    assert cold.at_time(99_000, AdapterOffsetStrategy.LATEST) == 11


def test_stored_batches_are_never_given_out_without_waiting(cold: Shard) -> None:
    assert nowait(cold, 0) is None
    page = checked(cold, 0)
    assert [record.offset for record in decode([content(page)]).records()] == [0, 1, 2]
    assert page.next_offset == 3
    assert (page.start_offset, page.end_offset) == (0, 11)


def test_deleted_records_stay_deleted_though_their_bytes_never_change(cold: Shard) -> None:
    cold.delete(1, 7)
    cold.delete_key(b"k0")  # Offsets 0, 4 and 8.
    left = [2, 3, 5, 6, 9, 10]
    for _ in range(2):
        assert cold.offsets() == left
        assert cold.raw_offsets() == left
        assert cold.tagged("odd") == [3, 5, 9]
        assert cold.at_time(7000) == 9
        assert cold.by_key(b"k3").offset == 3
        with pytest.raises(KeyNotFound):
            cold.by_key(b"k0")
        if cold.lab.storage_type == StorageType.MEMORY.value:
            seal(cold)  # Else what is in memory does not come back.
        cold.lab.reopen()


def test_aborted_transactions_of_cold_segments_are_passed_over(cold_lab: Lab) -> None:
    shard = cold_lab.shard(OPTIONS)
    first, second = TransactionalProducer(1), TransactionalProducer(2)
    first.write(shard, b"no", b"no")
    second.write(shard, b"yes")
    seal(shard)
    first.abort(shard)
    second.commit(shard)
    shard.append_values(b"plain")
    seal(shard)
    shard.append_values(b"tail")
    for seq in (0, 1):
        send(shard, seq)
    for _ in range(2):
        assert [value for value in shard.values() if value != b"tail"] == [b"yes", b"plain"]
        page = committed(shard, 0)
        assert aborted(page) == [(1, 0)]
        stored = checked(shard, 0, committed=True)
        assert [(each.producer_id, each.first_offset) for each in stored.aborted] == [(1, 0)]
        cold_lab.reopen()


# Changing ---------------------------------------------------------------------------------------


def test_what_is_not_copied_yet_stays_here(cold_lab: Lab, copies: CopiedStore) -> None:
    shard = cold_lab.shard(OPTIONS)
    shard.append_values(b"a")
    seal(shard)
    with pytest.raises(InvalidArgument, match="not in the object store yet"):
        shard.engine.drop_local(shard.name, 0)
    begin(shard.engine, shard.name, 0)
    with pytest.raises(InvalidArgument, match="not in the object store yet"):
        shard.engine.drop_local(shard.name, 0)
    assert shard.values() == [b"a"]


def test_of_two_uploaders_the_last_to_begin_wins(cold_lab: Lab, copies: CopiedStore) -> None:
    shard = cold_lab.shard(OPTIONS)
    shard.append_values(b"a")
    seal(shard)
    engine, name = shard.engine, shard.name
    source = engine.sealed_source(name, 0)
    slow, before = begin(engine, name, 0)
    assert before.tier is None
    quick, before = begin(engine, name, 0)
    assert before.tier == slow
    slow = copy_bytes(copies, source, slow)
    with pytest.raises(StaleEpoch):
        engine.finish_copy(name, 0, slow)
    engine.abandon_copy(name, 0, slow.upload_id)  # It is not its own any more.
    done = engine.finish_copy(name, 0, copy_bytes(copies, source, quick))
    assert (done.state, done.is_local) == (SegmentState.TIERED, True)
    assert done.tier == dataclasses.replace(
        quick, is_done=True, index_length=1, index_head_length=1
    )
    assert engine.finish_copy(name, 0, quick) == done  # An answer that got lost.
    with pytest.raises(StaleEpoch):
        begin(engine, name, 0)


def test_an_abandoned_copy_can_be_begun_anew(cold_lab: Lab, copies: CopiedStore) -> None:
    shard = cold_lab.shard(OPTIONS)
    shard.append_values(b"a")
    seal(shard)
    copy, _ = begin(shard.engine, shard.name, 0)
    shard.engine.abandon_copy(shard.name, 0, copy.upload_id)
    assert shard.status.segments[0].tier is None
    shard.engine.abandon_copy(shard.name, 17, copy.upload_id)
    send(shard, 0)
    assert shard.values() == [b"a"]


def test_active_segments_and_those_that_are_gone_are_not_copied(cold: Shard) -> None:
    active = cold.status.segments[-1].seq
    for seq in (active, 99):
        with pytest.raises(StaleEpoch):
            begin(cold.engine, cold.name, seq)
    with pytest.raises(StaleEpoch):
        cold.engine.sealed_source(cold.name, 0)  # It is not here.


def test_what_is_only_in_memory_is_not_copied(tmp_path: Path, copies: CopiedStore) -> None:
    lab = Lab(tmp_path / "data", StorageType.MEMORY.value, cold=copies)
    shard = lab.shard({"tiering": "on"})
    shard.append_values(b"a")
    seal(shard)
    with pytest.raises(InvalidArgument, match=r"memory\.overflow=spill"):
        begin(shard.engine, shard.name, 0)
    lab.close()


def test_deleted_segments_are_remembered_until_their_objects_are_gone(
    cold: Shard, copies: CopiedStore
) -> None:
    cold.delete_before(7)
    cold.lab.reopen()
    assert cold.start == 7
    state = cold.lab.store.state
    dead = [meta for meta in state.chain(cold.status.spec.uid) if not meta.is_sealed][:2]
    assert [(meta.seq, meta.state) for meta in dead] == [
        (0, SegmentState.DELETED),
        (1, SegmentState.DELETED),
    ]
    assert cold.engine.dead_copies() == [(cold.name, meta) for meta in dead]
    with pytest.raises(StaleEpoch):
        cold.engine.forget_copy(cold.name, 2)
    for meta in dead:
        for _ in range(2):
            cold.engine.forget_copy(cold.name, meta.seq)
    assert [meta.seq for meta in state.chain(cold.status.spec.uid)][:1] == [2]


def test_new_segments_do_not_take_the_place_of_dead_ones(cold: Shard) -> None:
    """A memory shard begins anew after a restart, and must not forget what is in the store."""
    cold.delete_before(11)
    cold.lab.reopen()
    cold.append_values(b"new")
    seal(cold)
    dead = [seq for name, meta in cold.engine.dead_copies() for seq in (meta.seq,)]
    assert dead == [0, 1, 2]
    assert all(meta.seq > 2 for meta in cold.status.segments)
    assert b"new" in cold.values()


def test_a_deleted_shard_leaves_the_names_of_its_objects(cold: Shard, copies: CopiedStore) -> None:
    begun = [meta.tier for meta in cold.status.segments if meta.tier is not None]
    cold.engine.delete_shard(cold.name)
    catalog = cold.lab.store.shards
    graves = catalog.graves()
    assert [grave.tier for grave in graves] == begun
    assert {grave.shard for grave in graves} == {cold.name}
    assert set(copies.copies) == {grave.tier.key for grave in graves}
    cold.lab.reopen()
    catalog = cold.lab.store.shards
    catalog.forget_graves(catalog.graves()[:1])
    assert [grave.seq for grave in catalog.graves()] == [1, 2]


def test_tiering_is_not_turned_off_while_segments_are_only_there(cold: Shard) -> None:
    config = cold.status.spec.config
    with pytest.raises(InvalidArgument, match="in the object store alone"):
        cold.engine.check_change(cold.name, config.with_options({"tiering": "off"}))
    compacting = config.with_options({"tiering": "off", "cleanup.policy": "compact"})
    cold.delete_before(9)
    cold.engine.check_change(cold.name, compacting)
    seal(cold)
    upload(cold.lab.cold, cold.engine, cold.name, cold.status.segments[0].seq)  # type: ignore[arg-type]
    cold.engine.check_change(cold.name, config.with_options({"tiering": "off"}))
    with pytest.raises(InvalidArgument, match="which never change"):
        cold.engine.check_change(cold.name, compacting)


# Trouble ----------------------------------------------------------------------------------------


def test_opening_asks_nothing_of_the_store(cold: Shard, copies: CopiedStore) -> None:
    if cold.lab.storage_type == StorageType.MEMORY.value:
        seal(cold)
    before = copies.read_count
    cold.lab.crash()
    assert cold.status.end_offset == 11
    cold.append(_record(11))
    assert [record.offset for record in cold.read(9)] == [9, 10, 11]
    assert cold.by_key(b"k3").offset == 11
    assert cold.at_time(9000) == 9
    assert copies.read_count == before


def test_without_a_store_only_what_is_there_cannot_be_read(cold: Shard) -> None:
    if cold.lab.storage_type == StorageType.MEMORY.value:
        seal(cold)
    cold.lab.cold = None
    cold.lab.reopen()
    for read in (
        lambda: cold.read(8),
        lambda: cold.by_key(b"k0"),
        lambda: cold.tagged("odd"),
        lambda: cold.at_time(1000),
        lambda: checked(cold, 0),
    ):
        with pytest.raises(NoObjectStore, match=r"\[tiering\].*FIRN_CONFIG"):
            read()
    assert [record.offset for record in cold.read(9)] == [9, 10]
    cold.append(_record(11))
    assert cold.by_key(b"k3").offset == 11
    cold.delete(3)
    cold.delete_key(b"k0")
    failure = cold.status.failure
    assert failure is not None
    assert "only in the object store" in failure
    seal(cold)
    with pytest.raises(InvalidArgument, match="no object store is configured"):
        _finish_without_bytes(cold, cold.status.segments[-2].seq)


def _finish_without_bytes(shard: Shard, seq: int) -> None:
    copy, _ = begin(shard.engine, shard.name, seq)
    shard.engine.finish_copy(shard.name, seq, copy)
    shard.engine.drop_local(shard.name, seq)


def test_a_store_that_fails_keeps_nothing_else_from_working(
    cold: Shard, copies: CopiedStore
) -> None:
    copies.refusal = StoreUnavailable("file:///nowhere", "told to fail")
    with pytest.raises(StoreUnavailable):
        cold.read(0)
    cold.append(_record(11))
    cold.delete_key(b"k0")
    cold.delete(1)
    assert [record.offset for record in cold.read(9)] == [9, 10, 11]
    copies.refusal = None
    assert cold.offsets() == [2, 3, 5, 6, 7, 9, 10, 11]


def test_nothing_waits_for_a_reader_that_waits_for_the_store(
    cold: Shard, copies: CopiedStore
) -> None:
    # 1. A reader hangs in the store.
    copies.waiting.clear()
    copies.gate.clear()
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(cold.offsets()))
    reader.start()
    assert copies.waiting.wait(30)
    # 2. Whatever changes the log or reads what is here goes on.
    cold.append(_record(11))
    assert [record.offset for record in cold.read(9)] == [9, 10, 11]
    assert cold.by_key(b"k3").offset == 11
    cold.delete(10)
    cold.delete_key(b"k2")
    seal(cold)
    cold.delete_before(1)
    assert cold.status.end_offset == 14
    # 3. It gets what there was when it began to look, but for what was deleted.
    copies.gate.set()
    reader.join(30)
    assert not reader.is_alive()
    assert found[-1] in (9, 11)


def test_bytes_that_came_damaged_are_fetched_once_more(cold: Shard, copies: CopiedStore) -> None:
    meta = cold.status.segments[1]
    assert meta.tier is not None
    key = meta.tier.key
    good = copies.copies[key]
    bad = bytearray(good.data)
    bad[-3] ^= 1
    copies.copies[key] = Copied(bytes(bad), good.index)
    forget = copies.forget

    def repaired(meta: object) -> None:
        forget(meta)  # type: ignore[arg-type]
        copies.copies[key] = good

    copies.forget = repaired  # type: ignore[method-assign]
    assert cold.offsets() == list(range(11))
    assert copies.forgotten == [key]
    copies.copies[key] = Copied(bytes(bad), good.index)
    copies.forget = forget  # type: ignore[method-assign]
    with pytest.raises(Corruption):
        cold.offsets()
    assert copies.forgotten == [key, key]


def test_objects_that_are_missing_are_said_to_be(cold: Shard, copies: CopiedStore) -> None:
    meta = cold.status.segments[1]
    assert meta.tier is not None
    del copies.copies[meta.tier.key]
    with pytest.raises(Corruption, match="not in the object store"):
        cold.read(4)
    assert [record.offset for record in cold.read(6)] == [6, 7, 8, 9, 10]


def test_verification_lists_what_it_does_not_read(cold: Shard, copies: CopiedStore) -> None:
    verifier = cold.lab.store.verifier
    length = sum(meta.length for meta in cold.status.segments if not meta.is_local)
    before = copies.read_count
    result = verifier.verify(cold.name)
    assert result.findings == ()
    assert (result.store_only_count, result.store_only_bytes) == (3, length)
    assert copies.read_count == before
    asked = verifier.verify(
        cold.name,
        check_copies=lambda spec, metas: ["is gone" if each.seq == 1 else None for each in metas],
    )
    assert [(each.segment_seq, each.message) for each in asked.findings] == [(1, "is gone")]


def test_tiered_topics_take_nothing_while_too_much_waits(cold: Shard) -> None:
    refusal = StoreUnavailable("file:///nowhere", "too much waits")
    cold.engine.refuse_tiered(refusal)
    with pytest.raises(StoreUnavailable):
        cold.append(_record(11))
    other = cold.lab.shard()
    other.append_values(b"not tiered")
    cold.engine.refuse_tiered(None)
    cold.append(_record(11))
    assert cold.end == 12


def test_a_tiered_topic_is_not_compacted() -> None:
    with pytest.raises(InvalidArgument, match=r"cleanup\.policy=compact"):
        TopicConfig.from_options({"tiering": "on", "cleanup.policy": "compact,delete"})


# Metadata that cannot be written ----------------------------------------------------------------


def test_a_change_whose_answer_got_lost_is_found_in_the_metadata(cold: Shard) -> None:
    seal(cold)
    with lost_answers(cold.lab.store.meta, happens=True) as lost:
        send(cold, 3)
    assert lost.lost_count
    assert places(cold) == [False] * 4 + [True]
    assert cold.offsets() == list(range(11))
    cold.delete_before(10)
    assert cold.start == 10


def test_a_change_that_did_not_happen_is_tried_again(cold: Shard) -> None:
    seal(cold)
    with (
        lost_answers(cold.lab.store.meta, happens=False),
        pytest.raises(StorageFailed) as caught,
    ):
        send(cold, 3)
    assert not caught.value.is_outcome_unknown
    assert cold.status.segments[3].tier is None
    cold.append(_record(11))
    send(cold, 3)
    assert cold.offsets() == list(range(12))


@pytest.mark.parametrize("then", ["retention", "another copy", "a local drop"])
def test_a_change_of_which_nobody_knows_is_taken_over_later(
    cold: Shard, copies: CopiedStore, then: str
) -> None:
    seal(cold)
    engine, name = cold.engine, cold.name
    if then == "a local drop":
        upload(copies, engine, name, 3)
    meta = cold.lab.store.meta
    with lost_answers(meta, happens=True, is_blind=True), pytest.raises(StorageFailed):
        engine.drop_local(name, 3) if then == "a local drop" else begin(engine, name, 3)
    if then == "retention":
        cold.delete_before(11)
    elif then == "another copy":
        send(cold, 3)
    else:
        engine.drop_local(name, 3)  # Nothing is left to do, and nothing to be seen of it.
        assert places(cold)[3] is False
    assert cold.offsets() == list(range(cold.start, 11))
    cold.append(_record(11))
    cold.lab.crash()
    assert cold.lab.store.verifier.verify(name).findings == () or then == "a local drop"
    cold.read(cold.start)
    assert cold.lab.store.verifier.verify(name).findings == ()


# Drops under readers --------------------------------------------------------------------------


class _Dropping:
    """A segment's index that is emptied just as it is asked for the first time."""

    def __init__(self, shard: Shard, segment: Segment) -> None:
        self._inner = segment.index
        self._shard = shard
        self._seq = segment.meta.seq
        self.has_dropped = False

    def __getattr__(self, name: str) -> object:
        if not self.has_dropped:
            self.has_dropped = True
            self._shard.engine.drop_local(self._shard.name, self._seq)
        return getattr(self._inner, name)


@pytest.mark.parametrize("question", ["key", "tag", "time", "offset", "stored"])
def test_an_index_that_is_emptied_under_a_reader_is_not_taken_for_empty(
    cold_lab: Lab, copies: CopiedStore, question: str
) -> None:
    shard = cold_lab.shard({**OPTIONS, "index.tag": "true"})
    for number in range(4):
        shard.append(_record(number))
    seal(shard)
    upload(copies, shard.engine, shard.name, 0)
    engine = shard.engine
    assert isinstance(engine, LogEngine)
    segment = engine.log(shard.name).view.segments[0]
    segment.index = dropping = _Dropping(shard, segment)  # type: ignore[assignment]
    answers: dict[str, Callable[[], object]] = {
        "key": lambda: shard.by_key(b"k1").offset,
        "tag": lambda: shard.tagged("odd", 1)[0],
        "time": lambda: shard.at_time(1000),
        "offset": lambda: shard.read(1).records()[0].offset,
        "stored": lambda: decode([content(checked(shard, 1))]).records()[0].offset,
    }
    assert answers[question]() == 1
    assert dropping.has_dropped
    assert places(shard) == [False, True]
