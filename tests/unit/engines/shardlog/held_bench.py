"""A store whose metadata can be held up."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from firnmq.config import StoreConfig, TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling import RollState
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import HeldMetaStore

SEGMENT_BYTES = 4096
WAIT_S = 60.0


class Bench:
    """A store with one worker, whose metadata can be held up."""

    def __init__(self, path: Path, storage_type: str) -> None:
        self.path = path
        self.storage_type = storage_type
        self.threads = ThreadPoolExecutor(32)
        self.open()

    def open(self) -> None:
        config = StoreConfig(io_workers=1)
        self.store = LocalStore(self.path, config=config, background=False, open_meta=HeldMetaStore)
        assert isinstance(self.store.meta, HeldMetaStore)
        self.meta = self.store.meta
        self.engine = self.store._log_engines[self.storage_type]

    def shard(self, name: str, **options: object) -> str:
        defaults = {"storage.type": self.storage_type, "segment.bytes": SEGMENT_BYTES}
        self.engine.create_shard(name, TopicConfig.from_options({**defaults, **options}))
        return name

    def log(self, shard: str) -> ShardLog:
        return self.engine.log(shard)

    def append(self, shard: str, number: int, size: int = 100) -> int:
        value = (b"%d " % number).ljust(size, b".")
        return run_blocking(self.engine.append(shard, [NewRecord(value=value)])).base_offset

    def fill(self, shard: str) -> int:
        """Appends up to the first one that asks for a roll; how many there are then."""
        number = 0
        while True:
            self.append(shard, number)
            number += 1
            if self.log(shard).tail.position > SEGMENT_BYTES:
                return number

    def wait_for(self, shard: str, *states: RollState) -> None:
        log = self.log(shard)
        with log.lock:
            assert log.change_ended.wait_for(lambda: log.rolling.state in states, WAIT_S)

    def wait_until_waited_for(self, shard: str, log: ShardLog | None = None) -> None:
        """Returns once a thread waits for the end of a roll or another change of the shard. The log
        is given if the shard is being deleted."""
        log = log or self.log(shard)
        deadline_s = time.monotonic() + WAIT_S
        while not log.change_ended._waiters:
            assert time.monotonic() < deadline_s
            self.append("other", -1)

    def wait_until_parked(self, shard: str, count: int) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while len(self.log(shard).parked) < count:
            assert time.monotonic() < deadline_s
            self.append("other", -1)  # Every append is a turn of the worker.

    def numbers(self, shard: str) -> list[int]:
        start, _ = self.engine.bounds(shard)
        page = self.engine.read_by_offset(shard, start, max_records=10_000, max_bytes=2**30)
        return [int(bytes(record.value or b"").split()[0]) for record in page.records()]

    def close(self) -> None:
        self.meta.release()
        self.store.close()
        self.threads.shutdown()
