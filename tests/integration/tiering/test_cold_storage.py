"""Cold segments over real stores, real full disks and processes that are killed."""

import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import Segment, SegmentGone, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.errors import Corruption, ObjectTruncated
from firnmq.index import Point
from firnmq.tiering.cold.cache import ChunkCache
from firnmq.tiering.cold.extents import ObjectPart
from firnmq.tiering.cold.medium import ColdStorage
from firnmq.tiering.format.index_object import write_index
from firnmq.tiering.stores import ObjectStore, open_store
from tests.integration.faults.loops import make_image, mounted, need
from tests.unit.record.batches import Made, record
from tests.unit.tiering.sources import random_dump, sealed_meta

MIB = 1024 * 1024
SPEC = ShardSpec(name="1_0", uid=1, config=TopicConfig())


def put_segment(store: ObjectStore) -> tuple[SegmentMeta, bytes, bytes]:
    """A segment of 20 MiB in a store, its bytes and its index."""
    chance = random.Random(8)
    content = b"".join(
        Made(records=[record(value=chance.randbytes(20_000))], base_offset=100 + number).build()
        for number in range(1_000)
    )
    meta = sealed_meta(base_offset=100, end_offset=1_100, length=len(content))
    index, head_length = write_index(random_dump(meta, 1), meta)
    assert meta.tier is not None
    copy = dataclasses.replace(meta.tier, index_length=len(index), index_head_length=head_length)
    store.upload(copy.key + ".seg", [content], size=len(content))
    store.upload(copy.key + ".idx", [index], size=len(index))
    return dataclasses.replace(meta, tier=copy), content, index


def scan(storage: ColdStorage, meta: SegmentMeta) -> bytes:
    segment = Segment(meta, storage.open_bytes(SPEC, meta), storage.open_index(SPEC, meta))
    reader = SegmentScan(segment, Point(meta.base_offset, 0), meta.length, verify=True)
    found = []
    while runs := reader.read(CHUNK_BYTES):
        found += [bytes(run.batch(entry)) for run in runs for entry in run.entries]
    return b"".join(found)


def test_a_cold_segment_is_read_like_any_other(store: ObjectStore, tmp_path: Path) -> None:
    # 1. It is read from front to back, and by its index.
    meta, content, _ = put_segment(store)
    assert meta.tier is not None
    storage = ColdStorage(store, tmp_path / "cache", cache_bytes=10**9)
    assert scan(storage, meta) == content
    dump = random_dump(meta, 1)
    index = storage.open_index(SPEC, meta)
    for word, offset, position in list(dump.keys)[:20]:
        if len(word) <= 128:
            assert index.newest_of_key(word) == (offset, position)
    assert index.floor_offset(dump.points[7][0]) == dump.points[7][:2]
    fetched = storage.statistics().fetched_bytes
    assert fetched <= meta.length + meta.tier.index_length
    # 2. After a restart everything comes from the cache: the objects may even be gone.
    storage.close()
    store.delete([meta.tier.key + ".seg", meta.tier.key + ".idx"])
    storage = ColdStorage(store, tmp_path / "cache", cache_bytes=10**9)
    assert scan(storage, meta) == content
    assert storage.open_index(SPEC, meta).floor_offset(100) == (100, 0)
    assert storage.statistics().fetch_count == 0
    # 3. Without the cache they are found to be gone.
    storage.forget(meta)
    with pytest.raises(SegmentGone):
        scan(storage, meta)
    storage.close()


def test_truncated_and_corrupt_objects_are_told_by_name(store: ObjectStore, tmp_path: Path) -> None:
    meta, content, index = put_segment(store)
    assert meta.tier is not None
    bad = bytearray(content)
    bad[9_000_000] ^= 16
    bad_index = bytearray(index)
    bad_index[300] ^= 16
    for data, data_index, kind in (
        (bytes(bad), bytes(bad_index), Corruption),
        (content[:9_000_000], index[:300], ObjectTruncated),
    ):
        store.upload(meta.tier.key + ".seg", [data], size=len(data))
        store.upload(meta.tier.key + ".idx", [data_index], size=len(data_index))
        storage = ColdStorage(store, tmp_path / kind.__name__, cache_bytes=10**9)
        with pytest.raises(kind, match=r"\.seg"):
            scan(storage, meta)
        with pytest.raises(kind, match=r"\.idx"):
            storage.open_index(SPEC, meta).floor_offset(500)
        storage.close()


@pytest.mark.root
def test_a_disk_that_is_really_full_leaves_reads_uncached(tmp_path: Path) -> None:
    need("mkfs.ext4")
    make_image(tmp_path / "image", 16, "mkfs.ext4", "-q", "-F", "-m", "0")
    store = open_store(f"file://{tmp_path}/store")
    meta, content, _ = put_segment(store)
    with mounted(tmp_path / "image", tmp_path / "disk") as disk:
        # 1. The segment is larger than the disk, which the cache believes to be large enough.
        storage = ColdStorage(store, disk / "cache", cache_bytes=10**9)
        assert scan(storage, meta) == content
        storage.flush()
        statistics = storage.statistics()
        assert statistics.failed_write_count > 0
        assert statistics.disk_bytes < 16 * MIB
        storage.close()
        # 2. What is there is whole; the rest is fetched.
        storage = ColdStorage(store, disk / "cache", cache_bytes=10**9)
        assert scan(storage, meta) == content
        storage.close()
    store.close()


_READ_WITHOUT_END = """
import sys
from pathlib import Path
from firnmq.tiering.cold.cache import ChunkCache
from firnmq.tiering.cold.extents import ObjectPart
from firnmq.tiering.stores import open_store

store = open_store(sys.argv[1])
length = int(sys.argv[3])
print("ready", flush=True)
for number in range(10**9):
    cache = ChunkCache(store, Path(sys.argv[2]), disk_bytes=length, memory_bytes=length,
                       chunk_bytes=1 << 20, piece_bytes=1 << 17, threads=2)
    for name in ("a", "b"):
        part = ObjectPart(name, 0, length)
        if number % 2:
            cache.forget(part)
        cache.read(part, 0, length)
    cache.close()
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_cache_whose_process_was_killed_gives_only_good_bytes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    length = 4 * MIB + 5_000
    url = f"file://{tmp_path}/store"
    store = open_store(url)
    contents = {name: chance.randbytes(length) for name in ("a", "b")}
    for name, content in contents.items():
        store.put(name, content)
    reader = subprocess.Popen(
        [sys.executable, "-c", _READ_WITHOUT_END, url, tmp_path / "cache", str(length)],
        stdout=subprocess.PIPE,
    )
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(chance.uniform(0.05, 0.6))
        os.kill(reader.pid, signal.SIGKILL)
    if seed == 3:  # As after a power cut: names are there, bytes are not.
        for path in (tmp_path / "cache").rglob("*-*"):
            if path.is_file():
                path.write_bytes(bytes(path.stat().st_size))
    cache = ChunkCache(
        store,
        tmp_path / "cache",
        disk_bytes=length,
        memory_bytes=length,
        chunk_bytes=1 << 20,
        piece_bytes=1 << 17,
        threads=2,
    )
    assert cache.statistics().disk_bytes <= length
    for name, content in contents.items():
        assert cache.read(ObjectPart(name, 0, length), 0, length) == content
    cache.close()
    assert not list((tmp_path / "cache").rglob("*.new"))
    store.close()
    shutil.rmtree(tmp_path / "cache")
