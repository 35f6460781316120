"""Cold segments: read like any others, first quickly, then ahead."""

import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firnmq.config import TopicConfig
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Segment, SegmentGone, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import Closed, Corruption
from firnmq.index import Point
from firnmq.tiering.cold.medium import READ_AHEAD, ColdStorage
from firnmq.tiering.cold.throttle import ColdThrottle
from firnmq.tiering.format.index_object import write_index
from tests.unit.record.batches import Made, record
from tests.unit.tiering.scripted_store import Counted, ScriptedStore, StoreDown
from tests.unit.tiering.sources import random_dump, sealed_meta
from tests.unit.tiering.throttles import Paced

KIB = 1024
SPEC = ShardSpec(name="1_0", uid=1, config=TopicConfig())
Make = Callable[..., ColdStorage]


def batches(base_offset: int, sizes: list[int]) -> bytes:
    """Batches of one record each, about this large."""
    return b"".join(
        Made(records=[record(value=bytes(size))], base_offset=base_offset + number).build()
        for number, size in enumerate(sizes)
    )


def put_segment(store: ScriptedStore, name: str, base_offset: int, sizes: list[int]) -> SegmentMeta:
    content = batches(base_offset, sizes)
    copy = TierCopy(upload_id="0" * 16, key=name, started_ms=0, is_done=True)
    meta = sealed_meta(
        base_offset=base_offset,
        end_offset=base_offset + len(sizes),
        length=len(content),
        tier=copy,
    )
    index, head_length = write_index(random_dump(meta, 5), meta)
    store.objects[name + ".seg"] = content
    store.objects[name + ".idx"] = index
    copy = dataclasses.replace(copy, index_length=len(index), index_head_length=head_length)
    return dataclasses.replace(meta, tier=copy)


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def make(store: ScriptedStore, tmp_path: Path) -> Iterator[Make]:
    made: list[ColdStorage] = []

    def make_one(**changes: object) -> ColdStorage:
        options: dict[str, object] = {"cache_bytes": 10**9}
        storage = ColdStorage(store, tmp_path / "cache", **(options | changes))  # type: ignore[arg-type]
        made.append(storage)
        return storage

    yield make_one
    store.is_open.set()
    for storage in made:
        storage.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("firn-cold")]


def scan(storage: ColdStorage, meta: SegmentMeta, size: int = CHUNK_BYTES) -> bytes:
    """All batches, as readers of the log go through them."""
    segment = Segment(meta, storage.open_bytes(SPEC, meta), storage.open_index(SPEC, meta))
    reader = SegmentScan(segment, Point(meta.base_offset, 0), meta.length, verify=True)
    found = bytearray()
    while runs := reader.read(size):
        for run in runs:
            found += b"".join(run.batch(entry) for entry in run.entries)
    return bytes(found)


def test_a_scan_finds_every_batch_and_fetches_no_byte_twice(
    make: Make, store: ScriptedStore
) -> None:
    chance = random.Random(4)
    sizes = [chance.randrange(100, 60_000) for _ in range(600)]
    sizes[5], sizes[300] = 700_000, 5_000_000  # Larger than the first read, and than a chunk.
    meta = put_segment(store, "a", 100, sizes)
    storage = make()
    assert scan(storage, meta) == store.objects["a.seg"]
    assert store.is_fetched_once("a.seg")
    assert store.fetched("a.seg")[0] == (0, 256 * KIB)
    assert max(end - start for start, end in store.fetched("a.seg")) == 4 * 1024 * KIB
    count = len(store.gets)
    assert scan(storage, meta) == store.objects["a.seg"]
    storage.flush()
    storage.close()
    assert scan(make(), meta) == store.objects["a.seg"]
    assert len(store.gets) == count


def test_scans_are_held_back_and_one_record_is_not(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [60_000] * 200)
    throttle = Paced(0.0)
    chunk_bytes = 512 * KIB
    storage = make(throttle=throttle, chunk_bytes=chunk_bytes, read_ahead=1)
    part = storage.open_bytes(SPEC, meta)
    position = 0

    def read_until(end: int) -> None:
        nonlocal position
        while position < end:
            position += len(part.read(position, 100 * KIB)[0])

    # 1. A lookup takes several reads from the index point to its record.
    read_until(chunk_bytes)
    assert sum(throttle.noted_sizes) >= 256 * KIB
    # 2. A reader scans the segment.
    throttle.noted_sizes.clear()
    throttle.sizes.clear()
    read_until(meta.length)
    assert throttle.noted_sizes == []
    assert sum(throttle.sizes) > meta.length // 2


@pytest.mark.parametrize("seed", range(6))
def test_scans_with_all_sizes_of_reads_pieces_and_batches(
    make: Make, store: ScriptedStore, seed: int
) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((1, 50, 900, 3_000, 20_000)) for _ in range(150)]
    meta = put_segment(store, "a", chance.randrange(1_000), sizes)
    storage = make(
        chunk_bytes=8_192 * chance.choice((1, 2)),
        first_bytes=chance.choice((1_024, 4_096)),
        read_ahead=chance.choice((0, 1, 6)),
        memory_bytes=chance.choice((0, 20_000, 10**6)),
        cache_bytes=chance.choice((0, 50_000, 10**6)),
    )
    for size in (1, 5_000, 100_000):
        assert scan(storage, meta, size) == store.objects["a.seg"]


def test_of_a_scan_only_batches_between_two_chunks_are_copied(
    make: Make, store: ScriptedStore
) -> None:
    meta = put_segment(store, "a", 0, [100_000] * 300)
    content = make().open_bytes(SPEC, meta)
    batch_bytes = meta.length // 300
    position, copied = 0, []
    while position < meta.length:
        (data,) = content.read(position, CHUNK_BYTES)
        assert data == store.objects["a.seg"][position : position + len(data)]
        if not isinstance(data, memoryview):
            copied.append((position, len(data)))
        position += len(data) // batch_bytes * batch_bytes
    chunk_bytes = 4 * 1024 * KIB
    borders = range(chunk_bytes, meta.length, chunk_bytes)
    # The first chunk comes in three pieces, because the first reads are small.
    copied = [(start, size) for start, size in copied if start > chunk_bytes // 2]
    assert copied == [(border // batch_bytes * batch_bytes, batch_bytes) for border in borders]


def test_the_first_read_is_small_wherever_it_begins(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 1_000)
    batch_bytes = meta.length // 1_000
    content = make().open_bytes(SPEC, meta)
    for number in (0, 100, 333, 789):
        store.gets.clear()
        (data,) = content.read(number * batch_bytes, CHUNK_BYTES)
        assert len(data) >= 128 * KIB
        ((_, _, size),) = store.gets
        assert size <= 256 * KIB


def test_a_random_reader_has_nothing_fetched_ahead(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 3_000)
    batch_bytes = meta.length // 3_000
    storage = make()
    content = storage.open_bytes(SPEC, meta)
    for number in (2_900, 5, 2_000, 1_000, 1_500, 500, 2_500):
        content.read(number * batch_bytes, 4_096)
    assert len(store.gets) == 7
    assert storage.statistics().fetched_bytes <= 7 * 256 * KIB


def test_a_reader_that_goes_on_has_chunks_fetched_ahead(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 6_000)
    content = make().open_bytes(SPEC, meta)
    position = 0
    while position < 8 * CHUNK_BYTES:
        (data,) = content.read(position, CHUNK_BYTES)
        position += len(data)
    chunk = 4 * 1024 * KIB
    last = -(-position // chunk) + READ_AHEAD - 1
    wanted = {number * chunk for number in range(1, last + 1)}
    starts: set[int] = set()
    while not wanted <= starts:
        assert store.arrived.acquire(timeout=30), wanted - starts
        starts = {start for start, _ in store.fetched("a.seg")}
    assert max(starts) <= position + (READ_AHEAD + 1) * chunk


def test_a_reader_of_a_few_records_has_little_fetched_ahead(
    make: Make, store: ScriptedStore
) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 3_000)
    storage = make()
    content = storage.open_bytes(SPEC, meta)
    position = 0
    for _ in range(3):
        (data,) = content.read(position, 30_000)
        position += len(data)
    storage.close()
    assert storage.statistics().fetched_bytes <= 1_500_000


def test_a_limited_rate_limits_what_is_fetched_ahead(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 3_000)
    limiter = Counted()
    limiter.bytes_per_s = 10_000_000
    storage = make(throttle=ColdThrottle(fetch_limiter=limiter))
    content = storage.open_bytes(SPEC, meta)
    position = 0
    while position < 9 * CHUNK_BYTES:
        (data,) = content.read(position, CHUNK_BYTES)
        position += len(data)
    storage.close()
    assert storage.statistics().fetched_bytes <= position + 2 * 4 * 1024 * KIB


def test_many_readers_at_once_do_not_displace_what_is_fetched_ahead(
    make: Make, store: ScriptedStore
) -> None:
    """Each in a segment of its own, by turns, without a disk: hardly a byte is fetched twice.

    Some may be, as long as it is not known yet how many there are: what that costs depends on the
    threads, but is the same for segments of any length, so these are long.
    """
    metas = [put_segment(store, f"s{number}", 0, [1_000] * 3_600) for number in range(6)]
    storage = make(chunk_bytes=65_536, first_bytes=8_192, cache_bytes=0, memory_bytes=20 * 65_536)
    contents = [storage.open_bytes(SPEC, meta) for meta in metas]
    positions = [0] * 6
    while any(position < metas[0].length for position in positions):
        for number, content in enumerate(contents):
            for data in content.read(positions[number], 20_000):
                positions[number] += len(data)
    fetched = storage.statistics().fetched_bytes
    assert fetched <= 1.1 * sum(meta.length for meta in metas)


def test_a_reader_goes_on_into_the_next_segment_without_a_break(
    make: Make, store: ScriptedStore
) -> None:
    first = put_segment(store, "a", 0, [10_000] * 600)
    second = put_segment(store, "b", 600, [10_000] * 600)
    storage = make()
    following = storage.open_bytes(SPEC, second)
    content = storage.open_bytes(SPEC, first)
    position = 0
    while position < first.length:
        (data,) = content.read(position, CHUNK_BYTES)
        position += len(data)
    assert following.read(0, CHUNK_BYTES) == [store.objects["b.seg"][:CHUNK_BYTES]]
    assert store.fetched("b.seg")[0] == (0, 4 * 1024 * KIB)


def test_readers_at_many_places_at_once(make: Make, store: ScriptedStore) -> None:
    metas = [put_segment(store, f"s{number}", number * 200, [3_000] * 200) for number in range(3)]
    storage = make(chunk_bytes=65_536, first_bytes=8_192, cache_bytes=700_000, memory_bytes=200_000)

    def check(number: int) -> bool:
        meta = metas[number % 3]
        return scan(storage, meta, 20_000) == store.objects[f"s{number % 3}.seg"]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(24)))


def test_a_store_that_is_down_fails_the_read_and_the_next_one_goes_on(
    make: Make, store: ScriptedStore
) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 200)
    storage = make()
    store.failures.extend(StoreDown("down") for _ in range(3))
    refused = 0
    while True:
        try:
            found = scan(storage, meta)
            break
        except StoreDown:
            refused += 1
    assert found == store.objects["a.seg"]
    assert 1 <= refused <= 3


def test_a_truncated_object_is_refused_by_name(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 200)
    store.objects["a.seg"] = store.objects["a.seg"][:1_500_000]
    with pytest.raises(Corruption, match=r"bytes came instead of") as refused:
        scan(make(), meta)
    assert refused.value.where == "test://bucket/a.seg"


def test_bad_bytes_are_fetched_anew_once_they_are_distrusted(
    make: Make, store: ScriptedStore
) -> None:
    meta = put_segment(store, "a", 0, [10_000] * 20)
    good = store.objects["a.seg"]
    store.objects["a.seg"] = good[:100] + bytes([good[100] ^ 1]) + good[101:]
    storage = make()
    with pytest.raises(Corruption) as refused:
        scan(storage, meta)
    assert refused.value.where == "test://bucket/a.seg"
    store.objects["a.seg"] = good
    with pytest.raises(Corruption):
        scan(storage, meta)
    storage.open_bytes(SPEC, meta).distrust()
    assert scan(storage, meta) == good


def test_an_index_is_read_once_and_not_at_all_when_it_was_primed(
    make: Make, store: ScriptedStore
) -> None:
    meta = put_segment(store, "a", 100, [100] * 500)
    other = put_segment(store, "b", 100, [100] * 500)
    storage = make()
    storage.prime(meta, store.objects["a.idx"])
    dump = random_dump(meta, 5)
    for _ in range(3):
        assert storage.open_index(SPEC, meta).floor_offset(100) == (100, 0)
        assert storage.open_index(SPEC, other).floor_offset(100) == (100, 0)
    assert index_gets(store) == ["b.idx"]
    word, offset, position = next(row for row in dump.keys if len(row[0]) == 8)
    index = storage.open_index(SPEC, meta)
    assert index.newest_of_key(word) == (offset, position)
    assert index.newest_of_key(b"nobody") is None
    assert index.aborted() == list(dump.aborted)
    assert index_gets(store).count("a.idx") == 1  # All blocks are in one piece.


def test_a_primed_head_outlives_the_process(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 100, [100] * 500)
    storage = make()
    assert meta.tier is not None
    storage.prime(meta, store.objects["a.idx"][: meta.tier.index_head_length])
    storage.close()
    assert make().open_index(SPEC, meta).floor_offset(100) == (100, 0)
    assert index_gets(store) == []


def test_index_and_segment_are_asked_for_at_once(
    make: Make, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index answers only after the segment was asked for: one round trip, not two."""
    meta = put_segment(store, "a", 100, [1000] * 500)
    get_range = store.get_range
    is_asked = threading.Event()

    def in_turn(key: str, start: int, size: int) -> Buffer:
        if key.endswith(".seg"):
            is_asked.set()
        else:
            assert is_asked.wait(30), "the segment was not requested yet"
        return get_range(key, start, size)

    monkeypatch.setattr(store, "get_range", in_turn)
    assert make().open_index(SPEC, meta).floor_offset(350) is not None


def index_gets(store: ScriptedStore) -> list[str]:
    """The following segments are prefetched, or not yet."""
    return [key for key, _, _ in store.gets if key.endswith(".idx")]


def test_a_bad_cached_head_is_fetched_anew(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 100, [100] * 500)
    storage = make()
    assert meta.tier is not None
    head = bytearray(store.objects["a.idx"][: meta.tier.index_head_length])
    head[-1] ^= 1
    storage.prime(meta, head)
    assert storage.open_index(SPEC, meta).floor_offset(100) == (100, 0)
    store.objects["a.idx"] = bytes(len(store.objects["a.idx"]))
    storage.forget(meta)
    with pytest.raises(Corruption, match=r"is no \.idx object") as refused:
        storage.open_index(SPEC, meta).floor_offset(100)
    assert refused.value.where == "test://bucket/a.idx"


def test_a_forgotten_segment_leaves_nothing(
    make: Make, store: ScriptedStore, tmp_path: Path
) -> None:
    meta = put_segment(store, "a", 100, [10_000] * 500)
    storage = make()
    scan(storage, meta)
    storage.open_index(SPEC, meta).floor_offset(300)
    storage.flush()
    storage.forget(meta)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert storage.statistics().memory_bytes == 0
    storage.forget(dataclasses.replace(meta, tier=None))


def test_cold_bytes_are_only_read(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [100] * 5)
    content = make().open_bytes(SPEC, meta)
    assert content.length() == meta.length
    assert content.nearer(Point(1, 2), 5) == (1, 2)
    assert content.read(meta.length, 10) == []
    assert content.read_nowait(0, 10) is None
    (data,) = content.read(0, 10_000)
    assert content.read_nowait(0, 10) == data[:10]
    content.sync()
    for change in (
        lambda: content.append([b"x"], 0, None, durable=True),  # type: ignore[arg-type]
        lambda: content.truncate(0),
        lambda: content.range_at(0, 1),
    ):
        with pytest.raises(NotImplementedError, match=r"bucket/a\.seg never|bucket/a\.seg is"):
            change()
    content.drop()
    assert content.read_nowait(0, 10) is None
    assert "a.seg" in store.objects


def test_a_segment_that_is_no_longer_there_is_gone(make: Make, store: ScriptedStore) -> None:
    """Readers look again then: retention may have come between."""
    meta = put_segment(store, "a", 0, [100] * 5)
    store.objects.clear()
    storage = make()
    with pytest.raises(SegmentGone, match="bucket/a"):
        storage.open_bytes(SPEC, meta).read(0, 100)
    with pytest.raises(SegmentGone, match="bucket/a"):
        storage.open_index(SPEC, meta).floor_offset(3)


def test_a_closed_storage_refuses(make: Make, store: ScriptedStore) -> None:
    meta = put_segment(store, "a", 0, [100] * 5)
    storage = make()
    storage.close()
    with pytest.raises(Closed):
        scan(storage, meta)
    with pytest.raises(Closed):
        storage.open_index(SPEC, meta).floor_offset(3)
