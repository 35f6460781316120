"""What engines leave in the metadata, and what they do when it was changed behind their back."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.errors import StaleEpoch, StaleIncarnation, StorageFailed
from firnmq.meta import register_node
from firnmq.meta.records import Replica, SegmentRecord, decode, encode, segments_prefix
from tests.conformance.lab import Lab, Shard, numbered

DURABLE = ["EngineSegment", "EngineRocksDB"]


@pytest.fixture(params=DURABLE)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab
    lab.close()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", "EngineMemory")
    yield lab
    lab.close()


def records(shard: Shard) -> list[SegmentRecord]:
    entries = shard.lab.store.meta.range(segments_prefix(shard.name)).entries
    return [decode(entry, SegmentRecord) for entry in entries]


def revision(lab: Lab) -> int:
    return lab.store.meta.range("").revision


def test_appends_leave_the_metadata_alone_and_a_roll_is_one_revision(lab: Lab) -> None:
    shard = lab.shard()
    before = revision(lab)
    shard.append_each(numbered(50))
    shard.delete(3)
    assert revision(lab) == before
    shard.roll()
    assert revision(lab) == before + 1
    sealed, active = records(shard)
    status = shard.status.segments[0]
    assert (sealed.start, sealed.end, sealed.length, sealed.crc) == (
        0,
        51,  # Fifty records and the entry of the deletion.
        status.length,
        status.crc,
    )
    assert (active.state, active.start, active.end) == (SegmentState.ACTIVE, 51, -1)
    assert sealed.length > 0


def test_a_segment_names_the_life_in_which_it_was_opened(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_each(numbered(5))
    lab.reopen()
    shard.append_each(numbered(5))
    shard.roll()
    assert [record.isr for record in records(shard)] == [(Replica(1, 1),), (Replica(1, 2),)]
    assert shard.offsets() == list(range(10))


def test_a_roll_with_a_stale_epoch_is_refused_and_the_shard_goes_on(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_each(numbered(5))
    meta = lab.store.meta
    (entry,) = meta.range(segments_prefix(shard.name)).entries
    # 1. Someone else changes the segment's record.
    changed = msgspec.structs.replace(decode(entry, SegmentRecord), epoch=5)
    meta.txn(puts={entry.key: encode(changed)})
    # 2. The log, which knows the old one, is refused and closed.
    with pytest.raises(StorageFailed) as caught:
        shard.roll()
    assert isinstance(caught.value.cause, StaleEpoch)
    assert len(records(shard)) == 1
    # 3. It is opened anew, from what there is now.
    shard.append_each(numbered(5))
    shard.roll()
    assert [record.epoch for record in records(shard)] == [6, 0]
    assert shard.offsets() == list(range(10))
    lab.reopen()
    assert shard.offsets() == list(range(10))


def test_an_earlier_life_of_the_node_rolls_nothing(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_each(numbered(5))
    register_node(lab.store.meta, 1, lab.clock)
    with pytest.raises(StorageFailed) as caught:
        shard.roll()
    assert isinstance(caught.value.cause, StaleIncarnation)
    assert len(records(shard)) == 1
    lab.reopen()
    shard.roll()
    assert len(records(shard)) == 2
    assert shard.offsets() == list(range(5))


def test_batches_carry_the_shards_epoch(lab: Lab) -> None:
    """It is not the segment's, which goes up without a change of leaders."""
    shard = lab.shard()
    shard.append_each(numbered(2))
    shard.roll()
    shard.append_each(numbered(2))
    page = shard.engine.read_batches(shard.name, 0, max_bytes=2**20)
    for buffer in page.batches:
        assert bytes(buffer[12:16]) == bytes(4)


# Memory -------------------------------------------------------------------------------------------


def test_rolls_within_memory_are_nobody_elses_business(memory: Lab) -> None:
    shard = memory.shard({"segment.bytes": 1024})
    before = revision(memory)
    shard.append_each(numbered(50, size=100))
    assert len(shard.segment_bases) > 3
    assert revision(memory) == before
    assert [record.isr for record in records(shard)] == [(Replica(1, 1),)]


def test_what_is_in_memory_is_gone_with_the_life_of_the_node(memory: Lab) -> None:
    shard = memory.shard()
    shard.append_each(numbered(5))
    memory.reopen()
    assert records(shard)[0].isr == (Replica(1, 1),), "nobody has opened it yet"
    assert shard.offsets() == []
    (record,) = records(shard)
    assert (record.isr, record.epoch, record.start) == ((Replica(1, 2),), 1, 0)


def test_spilled_segments_are_in_the_chain(memory: Lab) -> None:
    shard = memory.shard({"segment.bytes": 1024, "memory.overflow": "spill"})
    shard.append_each(numbered(50, size=100))
    memory.engine.housekeep()
    *spilled, rest = records(shard)
    assert {(each.state, each.medium) for each in spilled} == {(SegmentState.SEALED, Medium.FILE)}
    assert (rest.state, rest.start) == (SegmentState.ACTIVE, spilled[-1].end)
    end = spilled[-1].end
    memory.reopen()
    assert shard.offsets() == list(range(end))
    shard.append_each(numbered(50, size=100))
    memory.engine.housekeep()
    chain = records(shard)
    assert [each.start for each in chain[1:]] == [each.end for each in chain[:-1]]
    shard.delete_before(shard.end)
    chain = records(shard)
    assert (len(chain), chain[0].state) == (1, SegmentState.ACTIVE)
    end = shard.end
    memory.reopen()
    assert (shard.start, shard.end) == (end, end)


def test_a_memory_topic_may_begin_to_spill_later(memory: Lab) -> None:
    shard = memory.shard({"segment.bytes": 1024})
    shard.append_each(numbered(50, size=100))
    shard.delete_before(25)
    config = shard.status.spec.config.with_options({"memory.overflow": "spill"})
    memory.engine.reconfigure(shard.name, config)
    memory.engine.housekeep()
    chain = records(shard)
    assert len(chain) > 2
    assert [each.start for each in chain[1:]] == [each.end for each in chain[:-1]]
    end = chain[-1].start
    memory.reopen()
    assert (shard.end, shard.offsets()[-1]) == (end, end - 1)
