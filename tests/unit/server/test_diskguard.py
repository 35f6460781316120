"""A full disk: appends are refused, the rest goes on from the reserve, and room brings all back."""

import logging
import random
from pathlib import Path

import pytest

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.reserve import Reserve
from firnmq.errors import DiskFull, FirnError
from firnmq.health import ProblemKind
from firnmq.server import LocalStore, Store
from firnmq.testing import FakeClock

MIB = 1024 * 1024
FULL_BYTES = 8 * MIB


class SmallDisk(Reserve):
    """The reserve of a disk whose room the test decides."""

    def __init__(self, directory: Path, _: int) -> None:
        super().__init__(directory, FULL_BYTES)
        self.room_bytes = 100 * MIB
        """What is free, the reserve included."""

    def free_bytes(self) -> int:
        return self.room_bytes - self.held_bytes


def opened(path: Path, *, room_bytes: int = 100 * MIB) -> tuple[Store, SmallDisk]:
    disks: list[SmallDisk] = []

    def disk(directory: Path, size_bytes: int) -> SmallDisk:
        disks.append(SmallDisk(directory, size_bytes))
        disks[0].room_bytes = room_bytes
        return disks[0]

    local = LocalStore(path, background=False, clock=FakeClock(), open_reserve=disk)
    return Store(local), disks[0]


@pytest.mark.parametrize("engine", ["EngineSegment", "EngineRocksDB"])
def test_full_and_room_again(tmp_path: Path, caplog: pytest.LogCaptureFixture, engine: str) -> None:
    caplog.set_level(logging.INFO, "firnmq.health")
    store, disk = opened(tmp_path)
    guard, health = store.local.guard, store.local.health
    topic = store.create_topic("t", shards=3, options={"storage.type": engine})
    memory = store.create_topic("m", options={"storage.type": "EngineMemory"})
    topic.append(b"a", shard=0)
    assert (disk.held_bytes, guard.gate.is_shut) == (FULL_BYTES, False)
    # 1. The disk is full: all shards refuse appends, whether they have failed or not.
    disk.room_bytes = FULL_BYTES
    guard.look()
    guard.look()
    assert disk.held_bytes == FULL_BYTES * 3 // 4, "a quarter is given once"
    for shard in range(3):
        with pytest.raises(DiskFull, match="the disk is full"):
            topic.append(b"refused", shard=shard)
    # 2. What needs no room, or little, goes on.
    assert [each.value for each in topic.records(shard=0)] == [b"a"]
    memory.append(b"in memory")
    topic.commit("group", {0: 1})
    store.create_topic("other").delete_before(0)
    store.delete_topic("other")
    assert health.count(ProblemKind.DISK_FULL) == 1
    # 3. A little room is not enough to begin again: it would be full at once.
    disk.room_bytes = 2 * FULL_BYTES - 1
    with pytest.raises(DiskFull):
        topic.append(b"refused")
    # 4. With enough, the next append takes the reserve first.
    disk.room_bytes = 2 * FULL_BYTES
    topic.append(b"b", shard=0)
    assert disk.held_bytes == FULL_BYTES
    guard.look()
    assert health.problems() == []
    assert [vars(each)["event"] for each in caplog.records] == ["disk_full", "disk_full_over"]
    # 5. With much room there is no reserve.
    disk.room_bytes = 100 * FULL_BYTES
    guard.look()
    assert disk.held_bytes == 0
    store.close()


def test_a_full_disk_gets_the_space_of_shared_files(tmp_path: Path) -> None:
    store, disk = opened(tmp_path)
    topic = store.create_topic("t", options={"segment.layout": "shared-file"})
    topic.append(b"a")
    disk.room_bytes = FULL_BYTES
    store.local.guard.look()
    store.delete_topic("t")
    assert list((tmp_path / "shared").iterdir())
    store.local.guard.look()
    assert not list((tmp_path / "shared").iterdir())
    store.close()


def test_a_full_store_opens_with_its_reserve_released(tmp_path: Path) -> None:
    store, disk = opened(tmp_path)
    store.create_topic("t").append(b"a")
    assert disk.held_bytes == FULL_BYTES
    store.close()
    seen: list[int] = []
    disks: list[SmallDisk] = []

    def disk_of(directory: Path, size_bytes: int) -> SmallDisk:
        disks.append(SmallDisk(directory, size_bytes))
        disks[0].room_bytes = FULL_BYTES
        return disks[0]

    def open_kv(path: Path) -> KeyValueStore:
        seen.append(disks[0].held_bytes)
        return KeyValueStore(path)

    local = LocalStore(tmp_path, background=False, open_reserve=disk_of, open_kv=open_kv)
    assert seen == [0], "the databases have all of it when they are opened"
    assert disks[0].held_bytes == FULL_BYTES * 3 // 4, "what is left is held again"
    with pytest.raises(DiskFull):
        Store(local).topic("t").append(b"b")
    assert [each.value for each in Store(local).topic("t").records()] == [b"a"]
    local.close()


def test_a_store_that_was_full_says_so_when_it_is_opened_again(tmp_path: Path) -> None:
    """The room that is left would do for a store that has its whole reserve."""
    store, disk = opened(tmp_path)
    store.create_topic("t").append(b"a")
    disk.room_bytes = FULL_BYTES
    store.local.guard.look()
    store.close()
    for _ in range(2):
        store, disk = opened(tmp_path, room_bytes=2 * FULL_BYTES - 1)
        assert store.local.health.count(ProblemKind.DISK_FULL) == 1, "before the first append"
        with pytest.raises(DiskFull):
            store.topic("t").append(b"b")
        store.close()
    store, disk = opened(tmp_path, room_bytes=2 * FULL_BYTES)
    assert store.local.health.problems() == []
    store.topic("t").append(b"b")
    store.close()
    store, disk = opened(tmp_path, room_bytes=FULL_BYTES + FULL_BYTES // 8)
    assert store.local.health.problems() == [], "it has its whole reserve"
    store.close()


def test_the_room_of_deleted_topics_is_freed_when_the_disk_is_full(tmp_path: Path) -> None:
    store, disk = opened(tmp_path)
    kv, guard = store.local.kv, store.local.guard
    value = random.Random(1).randbytes(100_000)
    options = {"storage.type": "EngineRocksDB", "compression.type": "none"}
    for name in ("gone", "kept"):
        topic = store.create_topic(name, options=options)
        for _ in range(50):
            topic.append(value)
    before = tables_bytes(kv)
    store.delete_topic("gone")
    guard.look()
    assert kv.has_deleted, "there is room"
    assert tables_bytes(kv) >= before
    disk.room_bytes = FULL_BYTES
    guard.look()
    guard.look()
    assert not kv.has_deleted
    assert tables_bytes(kv) < before - 4_000_000
    assert len(list(store.topic("kept").records())) == 50
    store.close()


def tables_bytes(kv: KeyValueStore) -> int:
    """Bytes of the tables, with all that is in memory written to them."""
    generation = kv._generation
    assert generation is not None
    generation.families[Family.MESSAGES].flush(True)
    return sum(int(each["size"]) for each in kv.files())


def test_a_database_that_the_disk_refuses_gets_the_reserve_and_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, disk = opened(tmp_path)
    topic = store.create_topic("t")
    kv, health = store.local.kv, store.local.health
    failure = OSError(28, "No space left on device")
    kv._failed(failure)  # type: ignore[arg-type]
    assert (disk.held_bytes, store.local.guard.gate.is_shut) == (FULL_BYTES // 2, True)
    assert {each.kind for each in health.problems()} == {
        ProblemKind.DATABASE_FAILED,
        ProblemKind.DISK_FULL,
    }
    topic.append(b"a")  # There is room, after all.
    assert not kv.has_failed
    store.local.guard.look()
    assert health.problems() == []
    assert disk.held_bytes == FULL_BYTES
    store.close()


def test_a_database_gets_the_whole_reserve_only_if_half_is_too_little(tmp_path: Path) -> None:
    store, disk = opened(tmp_path)
    guard = store.local.guard
    store.create_topic("t")
    held: list[int] = []
    for needed_bytes in (FULL_BYTES // 2, FULL_BYTES):
        assert disk.hold(FULL_BYTES)
        database = NeedyDatabase(disk, needed_bytes)
        guard.watch("needy", database)
        guard.look()
        assert database.failure is None
        held.append(database.held_bytes)
    assert held == [FULL_BYTES // 2, 0]
    store.close()


class NeedyDatabase:
    """Can be reopened once so much of the reserve is released."""

    def __init__(self, disk: SmallDisk, needed_bytes: int) -> None:
        self.failure: FirnError | None = DiskFull("needy", OSError(28, "No space left on device"))
        self.on_failure = print
        self.held_bytes = -1
        self._disk = disk
        self._needed_bytes = needed_bytes

    def reopen(self) -> None:
        self.held_bytes = self._disk.held_bytes
        if FULL_BYTES - self.held_bytes < self._needed_bytes:
            raise DiskFull("needy", OSError(28, "No space left on device"))
        self.failure = None
