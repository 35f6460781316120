"""Changes of a log that wait for the metadata or for the disk hold up neither its appends nor its
reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.errors import ShardNotFound, StorageFailed
from tests.unit.engines.shardlog.held_bench import SEGMENT_BYTES, WAIT_S, Bench

Change = Callable[[Bench], object]


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data", request.param)
    bench.shard("changing", **{"retention.bytes": 3 * SEGMENT_BYTES})
    bench.shard("other", **{"segment.bytes": 2**20})
    yield bench
    bench.close()


def filled(bench: Bench) -> int:
    """Fills five segments; how many records there are."""
    number = 0
    while len(bench.log("changing").segments) < 6:
        bench.append("changing", number)
        number += 1
        bench.engine.wait_for_roll("changing")
    return number


def trim(bench: Bench) -> object:
    return bench.engine.delete_records_before("changing", 60)


def retain(bench: Bench) -> object:
    return bench.engine.housekeep()


@pytest.mark.parametrize("change", [trim, retain])
def test_appends_and_reads_go_on_while_the_start_moves(bench: Bench, change: Change) -> None:
    # 1. The transaction that moves the start gets no answer.
    count = filled(bench)
    bench.meta.hold()
    changing = bench.threads.submit(change, bench)
    bench.meta.wait_until_held()
    # 2. Nothing has changed yet, and the shard takes records and deletions.
    for number in range(count, count + 10):
        assert bench.threads.submit(bench.append, "changing", number).result(WAIT_S) == number
    assert bench.numbers("changing") == list(range(count + 10))
    deleting = bench.threads.submit(bench.engine.delete_by_offset, "changing", [count + 1])
    assert deleting.result(WAIT_S) == [count + 1]
    # 3. Another change of the shard waits for the first.
    second = bench.threads.submit(bench.engine.roll, "changing")
    bench.wait_until_waited_for("changing")
    # 4. The answer comes.
    bench.meta.release()
    changing.result(WAIT_S)
    second.result(WAIT_S)
    start, end = bench.engine.bounds("changing")
    assert start > 0
    assert end == count + 11
    left = [each for each in range(start, count + 10) if each != count + 1]
    assert bench.numbers("changing") == left
    assert bench.store.verifier.verify("changing").findings == ()
    # 5. The same after the store was opened again.
    bench.store.close()
    bench.open()
    assert bench.engine.bounds("changing") == (start, end)
    assert bench.numbers("changing") == left


def test_appends_go_on_while_dropped_files_are_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = filled(bench)
    remove = bench.log("changing").backend.drop_segment
    at_work = []

    def drop_segment(*args: object) -> None:
        appending = bench.threads.submit(bench.append, "changing", count + len(at_work))
        at_work.append(appending.result(WAIT_S))
        remove(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.log("changing").backend, "drop_segment", drop_segment)
    trim(bench)
    assert at_work
    assert bench.engine.bounds("changing") == (60, count + len(at_work))


@pytest.mark.parametrize("happens", [False, True])
def test_an_append_that_fails_meanwhile_reopens_the_log_after_the_change(
    bench: Bench, happens: bool
) -> None:
    count = filled(bench)
    bench.meta.hold()
    changing = bench.threads.submit(trim, bench)
    bench.meta.wait_until_held()
    log = bench.log("changing")
    with log.lock:
        log.fail(OSError("a failed sync"))
    # Reopening reads the metadata, which must not change any more.
    appending = bench.threads.submit(bench.append, "changing", count)
    bench.wait_until_waited_for("changing")
    assert not appending.done()
    if not happens:
        bench.meta.refusal = StorageFailed("the meta store", OSError(5, "Input/output error"))
    bench.meta.release()
    if happens:
        assert changing.result(WAIT_S) == 0
    else:
        with pytest.raises(StorageFailed):
            changing.result(WAIT_S)
    bench.meta.refusal = None
    assert appending.result(WAIT_S) == count
    assert bench.log("changing") is not log
    assert bench.engine.bounds("changing") == (60 if happens else 0, count + 1)
    assert bench.store.verifier.verify("changing").findings == ()


def test_a_shard_is_deleted_after_a_change_that_is_under_way(bench: Bench) -> None:
    filled(bench)
    bench.meta.hold()
    changing = bench.threads.submit(trim, bench)
    bench.meta.wait_until_held()
    log = bench.log("changing")
    deleting = bench.threads.submit(bench.engine.delete_shard, "changing")
    bench.wait_until_waited_for("changing", log)
    bench.meta.release()
    changing.result(WAIT_S)
    deleting.result(WAIT_S)
    with pytest.raises(ShardNotFound):
        bench.engine.bounds("changing")
