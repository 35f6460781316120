"""Verification finds every kind of damage and names it, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from firnmq.disk import Family
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.engines.verify import index, segment
from firnmq.engines.verify.findings import FINDINGS_PER_KIND_MAX, FindingKind, Verification
from firnmq.index import MemorySegmentIndex
from firnmq.index.layout import KEY, OFFSET, PREFIX, TAG, TIME, segment_range
from firnmq.meta.records import (
    SegmentRecord,
    ShardRecord,
    decode,
    encode,
    segment_key,
    shard_key,
)
from firnmq.record import NewRecord
from firnmq.record.deletion import Deletion
from firnmq.server import LocalStore, Store
from firnmq.testing import FakeClock

DURABLE = ("EngineSegment", "EngineRocksDB")
ALL = (*DURABLE, "EngineMemory")
BATCH_RECORDS = 20
"""Above the number up to which requests are merged, so that each append is one batch."""


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    with Store(LocalStore(path, clock=FakeClock(), background=False)) as store:
        yield store


def fill(
    store: Store,
    storage_type: str = "EngineSegment",
    *,
    batches: int = 6,
    options: dict[str, object] | None = None,
) -> str:
    """A shard of several sealed segments, two batches in each, and an active one."""
    given = {"storage.type": storage_type, "segment.bytes": 1500, **(options or {})}
    topic = store.create_topic("t", options=given)
    for batch in range(batches):
        topic.append(
            [
                NewRecord(
                    value=b"value-%d-%d" % (batch, number),
                    key=b"key-%d" % (number % 7),
                    tags=("even",) if number % 2 == 0 else ("odd",),
                    timestamp_ms=1_700_000_000_000 + 1000 * batch + number,
                )
                for number in range(BATCH_RECORDS)
            ]
        )
    return topic.topic.shard_name(0)


def check(path: Path, shard: str) -> Verification:
    with opened(path) as store:
        return store.local.verifier.verify(shard)


def kinds(result: Verification) -> set[FindingKind]:
    return {finding.kind for finding in result.findings}


def files(path: Path) -> list[Path]:
    return sorted(path.glob("segments/*/*.log"))


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def telling_positions(data: bytes) -> list[int]:
    """Every byte of the first batch's header, then some of all the rest."""
    return [*range(61), *range(61, len(data), 13)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("storage_type", ALL)
def test_nothing_is_found_where_nothing_is_wrong(
    tmp_path: Path, storage_type: str, compression: str
) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, storage_type, options={"compression.type": compression})
        topic = store.topic("t")
        topic.append(b"one more")
        topic.delete_by_offset(33)
        topic.delete_by_key("key-3")
        topic.delete_before(30)
        result = store.local.verifier.verify(shard)
        status = topic.status()
    assert result.findings == ()
    assert result.segment_count == len(status.segments)
    assert result.checked_bytes == status.length_bytes
    assert result.batch_count >= 2
    if storage_type != "EngineMemory":
        assert check(tmp_path, shard) == result


def test_spilled_segments_of_a_memory_topic_are_checked(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, "EngineMemory", options={"memory.overflow": "spill"})
        store.local.housekeep()
        assert store.local.verifier.verify(shard).findings == ()
    assert check(tmp_path, shard).findings == ()
    flip(files(tmp_path)[0], 70)
    assert FindingKind.SEGMENT_CRC in kinds(check(tmp_path, shard))


def test_an_empty_shard_and_one_never_used_are_fine(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = store.create_topic("t").topic.shard_name(0)
        assert store.local.verifier.verify(shard).findings == ()
        store.topic("t").status()
        assert store.local.verifier.verify(shard).findings == ()


def test_a_flipped_bit_anywhere_in_a_sealed_file_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, batches=3, options={"segment.bytes": 1024})
    sealed = files(tmp_path)[0]
    good = sealed.read_bytes()
    with opened(tmp_path) as store:
        for position in telling_positions(good):
            flip(sealed, position, bit=position % 8)
            result = store.local.verifier.verify(shard)
            sealed.write_bytes(good)
            crc = [f for f in result.findings if f.kind is FindingKind.SEGMENT_CRC]
            assert [(f.where, f.segment_seq) for f in crc] == [(str(sealed), 0)], position
        assert store.local.verifier.verify(shard).findings == ()


def test_a_flipped_bit_anywhere_in_the_active_tail_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, batches=1)
    (active,) = files(tmp_path)
    good = active.read_bytes()
    with opened(tmp_path) as store:
        for position in telling_positions(good):
            flip(active, position, bit=position % 8)
            result = store.local.verifier.verify(shard)
            active.write_bytes(good)
            assert FindingKind.SEGMENT_CRC in kinds(result), position
            assert {finding.where for finding in result.findings} == {str(active)}
        assert store.local.verifier.verify(shard).findings == ()


def test_a_bad_batch_is_named_and_those_behind_it_are_still_checked(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, batches=4, options={"segment.bytes": 100_000})
    (active,) = files(tmp_path)
    size = active.stat().st_size
    flip(active, 70)
    flip(active, size - 5)
    result = check(tmp_path, shard)
    bad = [finding for finding in result.findings if finding.kind is FindingKind.BATCH]
    assert len(bad) == 2
    assert bad[0].position == 0
    assert "offsets 0 to 19" in bad[0].message
    assert bad[1].position is not None
    assert bad[1].position > size // 2
    assert result.batch_count == 2
    assert result.checked_bytes == size


def test_a_damaged_length_ends_the_walk_but_not_the_check(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    flip(files(tmp_path)[0], 8, bit=2)
    result = check(tmp_path, shard)
    assert kinds(result) == {FindingKind.BATCH, FindingKind.SEGMENT_CRC}
    assert {finding.segment_seq for finding in result.findings} == {0}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_truncated_file_is_found(tmp_path: Path, is_sealed: bool) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    file = files(tmp_path)[0 if is_sealed else -1]
    file.write_bytes(file.read_bytes()[:-10])
    result = check(tmp_path, shard)
    assert {FindingKind.LENGTH, FindingKind.SEGMENT_CRC, FindingKind.BATCH} <= kinds(result)
    assert {finding.where for finding in result.findings} == {str(file)}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_removed_file_is_found(tmp_path: Path, is_sealed: bool) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    file = files(tmp_path)[0 if is_sealed else -1]
    file.unlink()
    (finding,) = check(tmp_path, shard).findings
    assert finding.kind is FindingKind.FILE_MISSING
    assert finding.where == str(file)


def test_bytes_behind_a_sealed_segment_are_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    file = files(tmp_path)[0]
    length = file.stat().st_size
    file.write_bytes(file.read_bytes() + b"more")
    (finding,) = check(tmp_path, shard).findings
    assert (finding.kind, finding.position) == (FindingKind.LENGTH, length)


@pytest.mark.parametrize(
    "rest",
    [b"torn", bytes(100), bytes(3 * 1024 * 1024), bytes(3 * 1024 * 1024) + b"!"],
    ids=["short", "zeros", "many zeros", "more"],
)
def test_a_torn_tail_is_seen_as_it_is(tmp_path: Path, rest: bytes) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    file = files(tmp_path)[-1]
    length = file.stat().st_size
    file.write_bytes(file.read_bytes() + rest)
    (finding,) = check(tmp_path, shard).findings
    assert (finding.kind, finding.position) == (FindingKind.TORN_TAIL, length)
    assert f"{len(rest):,} bytes" in finding.message
    # Opening the shard for use removes it.
    with opened(tmp_path) as store:
        store.topic("t").status()
        assert store.local.verifier.verify(shard).findings == ()


def test_zeros_behind_a_sealed_segment_are_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    file = files(tmp_path)[0]
    file.write_bytes(file.read_bytes() + bytes(100))
    assert kinds(check(tmp_path, shard)) == {FindingKind.LENGTH}


def test_orphans_are_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    orphan = tmp_path / "segments" / shard / f"{99:020d}.log"
    orphan.write_bytes(b"who knows")
    stray = tmp_path / "segments" / "no-such-shard"
    stray.mkdir()
    (finding,) = check(tmp_path, shard).findings
    assert (finding.kind, finding.where) == (FindingKind.ORPHAN, str(orphan))
    with opened(tmp_path) as store:
        found = list(store.local.verifier.outside_shards())
    assert [(each.kind, each.where) for each in found] == [(FindingKind.ORPHAN, str(stray))]


def test_a_file_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
    file = files(tmp_path)[0]
    file.unlink()
    file.mkdir()
    assert FindingKind.UNREADABLE in kinds(check(tmp_path, shard))


# Indexes ----------------------------------------------------------------------------------------

NAMES = {OFFSET: "offset point 0", TIME: "time point", KEY: "key 'key-0'", TAG: "tag 'odd'"}


def entries(store: Store, kind: int, seq: int = 0) -> list[tuple[bytes, bytes]]:
    (spec,) = store.local.state.shards()
    found = store.local.kv.items(Family.INDEX, *segment_range(spec.uid, seq))
    return [entry for entry in found if entry[0][PREFIX.size - 1] == kind]


@pytest.mark.parametrize("storage_type", DURABLE)
@pytest.mark.parametrize("kind", NAMES)
def test_a_missing_entry_is_found(tmp_path: Path, storage_type: str, kind: int) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, storage_type)
        with store.local.kv.batch() as batch:
            batch.delete(Family.INDEX, entries(store, kind)[0][0])
        (finding,) = store.local.verifier.verify(shard).findings
    assert finding.kind is FindingKind.INDEX_MISSING
    assert finding.segment_seq == 0
    assert NAMES[kind] in finding.message


@pytest.mark.parametrize("kind", NAMES)
def test_an_entry_with_another_value_is_found(tmp_path: Path, kind: int) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        key, value = entries(store, kind)[0]
        with store.local.kv.batch() as batch:
            batch.put(Family.INDEX, key, value + b"\x01")
        (finding,) = store.local.verifier.verify(shard).findings
    assert finding.kind is FindingKind.INDEX_DIFFERENT
    assert NAMES[kind] in finding.message


@pytest.mark.parametrize("kind", [*NAMES, 77])
@pytest.mark.parametrize("rest", [b"bogus", bytes(8)])
def test_a_bogus_entry_is_found(tmp_path: Path, kind: int, rest: bytes) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        (spec,) = store.local.state.shards()
        with store.local.kv.batch() as batch:
            batch.put(Family.INDEX, PREFIX.pack(spec.uid, 1, kind) + rest, b"\x00")
        (finding,) = store.local.verifier.verify(shard).findings
    assert finding.kind is FindingKind.INDEX_EXTRA
    assert finding.segment_seq == 1


@pytest.mark.parametrize("family", [Family.INDEX, Family.MESSAGES])
def test_entries_of_a_segment_that_is_not_there_are_found(tmp_path: Path, family: Family) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        (spec,) = store.local.state.shards()
        with store.local.kv.batch() as batch:
            batch.put(family, PREFIX.pack(spec.uid, 2**32 - 1, KEY) + b"k", b"v")
            batch.put(family, PREFIX.pack(spec.uid, 500, KEY) + b"k", b"v")
        found = store.local.verifier.verify(shard).findings
    assert [(each.kind, each.segment_seq) for each in found] == [
        (FindingKind.ORPHAN, 500),
        (FindingKind.ORPHAN, 2**32 - 1),
    ]


def test_many_findings_are_counted_not_listed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        (spec,) = store.local.state.shards()
        with store.local.kv.batch() as batch:
            for number in range(1000):
                key = PREFIX.pack(spec.uid, 0, KEY) + b"bogus-%d" % number
                batch.put(Family.INDEX, key, bytes(8))
        found = store.local.verifier.verify(shard).findings
    assert len(found) == FINDINGS_PER_KIND_MAX + 1
    assert found[-1].message == f"and {1000 - FINDINGS_PER_KIND_MAX} more"


def test_an_index_too_large_for_one_pass_is_compared_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "ENTRIES_PER_PASS", 5)
    monkeypatch.setattr(segment, "ENTRIES_PER_PASS", 5)
    with opened(tmp_path) as store:
        shard = fill(store)
        assert store.local.verifier.verify(shard).findings == ()
        with store.local.kv.batch() as batch:
            batch.delete(Family.INDEX, entries(store, KEY)[3][0])
            batch.put(Family.INDEX, entries(store, KEY)[0][0] + b"!", bytes(8))
        result = store.local.verifier.verify(shard)
    assert kinds(result) == {FindingKind.INDEX_MISSING, FindingKind.INDEX_EXTRA}
    assert len(result.findings) == 2


def test_an_index_in_memory_is_compared_too(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, "EngineMemory")
        engine = store.local.engines["EngineMemory"]
        index = engine.log(shard).segments[0].index  # type: ignore[attr-defined]
        assert isinstance(index, MemorySegmentIndex)
        index.add_keys({b"bogus": 0}, 3, 0)
        (finding,) = store.local.verifier.verify(shard).findings
    assert finding.kind is FindingKind.INDEX_EXTRA
    assert "'bogus'" in finding.message


def test_a_tail_that_is_not_indexed_yet_is_no_finding(tmp_path: Path) -> None:
    """A power cut may take index entries that were not synced; opening makes them again."""
    with opened(tmp_path) as store:
        shard = fill(store, batches=1)
        (spec,) = store.local.state.shards()
        with store.local.kv.batch() as batch:
            batch.delete_range(Family.INDEX, *segment_range(spec.uid, 0))
        assert store.local.verifier.verify(shard).findings == ()


# State ------------------------------------------------------------------------------------------


def chain(store: Store) -> list[SegmentMeta]:
    (spec,) = store.local.state.shards()
    return store.local.state.chain(spec.uid)


def test_a_gap_between_segments_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        (spec,) = store.local.state.shards()
        store.local.state.forget_segments(spec.uid, [chain(store)[1].seq])
        result = store.local.verifier.verify(shard)
    assert {FindingKind.CHAIN, FindingKind.ORPHAN} == kinds(result)
    assert any("gap: segment 0" in finding.message for finding in result.findings)


def test_a_chain_without_its_active_segment_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        (spec,) = store.local.state.shards()
        store.local.state.forget_segments(spec.uid, [chain(store)[-1].seq])
        result = store.local.verifier.verify(shard)
    assert any("active" in f.message for f in result.findings if f.kind is FindingKind.CHAIN)


def test_a_shard_that_names_another_segment_as_active_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        meta = store.local.meta
        entry = meta.get(shard_key(shard))
        assert entry is not None
        wrong = msgspec.structs.replace(decode(entry, ShardRecord), active=1)
        meta.txn(puts={entry.key: encode(wrong)})
        (finding,) = store.local.verifier.verify(shard).findings
    assert (finding.kind, finding.segment_seq) == (FindingKind.CHAIN, 1)
    assert "names segment 1" in finding.message


def test_two_active_segments_are_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        meta = store.local.meta
        entry = meta.get(segment_key(shard, 0))
        assert entry is not None
        wrong = msgspec.structs.replace(decode(entry, SegmentRecord), state=SegmentState.ACTIVE)
        meta.txn(puts={entry.key: encode(wrong)})
        found = store.local.verifier.verify(shard).findings
    assert any("one active" in finding.message for finding in found)


def test_deletions_outside_the_bounds_are_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        (spec,) = store.local.state.shards()
        deletion = Deletion((10_000,), ((b"key-1", 20_000),))
        store.local.state.deletions.add_unlogged(spec.uid, deletion)
        found = store.local.verifier.verify(shard).findings
    assert [each.kind for each in found] == [FindingKind.DELETION] * 2
    assert "10000" in found[0].message
    assert "'key-1'" in found[1].message


def test_a_start_beyond_the_end_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store)
        (spec,) = store.local.state.shards()
        store.local.state.move_start(spec.uid, 10_000, [])
        (finding,) = store.local.verifier.verify(shard).findings
    assert finding.kind is FindingKind.CHAIN


def test_a_wrong_checkpoint_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, batches=2, options={"segment.bytes": 100_000})
        (spec,) = store.local.state.shards()
        key = PREFIX.pack(spec.uid, 0, 0)
        stored = store.local.kv.get(Family.INDEX, key)
        assert stored is not None
        with store.local.kv.batch() as batch:
            batch.put(Family.INDEX, key, bytes(8) + stored[8:])
        (finding,) = store.local.verifier.verify(shard).findings
    assert finding.kind is FindingKind.CHECKPOINT
    assert "next_offset" in finding.message


def test_a_shard_that_is_not_there_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        (finding,) = store.local.verifier.verify("nothing_0").findings
    assert finding.kind is FindingKind.CHAIN


# Rows -------------------------------------------------------------------------------------------


def rows(store: Store) -> list[tuple[bytes, bytes]]:
    (spec,) = store.local.state.shards()
    lower, upper = PREFIX.pack(spec.uid, 0, 0)[:8], PREFIX.pack(spec.uid + 1, 0, 0)[:8]
    return store.local.kv.items(Family.MESSAGES, lower, upper)


@pytest.mark.parametrize("at", [0, 1, 2, -1])
def test_a_removed_row_is_found(tmp_path: Path, at: int) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, "EngineRocksDB", options={"segment.bytes": 100_000})
        with store.local.kv.batch() as batch:
            batch.delete(Family.MESSAGES, rows(store)[at][0])
        result = store.local.verifier.verify(shard)
    assert kinds(result) & {FindingKind.LENGTH, FindingKind.BATCH}
    assert FindingKind.SEGMENT_CRC in kinds(result)


def test_a_changed_row_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        shard = fill(store, "EngineRocksDB")
        key, value = rows(store)[1]
        with store.local.kv.batch() as batch:
            batch.put(Family.MESSAGES, key, value[:-1] + bytes([value[-1] ^ 1]))
        result = store.local.verifier.verify(shard)
    assert {FindingKind.BATCH, FindingKind.SEGMENT_CRC} == kinds(result)


# Progress ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage_type", ALL)
def test_progress_goes_up_to_the_total(tmp_path: Path, storage_type: str) -> None:
    seen: list[tuple[int, int]] = []
    with opened(tmp_path) as store:
        shard = fill(store, storage_type)
        result = store.local.verifier.verify(shard, lambda done, total: seen.append((done, total)))
        size = store.local.verifier.size_bytes(shard)
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    assert result.checked_bytes == size
