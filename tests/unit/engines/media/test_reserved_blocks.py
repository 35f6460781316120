"""Blocks that are reserved ahead of large appends: they change no content, and they go."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firnmq import NewRecord
from firnmq.disk import gathered
from firnmq.disk.preallocation import RESERVED_BYTES_MAX, RESERVED_BYTES_MIN
from firnmq.server import Store, TopicHandle
from tests.unit.engines.media.test_preallocation import (
    ONE_WORKER,
    VALUE,
    LocalStore,
    append,
    engine_of,
    files,
    largest,
    length_of,
    made,
    opened,
    settled,
    values,
)

pytestmark = pytest.mark.skipif(not gathered.IS_COMPILED, reason="there is no compiled form here")

_RECORDS_PER_APPEND = 500


def append_large(topic: TopicHandle, count: int) -> None:
    """So many appends of half a MB."""
    for _ in range(count):
        topic.append([NewRecord(value=VALUE)] * _RECORDS_PER_APPEND, shard=0)


def append_until_reserved(topic: TopicHandle) -> None:
    append_large(topic, 4 * RESERVED_BYTES_MIN // (len(VALUE) * _RECORDS_PER_APPEND) + 2)


def reserved_bytes(file: Path) -> int:
    """Allocated blocks beyond the length, but for a page and what describes the blocks."""
    found = os.stat(file)
    return max(found.st_blocks * 512 - found.st_size - 64 * 1024, 0)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_blocks_are_reserved_and_a_store_at_rest_has_none(tmp_path: Path, durability: str) -> None:
    with opened(tmp_path) as store:
        topic = made(store, durability=durability)
        append_until_reserved(topic)
        file = largest(tmp_path)
        assert file.stat().st_size == length_of(topic)
        assert reserved_bytes(file) > 0
        append_large(topic, 20)
        assert file.stat().st_size == length_of(topic)
        assert reserved_bytes(file) <= RESERVED_BYTES_MAX
        assert store.local.verifier.verify(topic.topic.shard_name(0)).findings == ()
        count = values(topic)
    assert reserved_bytes(file) == 0
    with opened(tmp_path) as store:
        assert values(store.topic("t")) == count


def test_small_appends_get_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store, durability="os")
        for _ in range(3 * 4 * RESERVED_BYTES_MIN // (20 * len(VALUE))):
            append(topic, 1)
            topic.append([NewRecord(value=VALUE)] * 20, shard=0)
        assert length_of(topic) > 4 * RESERVED_BYTES_MIN
        assert reserved_bytes(largest(tmp_path)) == 0


def test_a_sealed_segment_has_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_reserved(topic)
        file = largest(tmp_path)
        assert reserved_bytes(file) > 0
        topic.roll()
        (sealed, _) = topic.status(0).segments
        assert file.stat().st_size == sealed.length
        assert reserved_bytes(file) == 0


def test_a_log_that_is_truncated_has_none(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_reserved(topic)
        file = largest(tmp_path)
        engine_of(topic, store).truncate(topic.topic.shard_name(0), _RECORDS_PER_APPEND)
        assert file.stat().st_size == length_of(topic)
        assert reserved_bytes(file) == 0
        append_until_reserved(topic)
        assert reserved_bytes(file) > 0
        assert values(topic) == topic.status(0).end_offset


def test_a_file_system_that_reserves_nothing_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(descriptor: int, position: int, size: int) -> None:
        asked.append(size)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(gathered, "reserve_blocks", refuse)
    with opened(tmp_path) as store:
        topic = made(store)
        append_until_reserved(topic)
        append_large(topic, 10)
        assert len(asked) == 1
        assert values(topic) == topic.status(0).end_offset


def test_a_full_disk_gets_all_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small append of another log finds the disk full."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Store(LocalStore(tmp_path, background=False, config=ONE_WORKER)) as store:
        topic, second = made(store), store.create_topic("second")
        append_until_reserved(topic)
        file = largest(tmp_path)
        assert reserved_bytes(file) > 0
        monkeypatch.setattr("firnmq.disk.FileCache.write_ahead", full)
        append(second, 200)
        settled(store)
        assert reserved_bytes(file) == 0
        assert values(topic) == topic.status(0).end_offset


_KILLED = """
import os, sys
from pathlib import Path
from tests.unit.engines.media.test_preallocation import length_of, made, opened
from tests.unit.engines.media.test_reserved_blocks import append_until_reserved
with opened(Path(sys.argv[1])) as store:
    topic = made(store)
    append_until_reserved(topic)
    print(topic.status(0).end_offset, length_of(topic), flush=True)
    os.kill(os.getpid(), 9)
"""


def test_what_a_kill_leaves_is_no_content(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    count, length = map(int, done.stdout.split())
    (file,) = files(tmp_path)
    assert file.stat().st_size == length
    assert reserved_bytes(file) > 0
    with opened(tmp_path) as store:
        topic = store.topic("t")
        assert values(topic) == count
        append_large(topic, 1)
        topic.roll()
        assert values(topic) == count + _RECORDS_PER_APPEND
    assert reserved_bytes(file) == 0
