"""Memory shards with segments on disk: what was spilled, or is still in memory, is never lost to
a change of options or to a failing disk."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firnmq.config import MemoryOverflow, StoreConfig
from firnmq.engines.catalog.segments import Medium
from firnmq.errors import DiskFull, StorageFailed
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard
from tests.conformance.lost_answers import lost_answers

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


def keys_in_memory(shard: Shard) -> list[int]:
    """Appends to a shard whose first six records were spilled; the offsets they get."""
    return [shard.append(NewRecord(key=b"m%d" % at, value=b"m")).base_offset for at in range(3)]


@contextmanager
def failing_metadata(
    lab: Lab, *, commits: bool = False, readable: bool = True
) -> Iterator[Callable[[], int]]:
    """Every transaction fails, before or after it is durable; perhaps nobody can read either.
    Gives the number of failures."""
    store, count = lab.store.meta, 0
    txn = store.txn

    def fail(*args: object, **options: object) -> int:
        nonlocal count
        count += 1
        if commits and (args or options):
            txn(*args, **options)  # type: ignore[arg-type]
        raise DiskFull("the metadata", OSError(28, "No space left on device"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "txn", fail)
        if not readable:
            patch.setattr(store, "range", lambda *_: fail())
        yield lambda: count


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
    assert (shard.start, shard.end) == (2, 10)
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


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("readable", [False, True])
def test_a_compaction_that_fails_in_the_metadata_closes_no_shard(
    lab: Lab, commits: bool, readable: bool
) -> None:
    """1. Some records are spilled, others in memory. 2. The spilled ones are compacted and the
    catalog's answer is an error, twice. 3. The disk works again, and then the store reopens."""
    shard = lab.shard({**COMPACTED, "memory.overflow": "spill"})
    append_keys(shard, 6)
    spill(shard)
    assert keys_in_memory(shard) == [6, 7, 8]
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    with failing_metadata(lab, commits=commits, readable=readable) as failures:
        for _ in range(2):
            lab.engine.housekeep()
            assert shard.offsets()[-5:] == [4, 5, 6, 7, 8]
        assert failures()
        assert keys_in_memory(shard) == [9, 10, 11], "the log is the same"
    assert lab.engine.log(shard.name) is log  # type: ignore[attr-defined]
    lab.engine.housekeep()
    assert shard.offsets() == [4, 5, *range(6, 12)]
    assert same_in_catalog(shard)
    assert len(list((lab.path / "segments" / shard.name).iterdir())) == 1
    lab.reopen()
    assert shard.offsets() == [4, 5]


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("readable", [False, True])
def test_a_spill_that_fails_in_the_metadata_loses_nothing(
    lab: Lab, commits: bool, readable: bool
) -> None:
    shard = lab.shard({"memory.overflow": "spill"})
    append_keys(shard, 6)
    shard.roll()
    with failing_metadata(lab, commits=commits, readable=readable) as failures:
        for _ in range(2):
            lab.engine.housekeep()
            assert shard.offsets() == list(range(6))
        assert failures()
        append_keys(shard, 2)
    lab.engine.housekeep()
    assert media(shard) == [Medium.FILE, Medium.NATIVE]
    assert shard.offsets() == list(range(8))
    assert same_in_catalog(shard)
    lab.reopen()
    assert shard.offsets() == list(range(6))


def test_what_a_failed_spill_wrote_is_removed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = lab.shard({"memory.overflow": "spill"})
    append_keys(shard, 3)
    shard.roll()

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(lab.store.files, "sync", broken)
        lab.engine.housekeep()
    assert media(shard) == [Medium.NATIVE, Medium.NATIVE]
    shard.delete_before(3)  # The segment is dropped before it is spilled again.
    lab.engine.housekeep()
    assert not lab.store.verifier.verify(shard.name).findings


@pytest.mark.parametrize("how", ["spill", "drop"])
def test_a_spill_that_happened_unknown_is_dropped_with_its_segment(lab: Lab, how: str) -> None:
    shard = lab.shard({"memory.overflow": "spill"})
    append_keys(shard, 3)
    shard.roll()
    with lost_answers(lab.store.meta, happens=True, is_blind=True) as lost:
        lab.engine.housekeep()
    assert lost.lost_count
    overflow(shard, how)
    shard.delete_before(3)
    for _ in range(2):
        lab.engine.housekeep()
    assert not lab.store.verifier.verify(shard.name).findings
    chain = lab.store.state.chain(shard.status.spec.uid)
    assert [meta.base_offset for meta in chain] == [3]


@pytest.mark.parametrize("commits", [False, True])
def test_a_start_that_could_not_be_moved_is_moved_later(lab: Lab, commits: bool) -> None:
    shard = lab.shard({"memory.overflow": "spill"})
    for _ in range(2):
        append_keys(shard, 3)
        spill(shard)
    append_keys(shard, 3)
    with failing_metadata(lab, commits=commits), pytest.raises(StorageFailed):
        shard.delete_before(4)
    shard.delete_before(7)
    assert shard.offsets() == [7, 8]
    append_keys(shard, 1)
    spill(shard)
    assert same_in_catalog(shard)
    lab.reopen()
    assert shard.offsets() == [7, 8, 9]


def test_a_cut_that_fails_on_disk_cuts_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = lab.shard({"memory.overflow": "spill"})
    append_keys(shard, 6)
    shard.delete(4)

    def full(*_: object) -> None:
        raise DiskFull("the key-value store", OSError(28, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(lab.store.state.deletions, "keep_unlogged", full)
        with pytest.raises(DiskFull):
            shard.truncate(3)
    assert shard.offsets() == [0, 1, 2, 3, 5]
    shard.truncate(3)
    append_keys(shard, 2)
    assert shard.offsets() == [0, 1, 2, 3, 4]


def test_a_shard_that_could_not_be_deleted_does_not_count(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed, shard = (lab.shard({"memory.overflow": "spill"}) for _ in range(2))
    value = bytes(LIMIT // 4)
    for _ in range(3):
        doomed.append_values(value)
    doomed.roll()
    spill(shard)
    keeper = lab.engine._keeper  # type: ignore[attr-defined]

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(keeper._layout, "drop_shard", broken)
        with pytest.raises(StorageFailed):
            lab.engine.delete_shard(doomed.name)
    for _ in range(8):
        shard.append_values(value)
    assert shard.offsets() == list(range(8))
    assert not (lab.path / "segments" / doomed.name).exists()
