"""Tiered storage against a real S3 server, with 50 ms added to every first byte.

SeaweedFS runs on the loopback interface behind a proxy in a process of its own. Each figure is
compared with what a bare obstore client gets through the same proxy in the same run.
"""

import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import obstore
from obstore.store import S3Store

from benchmarks import processors
from benchmarks.harness import Bar, Better, Measured, Run, benchmark, median, percentile
from benchmarks.workload import BATCH_RECORDS, MEGABYTE, values
from firnmq import NewRecord
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.config import TieringConfig
from firnmq.disk import run_blocking
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.record import encode
from firnmq.server import LocalStore, Store, TopicHandle
from firnmq.testing.appending import append_batch
from firnmq.testing.fault_proxy import ProxyProcess
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from firnmq.tiering.format.object_names import SEGMENT

FIRST_BYTE_MS = 50
_MIB = 1024 * 1024
_FIRST_BYTES = 256 * 1024
_CHUNK_BYTES = 4 * _MIB
_READER_COUNT = 8
_READ_BYTES = _MIB
_UPLOAD_BYTES = 128 * _MIB
_APPENDS_PER_S = 200
_APPEND_ROUND_S = 3
_APPEND_RECORDS = 10
_CACHE_BYTES = 1024 * _MIB
"""As a node has it that was told nothing."""
_SMALL_CACHE_BYTES = 96 * _MIB
"""Less than there is to scan, as it is with years of history: nothing is found there again."""


class _Scene:
    """A server, a proxy, a data directory with an object store, and a bare client."""

    def __init__(self, run: Run, opened: ExitStack) -> None:
        self._data = run.scratch() / "data"
        self._caches = run.scratch()
        self._cache_count = 0
        self._server = SeaweedServer(run.scratch())
        opened.callback(self._server.stop)
        self._proxy = ProxyProcess(("127.0.0.1", self._server.port), first_byte_ms=FIRST_BYTE_MS)
        opened.callback(self._proxy.stop)
        self.bare = S3Store(
            self._server.bucket,
            endpoint=self._proxy.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True, "timeout": "60s"},
        )

    @property
    def server_pids(self) -> tuple[int, int]:
        return self._server.pid, self._proxy.pid

    @contextmanager
    def store(self, *, is_direct: bool = False, cache_bytes: int = _CACHE_BYTES) -> Iterator[Store]:
        """The data directory with an empty cache, through the proxy unless `is_direct`."""
        self._cache_count += 1
        cache = self._caches / f"{self._cache_count}"
        tiering = TieringConfig(
            url=self._server.url,
            cluster="bench",
            endpoint=self._server.endpoint if is_direct else self._proxy.endpoint,
            region="us-east-1",
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            allow_http=True,
            cache_directory=cache,
            cache_bytes=cache_bytes,
        )
        with Store(LocalStore(self._data, background=False, tiering=tiering)) as store:
            yield store
        shutil.rmtree(cache)

    def make_cold(self, *, segment_bytes: int, segment_count: int) -> None:
        """A topic `cold` of which only the object store has anything."""
        with self.store(is_direct=True) as store:
            topic = create(store, "cold", **{"local.retention.ms": 0})
            for _ in range(segment_count):
                fill(store, topic, segment_bytes)
                topic.roll()
            work(store, until_cold=topic)


def create(store: Store, name: str, **options: object) -> TopicHandle:
    base = {"tiering": "on", "durability": "os", "segment.bytes": 1024 * _MIB}
    return store.create_topic(name, options={**base, **options})


def fill(store: Store, topic: TopicHandle, count: int) -> None:
    """About so many bytes: 1 KiB records in batches of 100."""
    driver = store.local.manager.driver_of(topic.name)
    assert isinstance(driver, EngineStorageAdapter)
    records = [NewRecord(value=value) for value in values(BATCH_RECORDS)]
    batch = encode(records, now_ms=time.time_ns() // 1_000_000 - 60_000)
    shard = topic.topic.shard_name(0)
    for _ in range(max(1, count // len(batch))):
        run_blocking(append_batch(driver, shard, bytearray(batch)))


def work(store: Store, *, until_cold: TopicHandle | None = None) -> None:
    """Uploads what is sealed; and until nothing sealed of a topic is here any more."""
    assert store.local.tier is not None
    mover = store.local.tier.mover
    while True:
        wait_for_mover(store)
        mover.request_upload()
        mover.work()
        wait_for_mover(store)
        store.local.housekeep()
        is_waiting = mover.status().waiting_segments > 0
        if not is_waiting and (until_cold is None or not sealed_here(until_cold)):
            return


def wait_for_mover(store: Store) -> None:
    """Waits until the metadata cache, which the mover follows, has seen all changes."""
    local = store.local
    local.cache.wait_for_revision(local.meta.range("nodes/").revision, 30)


def sealed(topic: TopicHandle) -> list[SegmentMeta]:
    return [meta for meta in topic.status(0).segments if meta.is_sealed]


def sealed_here(topic: TopicHandle) -> list[SegmentMeta]:
    return [meta for meta in sealed(topic) if meta.is_local]


def object_of(meta: SegmentMeta) -> str:
    assert meta.tier is not None
    return meta.tier.key + SEGMENT


def scan(store: Store, topic: TopicHandle, stop: threading.Event | None = None) -> int:
    """Raw batches of all cold segments in turn; the bytes read."""
    engine = store.local.engines[topic.topic.config.storage_type]
    shard = topic.topic.shard_name(0)
    offset, end_offset, read_bytes = 0, sealed(topic)[-1].end_offset, 0
    while offset < end_offset and not (stop is not None and stop.is_set()):
        page = engine.read_batches(shard, offset, max_bytes=_READ_BYTES)
        read_bytes += sum(map(len, page.batches))
        offset = page.next_offset
    return read_bytes


@contextmanager
def scene_of(run: Run) -> Iterator[_Scene]:
    with ExitStack() as opened:
        yield _Scene(run, opened)


@benchmark("cold_first_record", unit="ms", bar=Bar.ratio_at_most(1.3), better=Better.LOWER)
def cold_first_record(run: Run) -> Measured:
    """One record somewhere in a segment that was never read, against one bare GET of 256 KiB."""
    rounds = 40
    with scene_of(run) as scene:
        scene.make_cold(segment_bytes=2 * _MIB, segment_count=rounds + 2)
        with scene.store() as store:
            topic = store.topic("cold")
            metas = iter(sealed(topic))
            chosen = random.Random(7)

            def ours() -> float:
                meta = next(metas)
                offset = chosen.randrange(meta.base_offset, meta.end_offset)
                started = time.perf_counter()
                (record,) = topic.read(offset, max_records=1)
                seconds = time.perf_counter() - started
                assert record.offset == offset
                return seconds * 1000

            keys = [object_of(meta) for meta in sealed(topic)]

            def bare() -> float:
                key = chosen.choice(keys)
                started = time.perf_counter()
                obstore.get_range(scene.bare, key, start=_MIB, length=_FIRST_BYTES)
                return (time.perf_counter() - started) * 1000

            return run.alternate(ours=ours, baseline=bare, rounds=rounds)


@benchmark("cold_scan", unit="MB/s", bar=Bar.ratio_at_least(0.7))
def cold_scan(run: Run) -> Measured:
    """All batches of 512 MiB in order, against eight parallel range reads of 4 MiB."""
    with scene_of(run) as scene:
        scene.make_cold(segment_bytes=64 * _MIB, segment_count=8)
        with scene.store() as store:
            metas = sealed(store.topic("cold"))

        def ours() -> float:
            with scene.store() as store:
                topic = store.topic("cold")
                topic.status(0)
                started = time.perf_counter()
                read_bytes = scan(store, topic)
                seconds = time.perf_counter() - started
            assert read_bytes == sum(meta.length for meta in metas)
            return read_bytes / MEGABYTE / seconds

        def bare() -> float:
            return _parallel_reads(scene.bare, metas)

        return run.alternate(ours=ours, baseline=bare, rounds=5)


def _parallel_reads(client: S3Store, metas: Sequence[SegmentMeta]) -> float:
    ranges = [
        (object_of(meta), start, min(_CHUNK_BYTES, meta.length - start))
        for meta in metas
        for start in range(0, meta.length, _CHUNK_BYTES)
    ]

    def read(wanted: tuple[str, int, int]) -> int:
        key, start, length = wanted
        return len(obstore.get_range(client, key, start=start, length=length))

    with ThreadPoolExecutor(_READER_COUNT) as pool:
        started = time.perf_counter()
        read_bytes = sum(pool.map(read, ranges))
        return read_bytes / MEGABYTE / (time.perf_counter() - started)


@benchmark("tier_upload", unit="MB/s", bar=Bar.ratio_at_least(0.8))
def tier_upload(run: Run) -> Measured:
    """A sealed segment of 128 MiB until it is tiered, against a bare multipart upload of it."""
    with scene_of(run) as scene, scene.store() as store:
        topic = create(store, "t")
        numbers = iter(range(1_000))

        def seal() -> Path:
            fill(store, topic, _UPLOAD_BYTES)
            topic.roll()
            wait_for_mover(store)
            base_offset = sealed(topic)[-1].base_offset
            (path,) = store.local.path.rglob(f"{base_offset:020d}.log")
            return path

        def ours() -> float:
            size = seal().stat().st_size
            started = time.perf_counter()
            work(store)
            seconds = time.perf_counter() - started
            assert sealed(topic)[-1].tier is not None
            return size / MEGABYTE / seconds

        def bare() -> float:
            path = seal()
            started = time.perf_counter()
            obstore.put(scene.bare, f"bare/{next(numbers)}", path)
            seconds = time.perf_counter() - started
            work(store)  # So that it does not wait for the next round of ours.
            return path.stat().st_size / MEGABYTE / seconds

        return run.alternate(ours=ours, baseline=bare, rounds=9)


@benchmark("hot_append_during_cold", unit="ms", bar=Bar.ratio_at_most(1.5), better=Better.LOWER)
def hot_append_during_cold(run: Run) -> Measured:
    """p99 of durable appends of 10 KiB at 200 a second, with and without a cold scan beside.

    Scan and appends are in one process, with all settings as they are by default. Server and proxy
    stand for other machines: they have a processor of their own, and what is measured has the
    others, with and without the scan. The scan goes to the object store for everything; the same
    with everything in the cache on disk is recorded too, as `cached`.
    """
    with scene_of(run) as scene, processors.apart_from(scene.server_pids):
        scene.make_cold(segment_bytes=64 * _MIB, segment_count=4)
        os.sync()  # What the server has written would else be written back during some round.
        with scene.store(cache_bytes=_SMALL_CACHE_BYTES) as store:
            store.create_topic("hot", options={"durability": "fsync"})
            found = _appends(run, store)
        with scene.store() as store:
            cache_all(store)
            cached = _appends(run, store)
    assert cached.ratio is not None
    extra = {"cached_ratio": cached.ratio, "cached_scan_mb_s": cached.extra["scan_mb_s"]}
    return Measured(value=found.value, baseline=found.baseline, extra={**found.extra, **extra})


def cache_all(store: Store) -> None:
    """Scans until all is in the cache on disk: what cannot be written in time is not cached."""
    assert store.local.tier is not None
    cache = store.local.tier.cold
    fetch_count = -1
    while cache.statistics().fetch_count > fetch_count:
        fetch_count = cache.statistics().fetch_count
        scan(store, store.topic("cold"))
        cache.flush()


def _appends(run: Run, store: Store) -> Measured:
    """Of all appends of all rounds together: a round of 600 has only six above its 99th percentile,
    and one moment in which the disk stands still decides about it."""
    hot, cold = store.topic("hot"), store.topic("cold")
    assert store.local.tier is not None
    cache = store.local.tier.cold
    records = [NewRecord(value=value) for value in values(_APPEND_RECORDS)]
    scanned: list[float] = []
    beside: list[float] = []
    alone: list[float] = []

    def ours() -> float:
        stop = threading.Event()
        reader = threading.Thread(target=_scan_until, args=(store, cold, stop, scanned))
        reader.start()
        try:
            beside.extend(figures := _paced_appends(hot, records))
        finally:
            stop.set()
            reader.join()
        return percentile(figures, 99)

    def baseline() -> float:
        cache.flush()  # What a scan has left to be cached is no baseline's.
        alone.extend(figures := _paced_appends(hot, records))
        return percentile(figures, 99)

    rounds = run.alternate(ours=ours, baseline=baseline, rounds=15)
    extra = {
        **rounds.extra,
        "rounds_ratio": rounds.value / rounds.baseline if rounds.baseline else 0.0,
        "p50_ms": median(beside),
        "baseline_p50_ms": median(alone),
        "scan_mb_s": median(scanned),
    }
    return Measured(value=percentile(beside, 99), baseline=percentile(alone, 99), extra=extra)


def _scan_until(
    store: Store, topic: TopicHandle, stop: threading.Event, scanned: list[float]
) -> None:
    """Scans again and again; notes MB/s."""
    started, read_bytes = time.perf_counter(), 0
    while not stop.is_set():
        read_bytes += scan(store, topic, stop)
    scanned.append(read_bytes / MEGABYTE / (time.perf_counter() - started))


def _paced_appends(topic: TopicHandle, records: list[NewRecord]) -> list[float]:
    """Latencies in ms. What is due while one takes long is left out, so that a moment in which the
    disk stands still counts once and not for everything that came after it.
    """
    figures = []
    began = time.perf_counter()
    for number in range(_APPENDS_PER_S * _APPEND_ROUND_S):
        early = began + number / _APPENDS_PER_S - time.perf_counter()
        if early < 0:
            continue
        time.sleep(early)
        started = time.perf_counter()
        topic.append(records, shard=0)
        figures.append((time.perf_counter() - started) * 1000)
    return figures
