"""A metadata store that takes its time holds up the shards that roll, and no other."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.disk import run_blocking
from firnmq.engines import Acks
from firnmq.engines.inline import may_run_turn
from firnmq.engines.shardlog.rolling import RollState
from firnmq.errors import (
    AppendTimedOut,
    ShardNotFound,
    StorageFailed,
)
from firnmq.record import NewRecord, encode
from tests.unit.engines.shardlog.held_bench import SEGMENT_BYTES, WAIT_S, Bench


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data", request.param)
    bench.shard("rolling")
    bench.shard("other", **{"segment.bytes": 2**20})
    yield bench
    bench.close()


def test_only_the_shard_that_rolls_waits(bench: Bench) -> None:
    bench.meta.hold()
    # 1. A shard is full; the transaction of its roll gets no answer.
    count = bench.fill("rolling")
    bench.meta.wait_until_held()
    # 2. Appends to it wait, in order, and another shard of the same worker goes on.
    parked = [bench.threads.submit(bench.append, "rolling", count)]
    bench.wait_until_parked("rolling", 1)
    for number in range(count + 1, count + 10):
        parked.append(bench.threads.submit(bench.append, "rolling", number))
        bench.wait_until_parked("rolling", len(parked))
    for number in range(100):
        bench.append("other", number)
    assert not any(each.done() for each in parked)
    # 3. What it has is readable all the time.
    assert bench.numbers("rolling") == list(range(count))
    # 4. The answer comes.
    bench.meta.release()
    assert [each.result(WAIT_S) for each in parked] == list(range(count, count + 10))
    assert bench.numbers("rolling") == list(range(count + 10))
    assert bench.log("rolling").segments[0].meta.end_offset == count


def test_many_shards_roll_at_the_same_time(bench: Bench) -> None:
    shards = [bench.shard(f"s{number}") for number in range(4)]
    bench.meta.hold()
    counts = [bench.fill(shard) for shard in shards]
    bench.meta.wait_until_held(4)
    bench.append("other", 0)
    bench.meta.release()
    for shard, count in zip(shards, counts, strict=True):
        assert bench.append(shard, count) == count
        assert bench.numbers(shard) == list(range(count + 1))


def test_a_segment_takes_a_tenth_more_and_not_a_byte(bench: Bench) -> None:
    bench.shard("large")
    for number in range(300):
        bench.append("large", number, size=1 + number * 7 % 150)
    bench.append("large", 300, size=5 * SEGMENT_BYTES)
    bench.append("large", 301)
    segments = bench.log("large").view.segments
    lengths = [each.meta.length for each in segments[:-1]]
    single = [each for each in segments[:-1] if each.meta.end_offset - each.meta.base_offset == 1]
    assert max(each.meta.length for each in single) > 5 * SEGMENT_BYTES
    assert max(each for each in lengths if each < 5 * SEGMENT_BYTES) <= SEGMENT_BYTES * 11 // 10
    assert min(lengths[:-2]) > SEGMENT_BYTES - 300
    assert bench.numbers("large") == list(range(302))


def test_parked_appends_have_deadlines(bench: Bench) -> None:
    bench.meta.hold()
    count = bench.fill("rolling")
    bench.meta.wait_until_held()
    batch = bytes(encode([NewRecord(value=b"late")], now_ms=5))

    async def submit() -> None:
        deadline_s = time.monotonic() + 0.05
        ticket = await bench.engine.submit("rolling", batch, Acks.ALL, deadline_s)
        with pytest.raises(AppendTimedOut) as caught:
            await ticket
        assert not caught.value.is_unknown, "nothing was stored"

    asyncio.run(submit())
    assert not bench.log("rolling").parked
    bench.meta.release()
    assert bench.append("rolling", count) == count
    assert bench.numbers("rolling") == list(range(count + 1))


def test_a_full_budget_makes_appends_to_rolling_shards_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.log("rolling").backend.parking, "_max_requests", 2)
    bench.meta.hold()
    count = bench.fill("rolling")
    bench.meta.wait_until_held()
    waiting = []
    for number in range(count, count + 2):
        waiting.append(bench.threads.submit(bench.append, "rolling", number))
        bench.wait_until_parked("rolling", len(waiting))
    # A third one is not queued: its sender waits for room.
    batch = bytes(encode([NewRecord(value=b"3")], now_ms=5))

    async def submit(deadline_s: float) -> None:
        await bench.engine.submit("rolling", batch, Acks.ALL, deadline_s)

    with pytest.raises(AppendTimedOut):
        asyncio.run(submit(time.monotonic() + 0.05))
    with pytest.raises(AppendTimedOut):
        run_blocking(submit(time.monotonic() + 0.05))
    bench.append("other", 0)
    waiting.append(bench.threads.submit(bench.append, "rolling", count + 2))
    bench.meta.release()
    assert [each.result(WAIT_S) for each in waiting] == list(range(count, count + 3))
    assert bench.log("rolling").backend.parking.count == 0


def test_a_deleted_shard_fails_its_parked_appends(bench: Bench) -> None:
    bench.meta.hold()
    count = bench.fill("rolling")
    bench.meta.wait_until_held()
    parked = bench.threads.submit(bench.append, "rolling", count)
    bench.wait_until_parked("rolling", 1)
    deleting = bench.threads.submit(bench.engine.delete_shard, "rolling")
    with pytest.raises(ShardNotFound):
        parked.result(WAIT_S)
    assert not deleting.done(), "the transaction of the roll is waited for"
    bench.meta.release()
    deleting.result(WAIT_S)
    assert not bench.meta.range("segments/rolling/").entries
    bench.append("other", 0)
    # The name can be used again.
    bench.shard("rolling")
    assert bench.append("rolling", 0) == 0


def test_other_changes_of_the_shard_wait_for_the_roll(bench: Bench) -> None:
    bench.meta.hold()
    count = bench.fill("rolling")
    bench.meta.wait_until_held()
    changes = [
        bench.threads.submit(bench.engine.delete_records_before, "rolling", 2),
        bench.threads.submit(bench.engine.delete_by_offset, "rolling", [5]),
        bench.threads.submit(bench.engine.housekeep),
        bench.threads.submit(bench.engine.roll, "rolling"),
    ]
    bench.append("other", 0)
    bench.meta.release()
    for change in changes:
        change.result(WAIT_S)
    assert bench.numbers("rolling") == [each for each in range(2, count) if each != 5]
    bench.engine.truncate("rolling", bench.engine.bounds("rolling")[1])


def test_the_store_closes_after_its_rolls_and_parked_appends(bench: Bench) -> None:
    bench.meta.hold()
    count = bench.fill("rolling")
    bench.meta.wait_until_held()
    parked = bench.threads.submit(bench.append, "rolling", count)
    bench.wait_until_parked("rolling", 1)
    closing = bench.threads.submit(bench.store.close)
    bench.meta.release()
    assert parked.result(WAIT_S) == count
    closing.result(WAIT_S)
    bench.open()
    assert bench.numbers("rolling") == list(range(count + 1))


@pytest.mark.parametrize("happens", [False, True])
def test_a_transaction_without_an_answer_closes_the_log_which_obeys_the_metadata(
    bench: Bench, happens: bool
) -> None:
    failure = StorageFailed("the meta store", OSError(5, "Input/output error"))
    failure.is_outcome_unknown = True
    bench.meta.hold()
    count = bench.fill("rolling")
    bench.meta.wait_until_held()
    parked = bench.threads.submit(bench.append, "rolling", count)
    bench.wait_until_parked("rolling", 1)
    bench.meta.refusal, bench.meta.happens = failure, happens
    bench.meta.release()
    with pytest.raises(StorageFailed):
        parked.result(WAIT_S)
    bench.wait_for("rolling", RollState.CLOSED)
    assert bench.numbers("rolling") == list(range(count)), "everything acknowledged is readable"
    bench.meta.refusal = None
    assert bench.append("rolling", count) == count
    bench.wait_for("rolling", RollState.IDLE)
    assert bench.numbers("rolling") == list(range(count + 1))
    bases = [each.meta.base_offset for each in bench.log("rolling").segments]
    assert bases == ([0, count] if happens else [0, count + 1])
    bench.store.close()
    bench.open()
    assert bench.numbers("rolling") == list(range(count + 1))


def test_an_explicit_roll_takes_over_one_that_is_only_wanted(bench: Bench) -> None:
    busy = [bench.shard(f"busy{number}") for number in range(4)]  # As many as there are threads.
    bench.meta.hold()
    for shard in busy:
        bench.fill(shard)
    bench.meta.wait_until_held(4)
    count = bench.fill("rolling")
    assert bench.log("rolling").rolling.state is RollState.WANTED
    rolling = bench.threads.submit(bench.engine.roll, "rolling")
    bench.meta.wait_until_held(5)
    bench.meta.release()
    rolling.result(WAIT_S)
    for shard in (*busy, "rolling"):
        bench.wait_for(shard, RollState.IDLE)
        assert len(bench.log(shard).segments) == 2
    assert bench.numbers("rolling") == list(range(count))


def test_a_check_waits_for_a_roll_that_is_wanted_or_under_way(bench: Bench) -> None:
    """A check that reads the chain before a roll and the shard's record after it finds a fault that
    is not there."""
    verify = bench.store.verifier.verify
    busy = [bench.shard(f"busy{number}") for number in range(4)]  # As many as there are threads.
    bench.meta.hold()
    for shard in busy:
        bench.fill(shard)
    bench.meta.wait_until_held(4)
    count = bench.fill("rolling")
    checks = [bench.threads.submit(verify, shard) for shard in (busy[0], "rolling")]
    bench.wait_until_waited_for(busy[0])
    bench.wait_until_waited_for("rolling")
    assert bench.log("rolling").rolling.state is RollState.WANTED
    bench.meta.release()
    under_way, wanted = [check.result(WAIT_S) for check in checks]
    assert (under_way.findings, under_way.segment_count) == ((), 2)
    assert (wanted.findings, wanted.segment_count) == ((), 2)
    assert wanted.record_count == count


def test_a_log_that_closes_ends_the_wait_for_its_roll(bench: Bench) -> None:
    busy = [bench.shard(f"busy{number}") for number in range(4)]
    bench.meta.hold()
    for shard in busy:
        bench.fill(shard)
    bench.meta.wait_until_held(4)
    bench.fill("rolling")
    waiting = bench.threads.submit(bench.engine.wait_for_roll, "rolling")
    bench.wait_until_waited_for("rolling")
    log = bench.log("rolling")
    with log.lock:
        log.fail(OSError("a failed sync"))
    waiting.result(WAIT_S)
    bench.meta.release()


def test_inline_appends_do_not_overtake_parked_ones(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "EngineSegment")
    bench.shard("rolling", durability="os")
    bench.shard("other", **{"segment.bytes": 2**20})
    try:
        log = bench.log("rolling")
        count = bench.fill("rolling")
        bench.wait_for("rolling", RollState.IDLE)
        assert may_run_turn(log) is False, "the new segment has no file"
        bench.meta.hold()
        stop, appended = threading.Event(), []

        async def produce(first: int) -> None:
            number = first
            while not stop.is_set():
                value = (b"%d " % number).ljust(100, b".")
                done = await bench.engine.append("rolling", [NewRecord(value=value)])
                appended.append(done.base_offset)
                number += 1

        running = bench.threads.submit(asyncio.run, produce(count))
        for _ in range(5):
            bench.meta.wait_until_held()
            bench.meta.release()
            bench.append("other", 0)
            bench.meta.hold()
        stop.set()
        bench.meta.release()
        running.result(WAIT_S)
        assert appended == list(range(count, count + len(appended)))
        assert bench.numbers("rolling") == list(range(count + len(appended)))
    finally:
        bench.close()
