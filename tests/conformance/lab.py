"""One store under test, and a handle on a shard that reads as the tests speak of it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from firnmq.config import StorageType, StoreConfig, TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines import AdapterOffsetStrategy, Appended, Engine, Page, ShardStatus
from firnmq.engines.shardlog.rolling import RollState
from firnmq.engines.tiering.api import ColdMedium
from firnmq.record import NewRecord, Record, decode
from firnmq.server import LocalStore
from firnmq.testing import FakeClock, LaggingReplication
from firnmq.testing.appending import append_batch

EVERYTHING = 2**31 - 1
SHARED_FILE = "SharedFile"
"""In place of a storage type: shards of the segment engine that share files."""
SHARED_FILE_BYTES = 16 * 1024
"""Files are so small that tests come by many of them."""
_WAIT_S_MAX = 60.0


def options_of(kind: str) -> dict[str, object]:
    """Options of a topic that is kept by an engine, or by the segment engine in shared files."""
    if kind == SHARED_FILE:
        return {"storage.type": StorageType.SEGMENT.value, "segment.layout": "shared-file"}
    return {"storage.type": kind}


class Lab:
    """A data directory with a store on it, one engine of which is under test."""

    def __init__(
        self,
        path: Path,
        storage_type: str,
        *,
        config: StoreConfig | None = None,
        cold: ColdMedium | None = None,
        replication: LaggingReplication | None = None,
    ) -> None:
        """Closes `replication` with itself. `storage_type` may be SHARED_FILE."""
        self.kind = storage_type
        self.options = options_of(storage_type)
        if storage_type == SHARED_FILE:
            storage_type = StorageType.SEGMENT.value
            config = replace(config or StoreConfig(), shared_file_bytes=SHARED_FILE_BYTES)
        self.cold = cold
        self.replication = replication
        self.path = path
        self.storage_type = storage_type
        self.clock = FakeClock()
        self.config = config
        self._names = itertools.count()
        self.store = self._opened()

    def _opened(self) -> LocalStore:
        return LocalStore(
            self.path,
            config=self.config,
            clock=self.clock,
            background=False,
            cold=self.cold,
            replication=self.replication,
        )

    @property
    def engine(self) -> Engine:
        return self.store.engines[self.storage_type]

    def shard(self, options: Mapping[str, object] | None = None) -> Shard:
        """A new shard of the engine under test."""
        config = TopicConfig.from_options({**self.options, **(options or {})})
        if self.kind != SHARED_FILE:
            name = f"shard_{next(self._names)}"
            self.engine.create_shard(name, config)
            return Shard(self, name)
        # Shards that share files are kept as ranges of their topics.
        topic = run_blocking(
            self.store.manager.create_topic(f"topic{next(self._names)}", 1, config)
        )
        return Shard(self, topic.shard_name(0))

    def reopen(self) -> None:
        self.store.close()
        self.store = self._opened()

    def crash(self, lose: Callable[[Path], None] = lambda path: None) -> None:
        """Goes on with a copy of the directory made while the store was open, as after a kill.
        `lose` takes from it what a power failure would."""
        copy = copy_at_one_moment(self.path)
        self.store.close()
        shutil.rmtree(self.path)
        self.path = copy
        lose(copy)
        self.store = self._opened()

    def close(self) -> None:
        self.store.close()
        if self.replication is not None:
            self.replication.close()


def copy_at_one_moment(path: Path) -> Path:
    """A copy beside the directory, made again if RocksDB changed its files meanwhile."""
    for attempt in itertools.count():
        copy = path.with_name(f"{path.name}-{attempt}")
        if copy.exists():
            continue
        before = _listing(path)
        with suppress(shutil.Error):
            shutil.copytree(path, copy)
            if _listing(path) == before:
                return copy
        shutil.rmtree(copy)
    raise AssertionError("counting does not end")


def _listing(path: Path) -> list[tuple[str, int, int]]:
    found = []
    for each in sorted(path.rglob("*")):
        with suppress(FileNotFoundError):
            status = each.stat()
            found.append((str(each), status.st_size, status.st_mtime_ns))
    return found


class Shard:
    """A shard by name: it means the same before and after the store was reopened."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name

    @property
    def engine(self) -> Engine:
        return self.lab.engine

    def append(self, *records: NewRecord) -> Appended:
        appended = run_blocking(self.engine.append(self.name, records))
        self._wait_for_roll()
        return appended

    def append_values(self, *values: bytes) -> Appended:
        return self.append(*(NewRecord(value=value) for value in values))

    def append_each(self, records: Iterable[NewRecord]) -> None:
        """Each record by a request of its own, so that each becomes a batch."""
        for record in records:
            self.append(record)

    def append_raw(self, batch: bytes) -> Appended:
        appended = run_blocking(append_batch(self.engine, self.name, batch))
        self._wait_for_roll()
        return appended

    def _wait_for_roll(self) -> None:
        """Returns when a roll that the append has asked for is over, so that tests can tell which
        records share a segment."""
        log = self.engine.log(self.name)  # type: ignore[attr-defined]
        if log.rolling.state is not RollState.IDLE:
            ended = (RollState.IDLE, RollState.CLOSED)
            with log.lock:
                assert log.change_ended.wait_for(lambda: log.rolling.state in ended, _WAIT_S_MAX)

    def read(
        self, offset: int, *, max_records: int = EVERYTHING, max_bytes: int = EVERYTHING
    ) -> Page:
        return self.engine.read_by_offset(
            self.name, offset, max_records=max_records, max_bytes=max_bytes
        )

    def records(self) -> list[Record]:
        return self.read(self.start).records()

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]

    def raw_records(self, offset: int | None = None, max_bytes: int = EVERYTHING) -> list[Record]:
        """What the stored batches hold, as a Kafka client would decode them."""
        start = self.start if offset is None else offset
        page = self.engine.read_batches(self.name, start, max_bytes=max_bytes)
        return decode(page.batches).records()

    def raw_offsets(self) -> list[int]:
        return [record.offset for record in self.raw_records()]

    def by_key(self, key: bytes) -> Record:
        page = self.engine.read_by_key(self.name, key)
        (record,) = page.records()
        return record

    def by_tag(
        self,
        tag: str,
        start_offset: int = 0,
        *,
        max_records: int = EVERYTHING,
        max_bytes: int = EVERYTHING,
    ) -> Page:
        return self.engine.read_by_tag(
            self.name, tag.encode(), start_offset, max_records=max_records, max_bytes=max_bytes
        )

    def tagged(self, tag: str, start_offset: int = 0) -> list[int]:
        return [record.offset for record in self.by_tag(tag, start_offset)]

    def at_time(
        self, timestamp_ms: int, strategy: AdapterOffsetStrategy = AdapterOffsetStrategy.LATEST
    ) -> int:
        return self.engine.get_offset_by_timestamp(self.name, timestamp_ms, strategy)

    def delete(self, *offsets: int) -> None:
        self.engine.delete_by_offset(self.name, offsets)
        self._wait_for_roll()

    def delete_key(self, key: bytes) -> None:
        self.engine.delete_by_key(self.name, key)
        self._wait_for_roll()

    def delete_before(self, offset: int) -> None:
        self.engine.delete_records_before(self.name, offset)

    def truncate(self, offset: int) -> None:
        self.engine.truncate(self.name, offset)

    def roll(self) -> None:
        self.engine.roll(self.name)

    @property
    def status(self) -> ShardStatus:
        return self.engine.status(self.name)

    @property
    def start(self) -> int:
        return self.status.start_offset

    @property
    def end(self) -> int:
        return self.status.end_offset

    @property
    def segment_bases(self) -> list[int]:
        return [segment.base_offset for segment in self.status.segments]


def numbered(count: int, *, size: int = 10, **fields: object) -> list[NewRecord]:
    """Records whose values tell them apart."""
    return [
        NewRecord(value=b"%0*d" % (size, number), **fields)  # type: ignore[arg-type]
        for number in range(count)
    ]
