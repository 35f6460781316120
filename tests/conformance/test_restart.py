"""What is there after a restart: everything of a durable engine, of memory what was spilled."""

import pytest

from firnmq.config import StorageType
from firnmq.engines import ShardStatus
from firnmq.errors import KeyNotFound
from firnmq.record import NewRecord, Record
from tests.conformance.lab import Lab, Shard


@pytest.fixture(params=["clean", "crash"])
def durable_lab(
    request: pytest.FixtureRequest, own_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> Lab:
    """A lab of a durable engine that reopens after a close, or as a killed process would."""
    if own_lab.storage_type == StorageType.MEMORY.value:
        pytest.skip("memory promises nothing; it has tests of its own")
    if request.param == "crash":
        monkeypatch.setattr(own_lab, "reopen", own_lab.crash)
    return own_lab


def everything(
    shard: Shard,
) -> tuple[ShardStatus, list[Record], list[Record], list[int], list[object]]:
    keys = []
    for key in (b"k0", b"k1", b"k2", b"k" * 200):
        try:
            keys.append(shard.by_key(key))
        except KeyNotFound:
            keys.append(None)
    times = [shard.at_time(moment) for moment in range(0, 120, 7)]
    return shard.status, shard.records(), shard.raw_records(), shard.tagged("t1"), [keys, times]


def rich(number: int) -> NewRecord:
    return NewRecord(
        value=b"%0150d" % number,
        key=b"k" * 200 if number % 5 == 4 else b"k%d" % (number % 5),
        tags=(f"t{number % 3}",),
        timestamp_ms=100 - number % 50,
    )


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_everything_is_as_it_was(durable_lab: Lab, durability: str) -> None:
    options = {"segment.bytes": 2048, "durability": durability, "durability.interval.ms": 3_600_000}
    shard = durable_lab.shard(options)
    for number in range(0, 60, 3):
        shard.append(rich(number), rich(number + 1), rich(number + 2))
    shard.delete(5, 58)
    shard.delete_key(b"k1")
    shard.append(rich(60), rich(61))
    shard.delete_before(4)
    before = everything(shard)
    assert len(before[0].segments) > 3
    durable_lab.reopen()
    assert everything(shard) == before
    assert shard.append(rich(62)).base_offset == 64
    assert shard.offsets()[-1] == 64


def test_a_log_goes_on_over_many_restarts(durable_lab: Lab) -> None:
    shard = durable_lab.shard({"segment.bytes": 1024})
    for number in range(5):
        shard.append(rich(2 * number))
        durable_lab.reopen()
        shard.append(rich(2 * number + 1))
        if number % 2:
            shard.roll()
    durable_lab.reopen()
    assert shard.values() == [rich(number).value for number in range(10)]
    assert shard.tagged("t0") == [0, 3, 6, 9]


def test_a_truncated_log_stays_truncated(durable_lab: Lab) -> None:
    shard = durable_lab.shard()
    for number in range(10):
        shard.append(rich(number))
    shard.delete(3)
    for number in range(11, 13):
        shard.append(rich(number))
    shard.delete(4, 11)
    shard.truncate(11)  # And with it the entry of the second deletion, but not of the first.
    assert shard.offsets() == [0, 1, 2, *range(4, 10)]
    durable_lab.reopen()
    assert (shard.end, shard.offsets()) == (11, [0, 1, 2, *range(4, 10)])
    shard.delete(*range(6))
    shard.truncate(6)
    durable_lab.reopen()
    assert (shard.end, shard.offsets()) == (6, [0, 1, 2, 3, 4, 5])
    shard.append(*(rich(number) for number in range(20, 24)))
    before = everything(shard)
    assert shard.offsets() == list(range(10))
    durable_lab.reopen()
    assert everything(shard) == before


def test_an_empty_shard_and_an_emptied_one(durable_lab: Lab) -> None:
    empty, emptied = durable_lab.shard(), durable_lab.shard()
    emptied.append(*(rich(number) for number in range(5)))
    emptied.roll()
    emptied.delete_before(5)
    durable_lab.reopen()
    assert (empty.start, empty.end) == (0, 0)
    assert (emptied.start, emptied.end, emptied.offsets()) == (5, 5, [])
    assert emptied.append(rich(5)).base_offset == 5
    durable_lab.reopen()
    assert emptied.offsets() == [5]


def test_retention_goes_on_after_a_restart(durable_lab: Lab) -> None:
    shard = durable_lab.shard({"retention.bytes": 1500, "segment.bytes": 1024})
    for number in range(20):
        shard.append(rich(number))
    durable_lab.reopen()
    durable_lab.engine.housekeep()
    start = shard.start
    assert start > 5
    assert shard.offsets() == list(range(start, 20))


class TestMemory:
    @pytest.fixture
    def memory_lab(self, own_lab: Lab) -> Lab:
        if own_lab.storage_type != StorageType.MEMORY.value:
            pytest.skip("only memory forgets")
        return own_lab

    def test_nothing_is_left(self, memory_lab: Lab) -> None:
        shard = memory_lab.shard()
        shard.append(*(rich(number) for number in range(20)))
        shard.delete(3)
        shard.delete_key(b"k1")
        shard.delete_before(2)
        memory_lab.reopen()
        assert (shard.start, shard.end, shard.offsets()) == (0, 0, [])
        shard.append(*(rich(number) for number in range(5)))
        assert shard.offsets() == list(range(5))

    def test_spilled_segments_come_back(self, memory_lab: Lab) -> None:
        """Two sealed segments are spilled, a third and the active one are only in memory."""
        shard = memory_lab.shard({"memory.overflow": "spill"})
        for _ in range(2):
            shard.append(*(rich(number) for number in range(10)))
            shard.roll()
        memory_lab.engine.housekeep()
        shard.append(*(rich(number) for number in range(5)))
        shard.roll()
        shard.append(rich(0))
        shard.delete(3, 12, 22)
        before = shard.read(0, max_records=18).records()
        assert shard.end == 27
        memory_lab.reopen()
        # The entry was lost with the memory; the deletion was not, and has another.
        assert (shard.start, shard.end) == (0, 21)
        assert shard.records() == shard.raw_records() == before
        assert shard.tagged("t1") == [1, 4, 7, 11, 14, 17]
        assert shard.by_key(b"k3").offset == 18
        assert shard.append(rich(1)).base_offset == 21
        assert shard.offsets()[-1] == 21
        memory_lab.reopen()
        assert shard.records() == before

    def test_spilled_segments_read_like_those_in_memory(self, memory_lab: Lab) -> None:
        shard = memory_lab.shard({"memory.overflow": "spill", "segment.bytes": 2048})
        for number in range(0, 60, 3):
            shard.append(rich(number), rich(number + 1), rich(number + 2))
        shard.delete(5)
        _, *before = everything(shard)
        memory_lab.engine.housekeep()
        media = [segment.medium.value for segment in shard.status.segments]
        assert media == ["file"] * (len(media) - 1) + ["native"]
        _, *after = everything(shard)
        assert after == before

    def test_the_start_of_spilled_segments_moves(self, memory_lab: Lab) -> None:
        shard = memory_lab.shard({"memory.overflow": "spill", "segment.bytes": 1024})
        for number in range(20):
            shard.append(rich(number))
        memory_lab.engine.housekeep()
        second = shard.segment_bases[1]
        shard.delete_before(second + 1)
        memory_lab.reopen()
        assert shard.start == second + 1
        assert shard.offsets() == list(range(second + 1, shard.end))
        folder = memory_lab.path / "segments" / shard.name
        assert f"{0:020d}.log" not in [path.name for path in folder.iterdir()]
