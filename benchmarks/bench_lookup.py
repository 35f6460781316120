"""Lookups by offset, key, tag and time in a shard of ten million records, built once for all."""

import atexit
import functools
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import firnmq
from benchmarks.harness import SCRATCH_ROOT, Bar, Better, Measured, Run, benchmark
from benchmarks.workload import p50, p99
from firnmq import NewRecord
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.disk import Family, KeyValueStore, run_blocking
from firnmq.index.layout import OFFSET, PREFIX
from firnmq.record import encode
from firnmq.server import Store, TopicHandle
from firnmq.testing.appending import append_batch

_RECORD_COUNT = 10_000_000
_BATCH_RECORDS = 1_000
_COMMON_TAGS = tuple(f"common-{number}" for number in range(10))
_RARE_TAG = "rare"
_RARE_SHARE = 0.001
_FIRST_TIMESTAMP_MS = 1_700_000_000_000
_LOOKUP_COUNT = 1_000
_PAGE_RECORDS = 100


class _BigShard:
    """The store, and what is in it: record n has key `key-n` and time first + n milliseconds."""

    def __init__(self, store: Store, topic: TopicHandle, build_seconds: float) -> None:
        self.store = store
        self.topic = topic
        self.build_seconds = build_seconds
        self.source = random.Random(2)

    def measure(self, lookup: Callable[[int], object]) -> Measured:
        """Median milliseconds of lookups at random record numbers."""
        figures = []
        for number in range(_LOOKUP_COUNT + 50):
            target = self.source.randrange(_RECORD_COUNT)
            started = time.perf_counter()
            lookup(target)
            if number >= 50:  # The first ones warm the caches up.
                figures.append((time.perf_counter() - started) * 1000)
        return Measured(
            value=p50(figures), extra={"p99_ms": p99(figures), "build_s": self.build_seconds}
        )


@functools.cache
def _big_shard() -> _BigShard:
    """Built at the first use in a process and removed when it ends: five benchmarks share it."""
    SCRATCH_ROOT.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="lookup-", dir=SCRATCH_ROOT))
    resources = ExitStack()
    atexit.register(resources.close)
    resources.callback(shutil.rmtree, directory, ignore_errors=True)
    store = resources.enter_context(firnmq.open(directory))
    started = time.perf_counter()
    topic = store.create_topic("big", options={"durability": "os"})
    driver = store.local.manager.driver_of("big")
    assert isinstance(driver, EngineStorageAdapter)
    shard = topic.topic.shard_name(0)
    source = random.Random(1)
    for first in range(0, _RECORD_COUNT, _BATCH_RECORDS):
        run_blocking(append_batch(driver, shard, _batch(first, source)))
    return _BigShard(store, topic, time.perf_counter() - started)


def _batch(first: int, source: random.Random) -> bytearray:
    value = source.randbytes(24)
    records = []
    for number in range(first, first + _BATCH_RECORDS):
        tags: tuple[str, ...] = (_COMMON_TAGS[number % len(_COMMON_TAGS)],)
        if source.random() < _RARE_SHARE:
            tags += (_RARE_TAG,)
        records.append(
            NewRecord(
                value=value,
                key=b"key-%d" % number,
                tags=tags,
                timestamp_ms=_FIRST_TIMESTAMP_MS + number,
            )
        )
    return encode(records, now_ms=0)


@benchmark("offset_index_size", unit="KB", bar=Bar.value_at_most(240), better=Better.LOWER)
def offset_index_size(run: Run) -> Measured:
    """Bytes of keys and values in the offset index of 10 M records."""
    big = _big_shard()
    kv, status = big.store.local.kv, big.topic.status()
    size = point_count = 0
    for meta in status.segments:
        lower = PREFIX.pack(status.spec.uid, meta.seq, OFFSET)
        upper = PREFIX.pack(status.spec.uid, meta.seq, OFFSET + 1)
        entries = kv.items(Family.INDEX, lower, upper)
        point_count += len(entries)
        size += sum(len(key) + len(value) for key, value in entries)
    return Measured(
        value=size / 1000,
        extra={"points": point_count, "all_indexes_on_disk_mb": _index_megabytes(kv)},
    )


def _index_megabytes(kv: KeyValueStore) -> float:
    """The four indexes' tables, all memory written out; offsets cannot be told apart in them."""
    kv.compact(Family.INDEX)
    return kv.property_int(Family.INDEX, "rocksdb.total-sst-files-size") / 1_000_000


@benchmark("offset_lookup", unit="ms", bar=Bar.value_at_most(2), better=Better.LOWER)
def offset_lookup(run: Run) -> Measured:
    """One record at a random offset of 10 M."""
    big = _big_shard()

    def lookup(number: int) -> None:
        assert big.topic.read(number, max_records=1).records()[0].offset == number

    return big.measure(lookup)


@benchmark("key_lookup", unit="ms", better=Better.LOWER)
def key_lookup(run: Run) -> Measured:
    """The record of a random key of 10 M."""
    big = _big_shard()

    def lookup(number: int) -> None:
        assert big.topic.read_by_key(b"key-%d" % number).offset == number

    return big.measure(lookup)


@benchmark("tag_scan", unit="ms", better=Better.LOWER)
def tag_scan(run: Run) -> Measured:
    """The first 100 records from a random offset on with a tag that one in 1,000 has."""
    big = _big_shard()

    def scan(number: int) -> None:
        page = big.topic.read_by_tag(_RARE_TAG, number // 2, max_records=_PAGE_RECORDS)
        assert len(page) == _PAGE_RECORDS

    return big.measure(scan)


@benchmark("time_lookup", unit="ms", better=Better.LOWER)
def time_lookup(run: Run) -> Measured:
    """The offset of a random time within 10 M records."""
    big = _big_shard()

    def lookup(number: int) -> None:
        assert big.topic.offset_at(_FIRST_TIMESTAMP_MS + number) == number

    return big.measure(lookup)
