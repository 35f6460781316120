"""The memory engine keeps within its limit, whoever appends to whatever."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from firnmq.brokers.net.frame_buffers import FrameBuffers
from firnmq.config import StoreConfig
from firnmq.engines.catalog.segments import SegmentState
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import DiskFull, LimitExceeded
from firnmq.record import NewRecord, encode
from tests.conformance.lab import Lab, Shard

LIMIT = 50_000


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, "EngineMemory", config=StoreConfig(memory_bytes=LIMIT))
    yield lab
    lab.close()


def held(lab: Lab) -> int:
    keeper = lab.engine._keeper  # type: ignore[attr-defined]
    assert keeper._reserved == 0
    assert keeper._held_total == sum(keeper._held.values())
    return int(keeper._held_total)


def rich(number: int, size: int = 500) -> NewRecord:
    return NewRecord(value=b"%0*d" % (size, number), key=b"k%d" % number, tags=("a", "b"))


def test_the_oldest_goes_and_the_newest_stays(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 4096})
    for number in range(500):
        shard.append(rich(number))
        assert held(lab) <= LIMIT
    assert shard.end == 500
    assert 0 < shard.start < 480
    assert [int(value or b"") for value in shard.values()] == list(range(shard.start, 500))
    assert held(lab) > LIMIT // 2


def test_an_active_segment_is_rolled_when_nothing_is_sealed(lab: Lab) -> None:
    shard = lab.shard()
    for number in range(200):
        shard.append(rich(number))
        assert held(lab) <= LIMIT
    assert shard.offsets() == list(range(shard.start, 200))


def test_a_small_shard_gives_way_to_a_large_one_only_by_age(lab: Lab) -> None:
    old, busy = lab.shard(), lab.shard({"segment.bytes": 4096})
    old.append(rich(0))
    old.roll()
    lab.clock.advance(1)
    for number in range(300):
        busy.append(rich(number))
        assert held(lab) <= LIMIT
    assert old.start == old.end == 1
    assert busy.end == 300


def test_a_request_larger_than_the_limit_is_refused(lab: Lab) -> None:
    shard = lab.shard()
    shard.append(rich(0))
    with pytest.raises(LimitExceeded):
        shard.append(*(rich(number, 5000) for number in range(20)))
    assert shard.offsets() == [0]


def test_room_that_was_given_back_can_be_used_again(lab: Lab) -> None:
    """Deleting records, cutting and deleting shards all count at once."""
    kept, moved, cut, dropped = (lab.shard() for _ in range(4))
    kept.append(rich(0))
    for shard in (moved, cut, dropped):
        for number in range(12):
            shard.append(rich(number))
    before = held(lab)
    moved.roll()
    moved.delete_before(12)
    cut.truncate(0)
    lab.engine.delete_shard(dropped.name)
    assert held(lab) < before // 10
    for number in range(30):
        moved.append(rich(number))
    assert kept.offsets() == [0]


def test_spilled_segments_take_no_memory_and_stay_readable(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 4096, "memory.overflow": "spill"})
    for number in range(300):
        shard.append(rich(number))
        assert held(lab) <= LIMIT
    assert (shard.start, shard.end) == (0, 300)
    assert [int(value or b"") for value in shard.values()] == list(range(300))
    assert shard.by_key(b"k3").offset == 3
    assert shard.tagged("a") == list(range(300))
    lab.engine.housekeep()
    assert held(lab) < 10_000


def test_threads_together_keep_the_limit(lab: Lab) -> None:
    shards = [lab.shard({"segment.bytes": 4096}) for _ in range(4)]
    peaks: list[int] = []

    def write(shard: Shard) -> Callable[[], None]:
        def run() -> None:
            keeper = lab.engine._keeper  # type: ignore[attr-defined]
            for number in range(150):
                shard.append(rich(number))
                peaks.append(keeper._held_total)

        return run

    threads = [threading.Thread(target=write(shard)) for shard in shards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(peaks) <= LIMIT
    assert held(lab) <= LIMIT
    for shard in shards:
        assert shard.end == 150
        assert shard.offsets() == list(range(shard.start, 150))


async def test_tasks_that_are_cancelled_while_they_wait_for_room(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 4096, "memory.overflow": "spill"})
    tasks = [
        asyncio.ensure_future(shard.engine.append(shard.name, [rich(number)]))
        for number in range(200)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks[::3]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert held(lab) <= LIMIT
    stored = [each for each in done if not isinstance(each, BaseException)]
    assert len(stored) >= 133
    assert shard.offsets() == list(range(shard.end))


def test_a_full_disk_is_told_to_the_writer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = lab.shard({"segment.bytes": 4096, "memory.overflow": "spill"})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with suppress(DiskFull):
            for number in range(300):
                shard.append(rich(number))
            raise AssertionError("nothing was spilled")
        assert shard.offsets() == list(range(shard.end)), "what was stored is still there"
    end = shard.end
    shard.append(rich(end))
    assert shard.offsets() == list(range(end + 1))


def test_what_a_crash_left_of_dropped_segments_is_removed(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 4096, "memory.overflow": "spill"})
    for number in range(60):
        shard.append(rich(number))
    lab.engine.housekeep()
    segments = shard.status.segments
    spec = shard.status.spec
    state = lab.store.state
    # As if the process had ended between moving the start and removing the bytes.
    state.move_start(spec.uid, segments[1].end_offset, list(segments[:2]))
    folder = lab.path / "segments" / shard.name
    before = len(list(folder.iterdir()))
    lab.reopen()
    assert shard.start == segments[1].end_offset
    assert len(list(folder.iterdir())) == before - 2
    assert lab.store.state.chain(spec.uid)[0].seq == segments[2].seq


def test_a_start_that_moves_past_a_copy_that_the_log_has_not_heard_of(lab: Lab) -> None:
    """1. A part of a move has reached the catalog before. 2. A copy was begun there, and the answer
    is lost. 3. The start moves on: the copy is remembered until its objects are gone."""
    shard = lab.shard({"segment.bytes": 4096, "memory.overflow": "spill"})
    for number in range(60):
        shard.append(rich(number))
    lab.engine.housekeep()
    first, second, third = shard.status.segments[:3]
    uid, state = shard.status.spec.uid, lab.store.state
    state.move_start(uid, first.end_offset, [first])
    copy = TierCopy(upload_id="0" * 16, key="somewhere", started_ms=0)
    state.change_copy(uid, second.with_copy(copy))
    lab.engine.delete_records_before(shard.name, third.end_offset)
    assert shard.start == third.end_offset
    left = {meta.seq: (meta.state, meta.tier) for meta in state.chain(uid)}
    assert left[second.seq] == (SegmentState.DELETED, copy)
    assert not {first.seq, third.seq} & left.keys()
    assert shard.offsets() == list(range(third.end_offset, 60))
    lab.reopen()
    assert shard.start == third.end_offset


@pytest.mark.parametrize("value_bytes", [1, 100, 3_000, 70_000])
def test_what_is_counted_is_what_is_held(tmp_path: Path, value_bytes: int) -> None:
    """Batches come as views of frames, whose buffers are larger than what is in them."""
    lab = Lab(tmp_path, "EngineMemory", config=StoreConfig(memory_bytes=100_000_000))
    shard = lab.shard()
    buffers = FrameBuffers(1_000_000)
    for number in range(50):
        batch = encode([NewRecord(value=b"%0*d" % (value_bytes, number))], now_ms=0)
        frame = buffers.take(len(batch) + 100)
        frame[100:] = batch
        shard.append_raw(memoryview(frame)[100:])  # type: ignore[arg-type]
        shard.append(NewRecord(value=b"%0*d" % (value_bytes, number)))
        del frame
    content = lab.engine.log(shard.name).segments[-1].bytes  # type: ignore[attr-defined]
    kept = content.read(0, content.length())
    assert len(kept) == 100
    assert not any(isinstance(batch, memoryview) for batch in kept)
    real = sum(map(sys.getsizeof, kept))
    assert content.length() < real <= held(lab)
    assert held(lab) - content.length() < 100 * 200 + 2_000
    ends = [int((value or b"")[-2:]) for value in shard.values()]
    assert ends == sorted([*range(50), *range(50)])
    lab.close()
