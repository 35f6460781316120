"""When bytes are synced, and that a shard outlives what goes on between."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from firnmq.disk import FileCache
from firnmq.engines.media.durable import DurableBackend
from firnmq.engines.shardlog.log import CHECKPOINT_BYTES
from firnmq.errors import Corruption, StorageFailed
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard, numbered


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, request.param)
    yield lab
    lab.close()


@pytest.fixture
def files_lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, "EngineSegment")
    yield lab
    lab.close()


def test_an_interval_sync_after_a_roll_does_not_close_the_shard(lab: Lab) -> None:
    """1. bytes wait for their sync, 2. a roll syncs them and opens a segment without a file,
    3. the sync falls due."""
    shard = lab.shard({"durability": "interval", "durability.interval.ms": 1})
    other = lab.shard({"durability": "interval", "durability.interval.ms": 1})
    for _ in range(20):
        shard.append_values(b"v")
        shard.roll()
        other.append_values(b"w")
    lab.store.pool.close()
    assert shard.status.failure is None
    assert other.status.failure is None


@pytest.mark.parametrize("durability", ["os", "interval"])
def test_a_deleted_log_is_let_go(lab: Lab, durability: str) -> None:
    """Its worker, which has bytes of it to sync, does not keep it."""
    other = lab.shard({"durability": "os"})
    shard = lab.shard({"durability": durability, "durability.interval.ms": 1})
    shard.append_values(b"v")
    log = weakref.ref(lab.engine.log(shard.name))  # type: ignore[attr-defined]
    lab.engine.delete_shard(shard.name)
    deadline = time.monotonic() + 60
    while log() is not None:  # Until every worker has had a turn, and its ticks.
        assert time.monotonic() < deadline
        other.append_values(b"v")
        gc.collect(0)


def test_closing_syncs_what_was_left_to_the_system(files_lab: Lab) -> None:
    shards = [files_lab.shard({"durability": "os"}) for _ in range(3)]
    for shard in shards:
        shard.append_values(b"v")
    before = files_lab.store.files.statistics().sync_count
    files_lab.store.pool.close()
    assert files_lab.store.files.statistics().sync_count == before + len(shards)


def test_bytes_are_synced_as_the_topic_asks(files_lab: Lab) -> None:
    files = files_lab.store.files
    safe = files_lab.shard()
    safe.append_values(b"v")
    before = files.statistics().sync_count
    for _ in range(5):
        safe.append_values(b"v")
    assert files.statistics().sync_count == before + 5

    quick = files_lab.shard({"durability": "os"})
    before = files.statistics().sync_count
    for _ in range(5):
        quick.append_values(b"v")
    assert files.statistics().sync_count == before
    files_lab.engine.housekeep()
    assert files.statistics().sync_count == before + 1
    files_lab.engine.housekeep()
    assert files.statistics().sync_count == before + 1
    quick.append_values(b"v")
    files_lab.store.close()
    assert files.statistics().sync_count == before + 2


def test_an_interval_sync_comes_by_itself(files_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    original = FileCache.sync

    def sync(self: FileCache, path: str) -> None:
        original(self, path)
        synced.set()

    monkeypatch.setattr(FileCache, "sync", sync)
    shard = files_lab.shard({"durability": "interval", "durability.interval.ms": 1})
    shard.append_values(b"v")
    assert synced.wait(60)


def test_a_late_sync_that_fails_closes_the_shard_and_it_reopens(
    files_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = files_lab.shard({"durability": "os"})
    shard.append_values(b"a")

    def broken(self: FileCache, path: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FileCache, "sync", broken)
        files_lab.engine.housekeep()
    assert shard.status.failure is not None
    shard.append_values(b"b")
    assert shard.status.failure is None
    assert shard.values() == [b"a", b"b"]


def test_a_cut_while_a_late_sync_runs_does_not_move_the_checkpoint(
    files_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = files_lab.shard({"durability": "os"})
    shard.append(*numbered(5))
    shard.append(*numbered(5))
    original = FileCache.sync

    def sync(self: FileCache, path: str) -> None:
        monkeypatch.setattr(FileCache, "sync", original)
        original(self, path)
        shard.truncate(5)
        shard.append_values(b"other")

    monkeypatch.setattr(FileCache, "sync", sync)
    files_lab.engine.housekeep()
    files_lab.reopen()
    assert shard.end == 6
    shard.roll()
    raw = shard.engine.read_batches(shard.name, 0, max_bytes=2**31)
    assert shard.status.segments[0].crc == crc32c(b"".join(map(bytes, raw.batches)))


def test_a_failed_cut_is_finished_when_the_shard_reopens(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = lab.shard()
    for number in range(6):
        shard.append(NewRecord(value=b"%d" % number, key=b"k", tags=("t",)))
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    content = type(log.tail.segment.bytes)

    def broken(self: object, length: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(content, "truncate", broken)
        with pytest.raises(StorageFailed):
            shard.truncate(3)
    assert shard.append(NewRecord(value=b"new", key=b"l", tags=("t",))).base_offset == 3
    assert shard.values() == [b"0", b"1", b"2", b"new"]
    assert shard.tagged("t") == [0, 1, 2, 3]
    assert shard.by_key(b"k").offset == 2


def test_a_defect_in_a_turn_closes_the_shard_and_it_reopens(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = lab.shard()
    shard.append_values(b"a")
    backend = type(lab.engine._keeper._backend)  # type: ignore[attr-defined]

    def defective(self: object, logs: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(backend, "commit", defective)
        with pytest.raises(StorageFailed):
            shard.append_values(b"lost")
    assert shard.append_values(b"b").base_offset == 1
    assert shard.values() == [b"a", b"b"]
    lab.reopen()
    assert shard.values() == [b"a", b"b"]


def test_a_segment_file_that_is_gone_is_corruption_not_silence(files_lab: Lab) -> None:
    shard = files_lab.shard()
    shard.append_values(b"v")
    shard.roll()
    files_lab.store.close()
    (path,) = (files_lab.path / "segments" / shard.name).iterdir()
    path.unlink()
    files_lab.store = files_lab._opened()
    with pytest.raises(Corruption):
        shard.read(0)
    assert shard.append_values(b"w").base_offset == 1
    assert [record.value for record in shard.read(1)] == [b"w"]
    files_lab.engine.delete_shard(shard.name)


def stored_position(shard: Shard) -> int:
    """How far the active segment is synced by its stored checkpoint."""
    log = shard.engine.log(shard.name)  # type: ignore[attr-defined]
    return int(log.segments[-1].index.checkpoint().position)


def test_a_checkpoint_alone_is_stored_later(files_lab: Lab) -> None:
    """1. an append with an index entry stores a checkpoint, 2. small ones after it do not, 3. a
    crash leaves them in the log, 4. housekeeping, closing and many bytes store it."""
    shard = files_lab.shard()

    shard.append_values(b"first")
    first = stored_position(shard)
    assert first == shard.status.length_bytes
    shard.append_values(b"second")
    shard.append_values(b"third")
    assert stored_position(shard) == first
    files_lab.crash()
    assert shard.values() == [b"first", b"second", b"third"]
    assert stored_position(shard) == shard.status.length_bytes

    shard.append_values(b"by housekeeping")
    shard.append_values(b"by housekeeping")
    assert stored_position(shard) < shard.status.length_bytes
    files_lab.engine.housekeep()
    assert stored_position(shard) == shard.status.length_bytes
    shard.append_values(b"by closing")
    assert stored_position(shard) < shard.status.length_bytes
    files_lab.reopen()
    assert stored_position(shard) == shard.status.length_bytes
    shard.append_values(b"x")
    shard.append_values(b"x" * 2 * CHECKPOINT_BYTES)
    assert stored_position(shard) == shard.status.length_bytes


def test_what_waits_for_the_index_is_stored_at_once(files_lab: Lab) -> None:
    shard = files_lab.shard()
    shard.append_values(b"first")
    shard.append(NewRecord(value=b"second", key=b"k"))
    assert stored_position(shard) == shard.status.length_bytes


def test_a_late_checkpoint_that_fails_closes_the_shard_and_it_reopens(
    files_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = files_lab.shard()
    for value in (b"first", b"second"):
        shard.append_values(value)

    refused: list[object] = []

    def refuse(_: DurableBackend, logs: list[object]) -> None:
        refused.extend(logs)
        raise StorageFailed("the key-value store", OSError("refused"))

    with monkeypatch.context() as patch:
        patch.setattr(DurableBackend, "commit", refuse)
        files_lab.engine.housekeep()
    (log,) = refused
    assert files_lab.engine.log(shard.name) is not log  # type: ignore[attr-defined]
    shard.append_values(b"third")
    assert shard.values() == [b"first", b"second", b"third"]
