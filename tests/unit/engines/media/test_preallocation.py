"""What is written ahead of small durable appends: it is there, it is blank, and it goes."""

import dataclasses
import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from firnmq import NewRecord
from firnmq.config import Durability, StoreConfig
from firnmq.disk import FileCache, run_blocking
from firnmq.disk.files import BLANK_BYTES_MAX, is_blank
from firnmq.disk.preallocation import PREALLOCATION_BYTES_MIN
from firnmq.engines.engine import LogEngine
from firnmq.engines.shardlog.preallocator import Preallocator
from firnmq.engines.verify.findings import FindingKind
from firnmq.errors import AlreadyExists, Corruption, StorageFailed
from firnmq.server import LocalStore, Store, TopicHandle

VALUE = bytes(range(1, 251)) * 4
"""Has no zeros, so that batches and what follows them can be told apart."""
ONE_WORKER = StoreConfig(io_workers=1)


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    with Store(LocalStore(path, background=False)) as store:
        yield store


def made(store: Store, **options: object) -> TopicHandle:
    return store.create_topic("t", options=dict(options))


def append(topic: TopicHandle, count: int) -> None:
    """So many small appends, one after the other."""
    for number in range(count):
        topic.append([NewRecord(value=VALUE, key=b"%d" % number)], shard=0)


def append_until_preallocated(topic: TopicHandle) -> None:
    append(topic, 2 * PREALLOCATION_BYTES_MIN // len(VALUE) + 10)


def files(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("*/*.log"))


def settled(store: Store) -> None:
    """Waits until the workers have done what they do after a turn, by one more turn of each."""
    with suppress(AlreadyExists):
        store.create_topic("other", shards=8)
    other = store.topic("other")
    for _ in range(2):
        for shard in range(8):
            other.append([NewRecord(value=b"")], shard=shard)


def largest(path: Path) -> Path:
    return max(files(path), key=lambda each: each.stat().st_size)


def engine_of(topic: TopicHandle, store: Store) -> LogEngine:
    engine = store.local.engines[topic.topic.config.storage_type]
    assert isinstance(engine, LogEngine)
    return engine


def change(store: Store, durability: Durability) -> None:
    config = dataclasses.replace(store.topic("t").topic.config, durability=durability)
    run_blocking(store.local.manager.reconfigure_topic("t", config))


def length_of(topic: TopicHandle) -> int:
    return topic.status(0).length_bytes


def preallocated_of(topic: TopicHandle, file: Path) -> bytes:
    """What follows the batches."""
    return file.read_bytes()[length_of(topic) :]


def values(topic: TopicHandle) -> int:
    """How many records there are, all of them as they were appended."""
    found = list(topic.records(shard=0))
    assert all(record.value == VALUE for record in found)
    assert [record.offset for record in found] == list(range(len(found)))
    return len(found)


def test_small_durable_appends_are_preallocated_and_a_store_at_rest_has_none(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_preallocated(topic)
        settled(store)
        (file,) = [
            each for each in files(tmp_path) if each.stat().st_size > PREALLOCATION_BYTES_MIN
        ]
        zeros = preallocated_of(topic, file)
        assert zeros
        assert is_blank(zeros)
        for _ in range(20):  # Beyond several preallocator.
            append(topic, 100)
            settled_zeros = preallocated_of(topic, file)
            assert is_blank(settled_zeros)
            assert len(settled_zeros) <= 2 * BLANK_BYTES_MAX
        assert store.local.verifier.verify(topic.topic.shard_name(0)).findings == ()
        count, length = values(topic), length_of(topic)
    assert file.stat().st_size == length
    with opened(tmp_path) as store:
        assert values(store.topic("t")) == count


@pytest.mark.parametrize(
    "options", [{"durability": "os"}, {"durability": "interval"}], ids=["os", "interval"]
)
def test_what_is_not_durable_gets_none(tmp_path: Path, options: dict[str, object]) -> None:
    with opened(tmp_path) as store:
        topic = made(store, **options)
        append_until_preallocated(topic)
        settled(store)
        assert max(each.stat().st_size for each in files(tmp_path)) == length_of(topic)


def test_large_appends_get_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        for _ in range(5):
            topic.append([NewRecord(value=VALUE)] * 100, shard=0)
        settled(store)
        assert max(each.stat().st_size for each in files(tmp_path)) == length_of(topic)


def test_a_sealed_segment_has_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_preallocated(topic)
        settled(store)
        file = largest(tmp_path)
        assert preallocated_of(topic, file)
        topic.roll()
        (sealed, _) = topic.status(0).segments
        assert file.stat().st_size == sealed.length
        append_until_preallocated(topic)
        assert values(topic) == topic.status(0).end_offset
        assert store.local.verifier.verify(topic.topic.shard_name(0)).findings == ()


def test_a_log_that_is_cut_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append(topic, 200)
        settled(store)
        shard = topic.topic.shard_name(0)
        engine_of(topic, store).truncate(shard, 70)
        file = largest(tmp_path)
        assert file.stat().st_size == length_of(topic)
        append(topic, 1)
        settled(store)
        assert len(preallocated_of(topic, file)) >= PREALLOCATION_BYTES_MIN, (
            "the old preallocation went with the cut"
        )
        append(topic, 100)
        assert values(topic) == topic.status(0).end_offset == 171
        assert store.local.verifier.verify(shard).findings == ()


def test_a_preallocation_goes_with_the_durability_that_it_is_for(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_preallocated(topic)
        settled(store)
        file = largest(tmp_path)
        assert preallocated_of(topic, file)
        change(store, Durability.OS)
        assert not preallocated_of(topic, file)
        append(topic, 10)
        change(store, Durability.FSYNC)
        append(topic, 10)
        assert values(topic) == topic.status(0).end_offset


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("size", [5_000, 10 * BLANK_BYTES_MAX])
def test_zeros_at_the_end_were_written_ahead_or_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, durability: str, size: int
) -> None:
    with opened(tmp_path) as store:
        topic = made(store, durability=durability)
        append_until_preallocated(topic)
        shard, count = topic.topic.shard_name(0), topic.status(0).end_offset
    file = largest(tmp_path)
    good = file.read_bytes()
    file.write_bytes(good + bytes(size))
    is_preallocated = durability == "fsync" and size == 5_000
    with opened(tmp_path) as store:
        findings = store.local.verifier.verify(shard).findings
        assert [each.kind for each in findings] == (
            [] if is_preallocated else [FindingKind.TORN_TAIL]
        )
        assert values(store.topic("t")) == count
    assert file.read_bytes() == good
    cuts = [vars(each)["fields"] for each in caplog.records if "tail_cut" in each.message]
    assert [each["cut_bytes"] for each in cuts] == ([] if is_preallocated else [size])


def test_an_older_copy_of_a_file_does_not_pass_for_the_newer(tmp_path: Path) -> None:
    """A preallocation makes it long enough for what was synced since."""
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_preallocated(topic)
        settled(store)
        file = largest(tmp_path)
        old = file.read_bytes()
        append(topic, 10)
        assert length_of(topic) < len(old)
    file.write_bytes(old)
    with opened(tmp_path) as store, pytest.raises(Corruption, match="restore the file"):
        append(store.topic("t"), 1)


_KILLED = """
import os, sys
from pathlib import Path
from tests.unit.engines.media.test_preallocation import (
    append_until_preallocated, made, opened, settled
)
with opened(Path(sys.argv[1])) as store:
    topic = made(store)
    append_until_preallocated(topic)
    settled(store)
    print(topic.status(0).end_offset, topic.status(0).length_bytes, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_preallocation_that_a_kill_leaves_is_no_torn_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    count, length = map(int, done.stdout.split())
    file = largest(tmp_path)
    assert file.stat().st_size > length
    with caplog.at_level(logging.WARNING), opened(tmp_path) as store:
        assert values(store.topic("t")) == count
        assert file.stat().st_size == length
        append(store.topic("t"), 1)
        assert values(store.topic("t")) == count + 1
    assert not [each for each in caplog.records if "tail_cut" in each.message]


class FailingWrites:
    """Writes ahead that fail, and leave something behind the end."""

    def __init__(self, code: int, *, at: int, left: bytes) -> None:
        self._code = code
        self._at = at
        self._left = left
        self.attempts = 0

    def write_ahead(self, path: str, position: int, size: int) -> None:
        self.attempts += 1
        with open(path, "r+b") as file:
            file.seek(position + self._at)
            file.write(self._left)
        raise OSError(self._code, os.strerror(self._code))


def test_a_full_disk_is_not_preallocated_and_gets_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = FailingWrites(
        errno.ENOSPC, at=0, left=bytes(PREALLOCATION_BYTES_MIN // 2)
    )  # A part of it fits.
    with Store(LocalStore(tmp_path, background=False, config=ONE_WORKER)) as store:
        first, second = made(store), store.create_topic("second")
        append_until_preallocated(first)
        settled(store)
        assert preallocated_of(first, largest(tmp_path))
        monkeypatch.setattr(FileCache, "write_ahead", full.write_ahead)
        append_until_preallocated(second)
        settled(store)
        assert full.attempts == 1, "after that, none is made for a while"
        sizes = sorted(each.stat().st_size for each in files(tmp_path))[-2:]
        assert sizes == sorted([length_of(first), length_of(second)])
        second.roll()
        assert store.local.verifier.verify(second.topic.shard_name(0)).findings == ()
        assert values(first) == first.status(0).end_offset
        assert values(second) == second.status(0).end_offset


def test_a_device_that_fails_then_costs_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is closed and opened anew from what the device has."""
    broken = FailingWrites(errno.EIO, at=100, left=b"rubbish")

    def unreadable(cache: FileCache, path: str, position: int, size: int) -> bytes:
        if broken.attempts and b"rubbish" in Path(path).read_bytes()[position : position + size]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_at(cache, path, position, size)

    read_at = FileCache.read_at
    count = 0
    with opened(tmp_path) as store:
        topic = made(store)
        append(topic, 1)
        log = engine_of(topic, store).log(topic.topic.shard_name(0))
        with monkeypatch.context() as patch:
            patch.setattr(FileCache, "write_ahead", broken.write_ahead)
            patch.setattr(FileCache, "read_at", unreadable)
            for _ in range(2 * PREALLOCATION_BYTES_MIN // len(VALUE) + 50):
                with suppress(StorageFailed):  # One that was queued just then is told.
                    append(topic, 1)
                    count += 1
            settled(store)
        assert broken.attempts
        append(topic, 100)
        count += 101
        assert engine_of(topic, store).log(topic.topic.shard_name(0)) is not log
        assert values(topic) == count
    with opened(tmp_path) as store:
        assert values(store.topic("t")) == count


def test_a_log_that_failed_meanwhile_gets_none(tmp_path: Path) -> None:
    """Another log has the file by then, and has written where the preallocation would be."""
    with opened(tmp_path) as store:
        topic = made(store)
        append(topic, 2 * PREALLOCATION_BYTES_MIN // len(VALUE) - 5)
        engine, shard = engine_of(topic, store), topic.topic.shard_name(0)
        old = engine.log(shard)
        preallocator = Preallocator()
        with old.lock:
            old.fail(OSError(errno.EIO, "told of elsewhere"))
        append(topic, 10)
        old.tail.position = 2 * PREALLOCATION_BYTES_MIN  # As if its last turn had ended there.
        preallocator.note_appended(old, 2 * PREALLOCATION_BYTES_MIN - 1)
        preallocator.update()
        assert values(topic) == topic.status(0).end_offset
