"""Nothing above the high watermark is seen in any way; what is acknowledged is below it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from firnmq.config import StorageType
from firnmq.disk import Ticket, run_blocking
from firnmq.engines import AdapterOffsetStrategy, Appended
from firnmq.engines.shardlog import ShardLog
from firnmq.errors import (
    Closed,
    KeyNotFound,
    OffsetOutOfRange,
    ShardNotFound,
    StorageFailed,
    TimedOut,
)
from firnmq.index import RocksSegmentIndex
from firnmq.record import NewRecord, encode
from firnmq.record.deletion import Deletion
from firnmq.testing import LaggingReplication
from tests.conformance.conftest import STORAGE_TYPES
from tests.conformance.lab import EVERYTHING, Lab, Shard
from tests.conformance.stored import checked, content, nowait
from tests.unit.engines.transactional import TransactionalProducer

NOW_MS = 1_700_000_000_000
KEYS = [b"a", b"b", b"c", b"long" * 40]
TAGS = ["red", "blue"]


@pytest.fixture(params=STORAGE_TYPES)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param, replication=LaggingReplication())
    yield lab
    lab.close()


@pytest.fixture
def reference(lab: Lab, tmp_path: Path) -> Iterator[Shard]:
    """A shard of the same engine in a store with one replica."""
    plain = Lab(tmp_path / "reference", lab.kind)
    yield plain.shard()
    plain.close()


@pytest.fixture
def durable_lab(lab: Lab) -> Lab:
    if lab.storage_type == StorageType.MEMORY.value:
        pytest.skip("memory promises nothing")
    return lab


def replication_of(lab: Lab) -> LaggingReplication:
    assert lab.replication is not None
    return lab.replication


def log_of(shard: Shard) -> ShardLog:
    return shard.engine.log(shard.name)  # type: ignore[attr-defined,no-any-return]


def submit_marker(shard: Shard, producer: TransactionalProducer, *, is_commit: bool) -> None:
    """Ends a transaction above the high watermark, in a thread that waits for it."""
    end = producer.commit if is_commit else producer.abort
    before = log_of(shard).tail.next_offset
    threading.Thread(target=end, args=(shard,), daemon=True).start()
    replication_of(shard.lab).wait_until_durable(log_of(shard), before + 1)


def records(*numbers: int, key: bytes | None = None, tag: str | None = None) -> list[NewRecord]:
    return [
        NewRecord(
            value=b"value %d" % number,
            key=KEYS[number % len(KEYS)] if key is None else key,
            tags=(TAGS[number % len(TAGS)] if tag is None else tag,),
            timestamp_ms=NOW_MS + number,
        )
        for number in numbers
    ]


def batch(*numbers: int, **fields: object) -> bytes:
    return bytes(encode(records(*numbers, **fields), now_ms=NOW_MS))  # type: ignore[arg-type]


def append_above(shard: Shard, *batches: bytes) -> list[Ticket[Appended]]:
    """Appends batches, each in a turn of its own, while the high watermark is held."""
    tickets = []
    for each in batches:
        count = int.from_bytes(each[57:61], "big")
        end = log_of(shard).tail.next_offset + count
        tickets.append(run_blocking(shard.engine.submit(shard.name, each)))
        replication_of(shard.lab).wait_until_durable(log_of(shard), end)
    return tickets


def is_answered(ticket: Ticket[Appended]) -> bool:
    try:
        ticket.wait(0)
    except TimedOut:
        return False
    return True


def seen(shard: Shard) -> dict[str, object]:
    """What every way to read gives."""
    engine, name = shard.engine, shard.name
    status = shard.status
    start, end = engine.bounds(name)
    found: dict[str, object] = {
        "bounds": (start, end, engine.stable_offset(name)),
        "status": (
            (status.start_offset, status.end_offset, status.stable_offset),
            (status.length_bytes, status.max_timestamp),
            [(meta.base_offset, meta.state) for meta in status.segments],
        ),
        "offset": [(each.offset, each.value) for each in shard.records()],
        "tags": {tag: shard.tagged(tag) for tag in TAGS},
        "refused": _refused(shard, end + 1),
        "survey": engine.survey(
            name,
            lambda each: (
                (each.start_offset, each.end_offset, each.stable_offset),
                [(part.end_offset, part.length) for part in each.segments],
                each.aborted,
            ),
        ),
    }
    for key in KEYS:
        with suppress(KeyNotFound):
            found[f"key {key!r}"] = shard.by_key(key).offset
        history = engine.read_key_history(
            name, key, start, max_records=EVERYTHING, max_bytes=EVERYTHING
        )
        found[f"history {key!r}"] = [each.offset for each in history.records()], history.next_offset
    for committed in (False, True):
        page = engine.read_batches(name, start, max_bytes=EVERYTHING, committed=committed)
        found[f"raw {committed}"] = b"".join(page.batches), page.next_offset, page.end_offset
        found[f"aborted {committed}"] = page.aborted, page.stable_offset
        found[f"newest {committed}"] = engine.newest_record(name, committed=committed)
        for time in range(NOW_MS - 1, NOW_MS + 12):
            for strategy in AdapterOffsetStrategy:
                found[f"time {committed} {time} {strategy}"] = engine.get_offset_by_timestamp(
                    name, time, strategy, committed=committed
                )
        for ranges in (False, True):
            for read in (nowait, checked):
                page_or_none = read(shard, start, committed=committed, ranges=ranges)
                if page_or_none is not None:
                    what = f"{read.__name__} {committed} {ranges}"
                    found[what] = content(page_or_none), page_or_none.next_offset
    checks = shard.lab.store.verifier.verify(name)
    found["verify"] = checks.findings, checks.record_count, checks.checked_bytes
    return found


def with_waiting(found: dict[str, object]) -> dict[str, object]:
    """Without what may be read without waiting: a reopened log reads and checks its bytes first."""
    return {what: each for what, each in found.items() if not what.startswith("nowait")}


def _refused(shard: Shard, offset: int) -> tuple[int, int] | None:
    try:
        shard.read(offset)
    except OffsetOutOfRange as error:
        return error.start, error.end
    return None


def test_each_step_of_the_mark_shows_what_is_below_it(lab: Lab, reference: Shard) -> None:
    """1. A log and a reference get the same batch; what follows is held back in the log.
    2. Nothing that can be read differs from before.
    3. The mark moves from batch to batch; the reference gets each batch; the two look the same."""
    shard = lab.shard()
    for each in (shard, reference):
        each.append_raw(batch(1, 2, 3))
    assert seen(shard) == seen(reference)
    more = [batch(4, 5), batch(6, tag="red"), batch(2, 3, key=b"a"), batch(11, key=b"long" * 40)]
    with replication_of(lab).held():
        append_above(shard, *more)
        assert seen(shard) == seen(reference)
        for each in more:
            log_of(shard).advance(reference.append_raw(each).next_offset)
            assert seen(shard) == seen(reference)


def test_the_mark_moves_in_steps(lab: Lab) -> None:
    shard = lab.shard()
    with replication_of(lab).held():
        tickets = append_above(shard, batch(1, 2), batch(3, 4, 5), batch(6))
        log = log_of(shard)
        steps: list[tuple[int, int, int]] = [(0, 0, 0), (1, 0, 0), (2, 2, 1), (4, 2, 1), (5, 5, 2)]
        for high_watermark, end, answered in steps:
            log.advance(high_watermark)
            assert shard.end == end
            assert [is_answered(each) for each in tickets] == [n < answered for n in range(3)]
        log.advance(3)
        assert shard.end == 5, "the mark never moves back"
        assert tickets[1].wait() == Appended(base_offset=2, next_offset=5)
    assert tickets[2].wait().next_offset == shard.end == 6


def test_a_key_whose_newest_record_is_above_the_mark(lab: Lab) -> None:
    shard = lab.shard()
    for number in range(5):
        shard.append_raw(batch(number, key=b"a"))
    with replication_of(lab).held():
        tickets = append_above(shard, batch(7, key=b"a"), batch(8, key=b"a"))
        assert shard.by_key(b"a").offset == 4
        log_of(shard).advance(6)
        assert shard.by_key(b"a").offset == 5
    tickets[-1].wait()
    assert shard.by_key(b"a").offset == 6


@pytest.mark.parametrize("is_commit", [False, True])
def test_transactions_are_as_of_the_mark(lab: Lab, reference: Shard, is_commit: bool) -> None:
    """The end of a transaction above the mark leaves it open, whatever became of it."""
    shard = lab.shard()
    for each in (shard, reference):
        producer = TransactionalProducer(7)
        each.append_raw(producer.batch(each, *records(1, 2)))
        each.append_raw(batch(3))
    with replication_of(lab).held():
        submit_marker(shard, producer, is_commit=is_commit)
        append_above(shard, batch(4))
        assert seen(shard) == seen(reference)
        log_of(shard).advance(4)
        (producer.commit if is_commit else producer.abort)(reference)
        assert seen(shard) == seen(reference)
        log_of(shard).advance(5)
    assert shard.offsets() == ([0, 1, 2, 4] if is_commit else [2, 4])


def test_a_repeated_batch_is_acknowledged_with_the_first(lab: Lab) -> None:
    shard = lab.shard()
    producer = TransactionalProducer(7)
    first = producer.batch(shard, *records(1, 2), transactional=False)
    second = producer.batch(shard, *records(3), transactional=False)
    with replication_of(lab).held():
        tickets = append_above(shard, first, second)
        repeated = run_blocking(shard.engine.submit(shard.name, first))
        other = lab.shard()  # Its turn comes after that of the repeated batch or in it.
        append_above(other, batch(1))
        append_above(shard, batch(5))
        assert not is_answered(repeated)
        log_of(shard).advance(2)
        assert [is_answered(each) for each in (*tickets, repeated)] == [True, False, False]
    assert repeated.wait() == tickets[0].wait() == Appended(base_offset=0, next_offset=2)
    again = shard.append_raw(first)
    assert again == Appended(base_offset=0, next_offset=2), "below the mark it is answered at once"


def test_the_mark_moves_while_the_lock_is_held(lab: Lab) -> None:
    shard = lab.shard()
    with replication_of(lab).held():
        tickets = append_above(shard, batch(1))
        log = log_of(shard)
        with log.lock:  # As during a sync.
            log.advance(1)
        assert shard.end == 1
        assert is_answered(tickets[0])


def test_watchers_wake_with_the_mark(lab: Lab) -> None:
    shard = lab.shard()
    woken: Ticket[None] = run_blocking(_ticket())
    assert shard.engine.watch(shard.name, 0, woken)
    with replication_of(lab).held():
        append_above(shard, batch(1))
        with pytest.raises(TimedOut):
            woken.wait(0)
        log_of(shard).advance(1)
        woken.wait(0)
        assert not shard.engine.watch(shard.name, 0, run_blocking(_ticket()))


async def _ticket() -> Ticket[None]:
    return Ticket()


def test_what_is_acknowledged_can_be_read(lab: Lab) -> None:
    shard = lab.shard()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for step in range(15):
                key = b"key %d" % number
                stored = shard.append(NewRecord(value=b"%d" % step, key=key, tags=("red",)))
                assert shard.end >= stored.next_offset
                assert shard.by_key(key).offset == stored.base_offset
                assert shard.read(stored.base_offset, max_records=1).records()[0].key == key
                assert shard.tagged("red", stored.base_offset)[0] == stored.base_offset
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_the_index_ends_at_the_mark(durable_lab: Lab, durability: str) -> None:
    shard = durable_lab.shard({"durability": durability})
    shard.append_raw(batch(1, 2))
    with replication_of(durable_lab).held():
        append_above(shard, batch(3), batch(4))
        durable_lab.engine.housekeep()  # Syncs what durability=os left to the system.
        log = log_of(shard)
        log.advance(3)
        index = log.tail.segment.index
        assert isinstance(index, RocksSegmentIndex)
        checkpoint = index.checkpoint()
        assert checkpoint is not None
        assert checkpoint.indexed_upto == 3
        assert checkpoint.next_offset <= 3
        indexed = list(index.keys())
        assert {offset for _, offset, _ in indexed} == {0, 1, 2}


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_crash_while_the_mark_is_behind(
    durable_lab: Lab, reference: Shard, durability: str
) -> None:
    """A node that is alone again shows all that it has, with indexes to match."""
    shard = durable_lab.shard({"durability": durability})
    shard.append_raw(batch(1, 2))
    with replication_of(durable_lab).held():
        append_above(shard, batch(3), batch(1, 2))
        log_of(shard).advance(3)
        durable_lab.crash()
    for each in (batch(1, 2), batch(3), batch(1, 2)):
        reference.append_raw(each)
    assert with_waiting(seen(shard)) == with_waiting(seen(reference))


def test_truncation_to_the_mark(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_raw(batch(1, 2))
    before = seen(shard)
    with replication_of(lab).held():
        tickets = append_above(shard, batch(3), batch(1))
        shard.truncate(2)
        assert with_waiting(seen(shard)) == with_waiting(before)
        for ticket in tickets:
            with pytest.raises(StorageFailed, match="truncated"):
                ticket.wait()
    assert shard.append_raw(batch(9)).base_offset == 2
    assert shard.by_key(KEYS[1]).offset == 2


def test_a_start_that_moves_while_the_mark_is_behind(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_raw(batch(1, 2, 3))
    with replication_of(lab).held():
        tickets = append_above(shard, batch(4))
        shard.delete_before(2)
        assert shard.offsets() == [2]
        with pytest.raises(OffsetOutOfRange):
            shard.delete_before(4)
    tickets[0].wait()
    assert (shard.start, shard.end) == (2, 4)
    assert shard.offsets() == [2, 3]


def delete_above(shard: Shard, deletion: Deletion) -> Ticket[Appended]:
    """Appends the entry of a deletion, and returns when it is durable here."""
    log = log_of(shard)
    end = log.tail.next_offset
    (ticket,) = run_blocking(shard.engine.submit_deletion(shard.name, deletion))  # type: ignore[attr-defined]
    replication_of(shard.lab).wait_until_durable(log, end + 1)
    return ticket


def test_a_deletion_counts_once_the_mark_passes_its_entry(lab: Lab) -> None:
    """1. Records are deleted while the mark stays behind. 2. No read knows of it, whatever else is
    shown. 3. The mark passes the entries: all reads do."""
    shard = lab.shard()
    shard.append_raw(batch(1, 2, 1, 3))
    before = seen(shard)
    with replication_of(lab).held():
        tickets = [delete_above(shard, Deletion((3,)))]
        tickets.append(delete_above(shard, Deletion((), ((KEYS[1], 4),))))
        assert with_waiting(seen(shard)) == with_waiting(before)
        log = log_of(shard)
        log.advance(5)
        tickets[0].wait()
        assert shard.offsets() == [0, 1, 2]
        assert shard.by_key(KEYS[1]).offset == 2
        log.advance(6)
        tickets[1].wait()
        assert shard.offsets() == shard.raw_offsets() == [1]
        with pytest.raises(KeyNotFound):
            shard.by_key(KEYS[1])
    assert shard.end == 6


def test_a_deletion_above_the_mark_goes_with_the_tail(durable_lab: Lab) -> None:
    """1. The entry of a deletion waits for the mark when the log is truncated. 2. Its records are
    there, and stay when the log is reopened."""
    shard = durable_lab.shard()
    shard.append_raw(batch(1, 2))
    with replication_of(durable_lab).held():
        ticket = delete_above(shard, Deletion((0,)))
        shard.truncate(2)
        with pytest.raises(StorageFailed, match="truncated"):
            ticket.wait()
    shard.append_raw(batch(3))
    assert shard.offsets() == [0, 1, 2]
    durable_lab.reopen()
    assert shard.offsets() == [0, 1, 2]


def test_the_start_moves_while_a_deletion_waits_for_the_mark(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_raw(batch(1, 2, 3, 4))
    shard.delete(0, 3)
    with replication_of(lab).held():
        ticket = delete_above(shard, Deletion((1, 2)))
        shard.delete_before(2)
        assert shard.offsets() == [2]
    ticket.wait()
    assert shard.offsets() == []
    lab.reopen()
    if lab.storage_type != StorageType.MEMORY.value:
        assert (shard.start, shard.end, shard.offsets()) == (2, 6, [])


def _delete(shard: Shard) -> None:
    shard.engine.delete_shard(shard.name)


def _close(shard: Shard) -> None:
    shard.lab.store.close()


@pytest.mark.parametrize(("end", "error"), [(_delete, ShardNotFound), (_close, Closed)])
def test_no_append_waits_for_a_mark_that_stops(
    lab: Lab, end: Callable[[Shard], None], error: type[Exception]
) -> None:
    shard = lab.shard()
    with replication_of(lab).held():
        tickets = append_above(shard, batch(1), batch(2))
        end(shard)
        for ticket in tickets:
            with pytest.raises(error):
                ticket.wait()


def test_an_index_that_cannot_be_written_closes_the_log(
    durable_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is shown or acknowledged; what was above the mark is cut off by the reopening."""
    shard = durable_lab.shard()
    shard.append_raw(batch(1))
    with replication_of(durable_lab).held():
        tickets = append_above(shard, batch(2))
        log = log_of(shard)

        def refuse(_: object) -> None:
            raise OSError("told to fail")

        with monkeypatch.context() as patched:
            patched.setattr(log.backend, "commit_entries", refuse)
            log.advance(2)
        assert shard.end == 1
        with pytest.raises(StorageFailed, match="told to fail"):
            tickets[0].wait()
    assert shard.append_raw(batch(3)).base_offset == 1
    assert shard.by_key(KEYS[3]).offset == 1
