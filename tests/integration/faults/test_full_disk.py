"""A disk that is really full: appends are refused by name and work again when there is room."""

from pathlib import Path

import pytest

from firnmq.errors import DiskFull
from firnmq.server import LocalStore, Store, TopicHandle
from tests.integration.faults.ledger import Ledger, record_of
from tests.integration.faults.loops import make_image, mounted, need

_DISK_MIB = 24
_ENGINES = ("EngineSegment", "EngineRocksDB")
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
            options = {"storage.type": engine, "segment.bytes": 65_536}
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


def fill(path: Path) -> None:
    """Writes until the device has no room left."""
    with path.open("wb", buffering=0) as file:
        size = 1024 * 1024
        while size:
            try:
                file.write(b"\1" * size)
            except OSError:
                size //= 2
