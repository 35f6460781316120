"""What is written ahead of small durable appends: it is there, it is blank, and it goes."""

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
from firnmq.disk import FileCache
from firnmq.disk.files import BLANK_BYTES_MAX, is_blank
from firnmq.engines.layouts.partition_per_file import ROOM_BYTES_MIN
from firnmq.errors import StorageFailed
from firnmq.server import LocalStore, Store, TopicHandle

VALUE = bytes(range(1, 251)) * 4
"""Has no zeros, so that batches and what follows them can be told apart."""


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


def append_until_room(topic: TopicHandle) -> None:
    append(topic, 2 * ROOM_BYTES_MIN // len(VALUE) + 10)


def files(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("*/*.log"))


def settled(store: Store) -> None:
    """Waits until the workers have done what they do after a turn, by one more turn of each."""
    other = store.create_topic("other", shards=8)
    for _ in range(2):
        for shard in range(8):
            other.append([NewRecord(value=b"")], shard=shard)


def length_of(topic: TopicHandle) -> int:
    return topic.status(0).length_bytes


def room_of(topic: TopicHandle, file: Path) -> bytes:
    """What follows the batches."""
    return file.read_bytes()[length_of(topic) :]


def values(topic: TopicHandle) -> int:
    """How many records there are, all of them as they were appended."""
    found = list(topic.records(shard=0))
    assert all(record.value == VALUE for record in found)
    assert [record.offset for record in found] == list(range(len(found)))
    return len(found)


def test_small_durable_appends_get_room_and_a_store_at_rest_has_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_room(topic)
        settled(store)
        (file,) = [each for each in files(tmp_path) if each.stat().st_size > ROOM_BYTES_MIN]
        room = room_of(topic, file)
        assert room
        assert is_blank(room)
        for _ in range(20):  # Beyond several rooms.
            append(topic, 100)
            settled_room = room_of(topic, file)
            assert is_blank(settled_room)
            assert len(settled_room) <= 2 * BLANK_BYTES_MAX
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
        append_until_room(topic)
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
        append_until_room(topic)
        settled(store)
        file = max(files(tmp_path), key=lambda each: each.stat().st_size)
        assert room_of(topic, file)
        topic.roll()
        (sealed, _) = topic.status(0).segments
        assert file.stat().st_size == sealed.length
        append_until_room(topic)
        assert values(topic) == topic.status(0).end_offset
        assert store.local.verifier.verify(topic.topic.shard_name(0)).findings == ()


def test_a_log_that_is_cut_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_room(topic)
        settled(store)
        shard = topic.topic.shard_name(0)
        engine = store.local.engines[topic.topic.config.storage_type]
        engine.truncate(shard, 50)
        append_until_room(topic)
        assert values(topic) == topic.status(0).end_offset
        assert store.local.verifier.verify(shard).findings == ()


_KILLED = """
import os, sys
from pathlib import Path
from tests.unit.engines.test_room import append_until_room, made, opened, settled
with opened(Path(sys.argv[1])) as store:
    topic = made(store)
    append_until_room(topic)
    settled(store)
    print(topic.status(0).end_offset, topic.status(0).length_bytes, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_room_that_a_kill_leaves_is_no_torn_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    count, length = map(int, done.stdout.split())
    file = max(files(tmp_path), key=lambda each: each.stat().st_size)
    assert file.stat().st_size > length
    with caplog.at_level(logging.WARNING), opened(tmp_path) as store:
        assert values(store.topic("t")) == count
        assert file.stat().st_size == length
        append(store.topic("t"), 1)
        assert values(store.topic("t")) == count + 1
    assert not [each for each in caplog.records if "tail_cut" in each.message]


def test_a_full_disk_gets_no_room_and_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    def full(cache: FileCache, path: str, position: int, size: int) -> None:
        nonlocal attempts
        attempts += 1
        with open(path, "r+b") as file:  # A part of it fits.
            file.seek(position)
            file.write(bytes(size // 2))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileCache, "write_ahead", full)
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_room(topic)
        settled(store)
        append(topic, 50)
        assert attempts == 1
        file = max(files(tmp_path), key=lambda each: each.stat().st_size)
        assert file.stat().st_size == length_of(topic)
        assert values(topic) == topic.status(0).end_offset


def test_a_device_that_fails_then_costs_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is closed and opened anew from what the device has."""
    attempts = 0

    def broken(cache: FileCache, path: str, position: int, size: int) -> None:
        nonlocal attempts
        attempts += 1
        with open(path, "r+b") as file:
            file.seek(position + 100)
            file.write(b"rubbish")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    count = 0
    with opened(tmp_path) as store:
        topic = made(store)
        with monkeypatch.context() as patch:
            patch.setattr(FileCache, "write_ahead", broken)
            for _ in range(2 * ROOM_BYTES_MIN // len(VALUE) + 50):
                with suppress(StorageFailed):  # One that was queued just then is told.
                    append(topic, 1)
                    count += 1
            settled(store)
        assert attempts
        append(topic, 100)
        count += 100
        assert values(topic) == count
    with opened(tmp_path) as store:
        assert values(store.topic("t")) == count
