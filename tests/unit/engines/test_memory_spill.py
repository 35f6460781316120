"""Memory shards with segments on disk: what was spilled, or is still in memory, is never lost to
a change of options or to a failing disk."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import MemoryOverflow, StoreConfig
from firnmq.engines.segments import Medium
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard

LIMIT = 1_000_000
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, "EngineMemory", config=StoreConfig(memory_bytes=LIMIT))
    yield lab
    lab.close()


def overflow(shard: Shard, how: str) -> None:
    """Changes the option while the shard is open."""
    config = dataclasses.replace(shard.status.spec.config, memory_overflow=MemoryOverflow(how))
    shard.engine.reconfigure(shard.name, config)


def append_keys(shard: Shard, count: int) -> None:
    for number in range(count):
        shard.append(NewRecord(key=b"k%d" % (number % 2), value=b"v%d" % number))


def spill(shard: Shard) -> None:
    """Seals and spills, without compaction."""
    shard.roll()
    engine = shard.engine
    engine._keeper.housekeep(engine.log(shard.name))  # type: ignore[attr-defined]


def media(shard: Shard) -> list[Medium]:
    return [segment.medium for segment in shard.status.segments]


def same_in_catalog(shard: Shard) -> bool:
    """Whether the catalog describes the spilled segments as the log does."""
    status = shard.status
    chain = shard.lab.store.state.chain(status.spec.uid)
    spilled = [segment for segment in status.segments if segment.medium is Medium.FILE]
    return [segment for segment in chain if segment.medium is Medium.FILE] == spilled


def test_spilling_that_was_switched_on_survives_compaction_and_a_restart(lab: Lab) -> None:
    shard = lab.shard(COMPACTED)
    append_keys(shard, 6)
    overflow(shard, "spill")
    spill(shard)
    assert media(shard) == [Medium.FILE, Medium.NATIVE]
    lab.engine.housekeep()
    assert shard.offsets() == [4, 5]
    assert same_in_catalog(shard)
    lab.reopen()
    assert shard.offsets() == [4, 5]


@pytest.mark.parametrize("restarts", [False, True])
def test_spilling_that_was_switched_off_survives_compaction_and_a_restart(
    lab: Lab, restarts: bool
) -> None:
    shard = lab.shard({**COMPACTED, "memory.overflow": "spill"})
    append_keys(shard, 6)
    spill(shard)
    overflow(shard, "drop")
    if restarts:
        lab.reopen()
    lab.engine.housekeep()
    assert shard.offsets() == [4, 5]
    assert same_in_catalog(shard)
    lab.reopen()
    assert shard.offsets() == [4, 5]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_start_moves_across_spilled_segments_of_a_shard_that_spills_no_more(
    lab: Lab, restarts: bool
) -> None:
    shard = lab.shard({"memory.overflow": "spill"})
    for _ in range(2):
        append_keys(shard, 6)
        spill(shard)
    overflow(shard, "drop")
    if restarts:
        lab.reopen()
    shard.delete_before(8)
    shard.delete(9)
    assert same_in_catalog(shard)
    assert shard.offsets() == [8, 10, 11]
    lab.reopen()
    assert shard.offsets() == [8, 10, 11]
    assert len(list((lab.path / "segments" / shard.name).iterdir())) == 1


def test_what_was_deleted_before_spilling_was_switched_on_stays_deleted(lab: Lab) -> None:
    shard = lab.shard({"index.key": True})
    append_keys(shard, 8)
    shard.delete_before(2)
    shard.delete(5)
    shard.delete_key(b"k0")
    overflow(shard, "spill")
    spill(shard)
    assert shard.offsets() == [3, 7]
    lab.reopen()
    assert (shard.start, shard.end) == (2, 8)
    assert shard.offsets() == [3, 7]


def test_cutting_a_shard_that_spills_no_more_forgets_its_deletions(lab: Lab) -> None:
    """1. A deletion is kept. 2. Spilling ends and the record is cut off. 3. Another takes its
    offset, and is spilled."""
    shard = lab.shard({"memory.overflow": "spill"})
    append_keys(shard, 4)
    shard.delete(3)
    overflow(shard, "drop")
    shard.truncate(2)
    append_keys(shard, 2)
    overflow(shard, "spill")
    spill(shard)
    lab.reopen()
    assert shard.offsets() == [0, 1, 2, 3]
