"""Reading a log from front to back, as raw batches and as columns."""

import os
import time

import firnmq
from benchmarks.harness import Bar, Measured, Run, benchmark, median
from benchmarks.workload import BATCH_RECORDS, MEGABYTE, values
from firnmq import NewRecord
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.disk import run_blocking
from firnmq.record import encode
from firnmq.server import Store, TopicHandle
from firnmq.testing.appending import append_batch

_LOG_BYTES = 1024 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


def _written_topic(store: Store) -> TopicHandle:
    """A topic with one segment file of 1 GiB: 1 KiB records in batches of 100."""
    options = {"durability": "os", "segment.bytes": 2 * _LOG_BYTES}
    topic = store.create_topic("t", options=options)
    driver = store.local.manager.driver_of("t")
    assert isinstance(driver, EngineStorageAdapter)
    batch = encode([NewRecord(value=value) for value in values(BATCH_RECORDS)], now_ms=1)
    shard = topic.topic.shard_name(0)
    for _ in range(0, _LOG_BYTES, len(batch)):
        run_blocking(append_batch(driver, shard, bytearray(batch)))
    return topic


@benchmark("read_sequential", unit="MB/s", bar=Bar.ratio_at_least(0.7))
def read_sequential(run: Run) -> Measured:
    """Raw batches of a page-cached file, against plain preads of it with the same chunk size."""
    with firnmq.open(run.scratch()) as store:
        topic = _written_topic(store)
        shard, end_offset = topic.topic.shard_name(0), topic.status().end_offset
        (path,) = store.local.path.rglob(f"{0:020d}.log")
        engine = store.local.engines["EngineSegment"]

        def ours() -> float:
            offset = read_bytes = 0
            started = time.perf_counter()
            while offset < end_offset:
                page = engine.read_batches(shard, offset, max_bytes=_CHUNK_BYTES)
                read_bytes += sum(map(len, page.batches))
                offset = page.next_offset
            seconds = time.perf_counter() - started
            assert read_bytes == path.stat().st_size
            return read_bytes / MEGABYTE / seconds

        def bare() -> float:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                position = 0
                started = time.perf_counter()
                while data := os.pread(descriptor, _CHUNK_BYTES, position):
                    position += len(data)
                return position / MEGABYTE / (time.perf_counter() - started)
            finally:
                os.close(descriptor)

        def columns_rate() -> float:
            """Rows per second as Arrow tables of up to 8 MiB."""
            offset = rows = 0
            started = time.perf_counter()
            while offset < end_offset:
                page = topic.read(offset, max_records=100_000)
                rows += page.to_arrow().num_rows
                offset = page.next_offset
            assert rows == end_offset
            return rows / (time.perf_counter() - started)

        columns = median(columns_rate() for _ in range(5))
        return run.alternate(ours=ours, baseline=bare, rounds=7, extra={"columns_rows_s": columns})
