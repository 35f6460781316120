"""Index entries in several writes: a crash after any of them leaves a log that is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firnmq.disk import KeyValueStore, run_blocking
from firnmq.disk.kv import KvBatch
from firnmq.engines.media import durable
from firnmq.errors import KeyNotFound, StorageFailed
from firnmq.index import writing
from firnmq.record import NewRecord, encode
from firnmq.server import LocalStore

SLICE, PRODUCER = 16, 7
BEFORE, TURN = 30, 120
"""Records of the log before the turn, and of the turn."""


class WatchedStore(KeyValueStore):
    """Calls `after_write` after every write, while it is set."""

    after_write = None

    @contextmanager
    def batch(self, opened_count: int | None = None) -> Iterator[KvBatch]:
        with super().batch(opened_count) as batch:
            yield batch
        if self.after_write is not None:
            self.after_write()


class Log:
    """One shard and the records that were appended to it, in a model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.local = LocalStore(path, background=False, open_kv=WatchedStore)
        assert isinstance(self.local.kv, WatchedStore)
        self.kv = self.local.kv

    @classmethod
    def create(cls, path: Path, storage_type: str, durability: str) -> Log:
        log = cls(path)
        options = {"storage.type": storage_type, "durability": durability}
        from firnmq.config import TopicConfig

        run_blocking(log.local.manager.create_topic("t", 1, TopicConfig.from_options(options)))
        return log

    @property
    def shard(self) -> str:
        return self.local.catalog.get("t").shard_name(0)

    @property
    def engine(self):  # type: ignore[no-untyped-def]
        return self.local.engines[self.local.catalog.get("t").config.storage_type]

    @property
    def end_offset(self) -> int:
        return int(self.engine.bounds(self.shard)[1])

    def append(self, batch: bytearray) -> int:
        async def append() -> int:
            ticket = await self.engine.submit(self.shard, bytearray(batch))
            return int((await ticket).base_offset)

        return run_blocking(append())

    def check(self, records: list[NewRecord]) -> None:
        """All reads find these records, and so does `firn verify`."""
        limits = {"max_records": 10_000, "max_bytes": 1 << 30}
        page = self.engine.read_by_offset(self.shard, 0, **limits)
        assert [each.key for each in page.records()] == [each.key for each in records]
        newest = {record.key: offset for offset, record in enumerate(records)}
        for key in {each.key for each in (*before(), *turn(), *other())}:
            assert key is not None
            if key in newest:
                (found,) = self.engine.read_by_key(self.shard, key).records()
                assert found.offset == newest[key]
            else:
                with pytest.raises(KeyNotFound):
                    self.engine.read_by_key(self.shard, key)
        for tag in ("even", "odd"):
            tagged = self.engine.read_by_tag(self.shard, tag.encode(), 0, **limits)
            expected = [offset for offset, each in enumerate(records) if tag in each.tags]
            assert [each.offset for each in tagged.records()] == expected
        assert self.local.verifier.verify(self.shard).findings == ()

    def close(self) -> None:
        self.local.close()


def made(prefix: bytes, numbers: range, size: int) -> list[NewRecord]:
    return [
        NewRecord(
            key=prefix + b"-%d" % (number * 37 % 101),
            value=b"v" * size,
            tags=("even" if number % 2 else "odd",),
            timestamp_ms=1_000_000 + number,
        )
        for number in numbers
    ]


def before() -> list[NewRecord]:
    return made(b"before", range(BEFORE), 20)


def turn() -> list[NewRecord]:
    return made(b"turn", range(TURN), 30)


def other() -> list[NewRecord]:
    """What comes in place of a turn that was lost: batches of other lengths."""
    return made(b"other", range(47), 77)


def batch_of(records: list[NewRecord], sequence: int) -> bytearray:
    return encode(records, now_ms=1, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SLICE_ENTRIES", SLICE)
    monkeypatch.setattr(durable, "SLICE_ENTRIES", SLICE)


@pytest.fixture(params=[True, False], ids=["first-turn", "later-turn"])
def is_first(request: pytest.FixtureRequest) -> bool:
    """Whether the turn is the first of its segment, which has no checkpoint before."""
    return bool(request.param)


@pytest.mark.parametrize("loses", [False, True], ids=["killed", "power-cut"])
@pytest.mark.parametrize("storage_type", ["EngineSegment", "EngineRocksDB"])
def test_a_crash_between_two_writes(
    tmp_path: Path, storage_type: str, loses: bool, is_first: bool
) -> None:
    """1. A turn is indexed in many writes; after each one the directory is copied. 2. Each copy is
    opened, as after a kill, or after a power cut that took the turn's bytes. 3. It is whole, and
    what the producer sends again is stored once. 4. It goes on, and is whole."""
    log = Log.create(tmp_path / "data", storage_type, "os" if loses else "fsync")
    earlier = [] if is_first else before()
    if earlier:
        log.append(batch_of(earlier, 0))
        log.engine.settle(log.shard)
    lengths = {each: each.stat().st_size for each in (tmp_path / "data").rglob("*.log")}
    copies: list[Path] = []

    def copy() -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(tmp_path / "data", copies[-1])
        if loses:
            for path in copies[-1].glob("segments/*/*.log"):
                original = tmp_path / "data" / path.relative_to(copies[-1])
                with path.open("rb+") as file:
                    file.truncate(lengths.get(original, 0))

    log.kv.after_write = copy
    log.append(batch_of(turn(), len(earlier)))
    log.kv.after_write = None
    log.check(earlier + turn())
    log.close()
    assert len(copies) >= 8
    for number, path in enumerate(copies):
        log = Log(path)
        is_there = log.end_offset == len(earlier) + TURN
        is_file = storage_type == "EngineSegment"
        assert is_there is (not loses if is_file else number == len(copies) - 1)
        log.check(earlier + (turn() if is_there else []))
        if is_there:
            again = log.append(batch_of(turn(), len(earlier)))
            assert (again, log.end_offset) == (len(earlier), len(earlier) + TURN), "stored once"
            sequence = len(earlier) + TURN
        else:
            sequence = len(earlier)
        log.append(batch_of(other(), sequence))
        now = earlier + (turn() if is_there else []) + other()
        log.check(now)
        log.close()
        log = Log(path)
        log.check(now)
        log.close()


@pytest.mark.parametrize("storage_type", ["EngineSegment", "EngineRocksDB"])
def test_a_database_that_is_reopened_amid_the_writes_ends_the_turn(
    tmp_path: Path, storage_type: str
) -> None:
    """What an unsynced write had stored may be lost then, and must not be said to be indexed."""
    log = Log.create(tmp_path / "data", storage_type, "fsync")
    log.append(batch_of(before(), 0))
    writes = 0

    def fail_once() -> None:
        nonlocal writes
        writes += 1
        if writes == 5:
            log.kv._failed(OSError(5, "another thread's write failed"))  # type: ignore[arg-type]

    log.kv.after_write = fail_once
    with pytest.raises(StorageFailed):
        log.append(batch_of(turn(), BEFORE))
    log.kv.after_write = None
    log.append(batch_of(other(), BEFORE))
    log.check(before() + other())
    log.close()
    log = Log(tmp_path / "data")
    log.check(before() + other())
    log.close()
