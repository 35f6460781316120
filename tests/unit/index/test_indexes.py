"""An index in memory and one in the key-value store answer alike."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firnmq.disk import Family, KeyValueStore
from firnmq.index import (
    NEVER_MS,
    RECORDS_PER_POINT,
    Checkpoint,
    IndexBuilder,
    MemorySegmentIndex,
    RocksIndexEntries,
    RocksSegmentIndex,
    Terms,
)

KEYS = [b"", b"a", b"b", b"k" * 200]
TAGS = [b"", b"t", b"tt", b"t" * 200]
_uids = count(1)

batches = st.lists(
    st.tuples(
        st.integers(1, 1500),
        st.integers(-(2**40), 2**40),
        st.dictionaries(st.sampled_from(KEYS), st.floats(0, 1)),
        st.dictionaries(st.sampled_from(TAGS), st.sets(st.floats(0, 1), min_size=1, max_size=5)),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyValueStore]:
    kv = KeyValueStore(Path(tmp_path_factory.mktemp("kv")))
    yield kv
    kv.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches, st.data())
def test_both_answer_alike(kv: KeyValueStore, drawn: list, data: st.DataObject) -> None:
    uid = next(_uids)
    memory, rocks = MemorySegmentIndex(), RocksSegmentIndex(kv, uid, 3)
    builders = IndexBuilder(), IndexBuilder()
    offset, position = 10, 0
    for record_count, max_timestamp, keys, tags in drawn:
        terms = Terms(
            {key: int(at * (record_count - 1)) for key, at in keys.items()},
            {
                tag: sorted({int(at * (record_count - 1)) for at in found})
                for tag, found in tags.items()
            },
        )
        entries = RocksIndexEntries(uid, 3)
        for builder, sink in zip(builders, (memory, entries), strict=True):
            builder.add(
                sink,
                position=position,
                base_offset=offset,
                record_count=record_count,
                max_timestamp=max_timestamp,
                terms=terms,
                first_expiry_ms=NEVER_MS,
            )
        with kv.batch() as batch:
            batch.put_many(Family.INDEX, entries.entries)
        offset += record_count
        position += 100 * record_count
    for at in data.draw(st.lists(st.integers(0, offset + 10), min_size=5, max_size=20)):
        assert memory.floor_offset(at) == rocks.floor_offset(at)
        for tag in (*TAGS, b"ttt"):
            found = list(memory.tagged(tag, at))
            assert [(h.base_offset, h.position, list(h.relative_offsets)) for h in found] == [
                (h.base_offset, h.position, list(h.relative_offsets)) for h in rocks.tagged(tag, at)
            ]
            assert [h.last_offset for h in found] == sorted(h.last_offset for h in found)
    times = [time + shift for _, time, _, _ in drawn for shift in (-1, 0, 1)]
    for time in (*times, -(2**63), 0, 2**63 - 1):
        assert memory.floor_time(time) == rocks.floor_time(time)
    for key in (*KEYS, b"unknown"):
        assert memory.newest_of_key(key) == rocks.newest_of_key(key)


def test_points_are_a_thousand_records_apart() -> None:
    index, builder = MemorySegmentIndex(), IndexBuilder()
    for batch in range(50):
        builder.add(
            index,
            position=batch * 10,
            base_offset=batch * 100,
            record_count=100,
            max_timestamp=batch,
            terms=None,
            first_expiry_ms=NEVER_MS,
        )
    found = {index.floor_offset(offset) for offset in range(5000)}
    assert sorted(point.offset for point in found if point) == list(
        range(0, 5000, RECORDS_PER_POINT)
    )
    assert index.size_bytes > 0


def test_segments_do_not_see_each_other(kv: KeyValueStore) -> None:
    uid = next(_uids)
    for seq in (1, 2):
        entries = RocksIndexEntries(uid, seq)
        entries.add_point(seq * 100, 0, 5)
        entries.add_keys({b"k": 1}, seq * 100, 7)
        entries.add_tags({b"t": [0]}, seq * 100, 0)
        entries.set_checkpoint(
            Checkpoint(
                next_offset=seq,
                position=0,
                crc=0,
                max_timestamp=0,
                records_since_point=0,
                indexed_upto=0,
                first_expiry_ms=NEVER_MS,
            )
        )
        with kv.batch() as batch:
            batch.put_many(Family.INDEX, entries.entries)
    first, second, third = (RocksSegmentIndex(kv, uid, seq) for seq in (1, 2, 3))
    assert first.floor_offset(10**6).offset == 100  # type: ignore[union-attr]
    assert second.newest_of_key(b"k") == (201, 7)
    assert third.floor_offset(10**6) is None
    assert third.floor_time(10**6) is None
    assert third.checkpoint() is None
    first.clear()
    assert first.checkpoint() is None
    assert list(first.tagged(b"t", 0)) == []
    assert second.checkpoint().next_offset == 2  # type: ignore[union-attr]
    assert len(list(second.tagged(b"t", 0))) == 1


def test_many_tag_entries_are_read_in_parts(kv: KeyValueStore) -> None:
    uid = next(_uids)
    entries = RocksIndexEntries(uid, 0)
    for base in range(1000):
        entries.add_tags({b"t": [0]}, base, base)
    with kv.batch() as batch:
        batch.put_many(Family.INDEX, entries.entries)
    hits = list(RocksSegmentIndex(kv, uid, 0).tagged(b"t", 100))
    assert [hit.base_offset for hit in hits] == list(range(100, 1000))
