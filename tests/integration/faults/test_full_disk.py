"""A disk that is really full: appends are refused by name and work again when there is room."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firnmq.errors import DiskFull
from firnmq.server import LocalStore, Store, TopicHandle
from tests.integration.faults.filler import options_of
from tests.integration.faults.ledger import Ledger, record_of
from tests.integration.faults.loops import fill, make_image, mounted, need

_DISK_MIB = 24
_ENGINES = ("EngineSegment", "EngineRocksDB", "shared-file")
_PER_APPEND = 50


@pytest.mark.root
@pytest.mark.parametrize("engine", _ENGINES)
def test_a_full_disk_refuses_appends_until_there_is_room(tmp_path: Path, engine: str) -> None:
    need("mkfs.ext4")
    make_image(tmp_path / "image", _DISK_MIB, "mkfs.ext4", "-q", "-F", "-m", "0")
    ledger = Ledger()
    with mounted(tmp_path / "image", tmp_path / "disk") as disk:
        store = Store(LocalStore(disk / "store"))
        try:
            options = {**options_of(engine), "segment.bytes": 65_536}
            topic = store.create_topic("topic", options=options)
            append(topic, ledger, 0)
            # 1. Something else takes all the room.
            fill(disk / "ballast")
            # 2. Appends are refused by name, and what is there can be read.
            with pytest.raises(DiskFull):
                append_without_end(topic, ledger)
            ledger.pending.clear()  # Refused means that it is not there.
            assert len(list(topic.records())) == len(ledger.shards["topic", 0].expected)
            # 3. There is room again, and no restart is needed.
            (disk / "ballast").unlink()
            append(topic, ledger, 10_000_000)
            ledger.check(store)
        finally:
            store.close()
        with Store(LocalStore(disk / "store", background=False)) as store:
            ledger.check(store)


@pytest.mark.root
def test_an_append_of_which_only_a_part_has_room_leaves_nothing(tmp_path: Path) -> None:
    need("mkfs.ext4")
    make_image(tmp_path / "image", _DISK_MIB, "mkfs.ext4", "-q", "-F", "-m", "0")
    large = [bytes([number]) * 100_000 for number in range(30)]
    with mounted(tmp_path / "image", tmp_path / "disk") as disk:
        with Store(LocalStore(disk / "store")) as store:
            topic = store.create_topic("topic")
            topic.append(b"small")
            fill(disk / "ballast")
            with (disk / "ballast").open("rb+") as ballast:
                ballast.truncate((disk / "ballast").stat().st_size - 1024 * 1024)
            with pytest.raises(DiskFull):
                append_again_and_again(topic, large)
            (disk / "ballast").unlink()
            appended_before = topic.status().end_offset
            assert (appended_before - 1) % len(large) == 0
            topic.append(large)
        with Store(LocalStore(disk / "store", background=False)) as store:
            values = [record.value for record in store.topic("topic").records()]
    assert values == [b"small"] + large * ((appended_before - 1) // len(large) + 1)


def append(topic: TopicHandle, ledger: Ledger, number: int) -> None:
    ledger.intend(number, "append", (topic.name, 0), number, _PER_APPEND)
    (written,) = topic.append([record_of(number + at) for at in range(_PER_APPEND)])
    ledger.done(number, written.base_offset)


def append_without_end(topic: TopicHandle, ledger: Ledger) -> None:
    for number in range(_PER_APPEND, 1_000_000, _PER_APPEND):
        append(topic, ledger, number)


def append_again_and_again(topic: TopicHandle, values: list[bytes]) -> None:
    for _ in range(_DISK_MIB):
        topic.append(values)


@pytest.mark.root
@pytest.mark.parametrize("engine", _ENGINES)
def test_a_full_node_that_was_killed_opens_reads_and_deletes(tmp_path: Path, engine: str) -> None:
    """1. a process fills the disk and is killed, 2. what is left of the room is taken by another
    program, 3. the store opens, has all that was acknowledged, refuses appends and deletes topics,
    4. appends are accepted again, without a restart."""
    need("mkfs.ext4")
    make_image(tmp_path / "image", _DISK_MIB, "mkfs.ext4", "-q", "-F", "-m", "0")
    with mounted(tmp_path / "image", tmp_path / "disk") as disk:
        acknowledged = fill_and_kill(disk, engine)
        # Opening a full store must not use up what it needs to open, even if others take what it
        # leaves free. RocksDB's own compactions take part of it, so there it is tried once.
        for attempt in range(1 if engine == "EngineRocksDB" else 3):
            fill(disk / f"ballast-{attempt}")
            with Store(LocalStore(disk / "store", background=attempt > 0)) as store:
                for name, count in acknowledged.items():
                    assert len(list(store.topic(name).records())) >= count
                if engine == "EngineRocksDB":
                    append_until_refused(store.topic("first"), disk / "more")
                with pytest.raises(DiskFull):
                    store.topic("first").append(b"no")
                store.topic("second").commit("group", {0: attempt})
        with Store(LocalStore(disk / "store")) as store:
            for name in acknowledged:
                store.delete_topic(name)
            append_once_there_is_room(store, engine)
        with Store(LocalStore(disk / "store", background=False)) as store:
            assert [record.value for record in store.topic("third").records()] == [b"yes"]


def fill_and_kill(disk: Path, engine: str) -> dict[str, int]:
    """What a killed process had acknowledged of each topic when the disk was full."""
    program = [sys.executable, "-m", "tests.integration.faults.filler"]
    args = [str(disk / "store"), engine, str(disk / "ballast")]
    process = subprocess.Popen([*program, *args], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line[0] == "full", line
        return dict(zip(("first", "second"), map(int, line[1:]), strict=True))
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def append_until_refused(topic: TopicHandle, ballast: Path) -> None:
    """RocksDB frees room in the background, at any time after it was opened. Takes all of it but
    what the databases need."""
    with contextlib.suppress(DiskFull):
        while True:
            fill(ballast)
            os.truncate(ballast, max(ballast.stat().st_size - 1024 * 1024, 0))
            topic.append(b"no")


def append_once_there_is_room(store: Store, engine: str) -> None:
    """A file system may free the room of removed files a moment later."""
    deadline = time.monotonic() + 20
    while True:
        try:
            topic = store.create_topic("third", exist_ok=True, options=options_of(engine))
            topic.append(b"yes")
            return
        except DiskFull:
            if time.monotonic() > deadline:
                raise
