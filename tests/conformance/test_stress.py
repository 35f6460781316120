"""Readers, writers and everything that moves bounds, at once; bounded work, no waiting."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from firnmq.config import StoreConfig
from firnmq.errors import FirnError, KeyNotFound, OffsetOutOfRange, ShardNotFound
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard


def together(*works: Callable[[], None]) -> None:
    """Runs all at once and raises the first failure."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:  # Raised again below, in the test's own thread.
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def record_at(offset: int, size: int = 60) -> NewRecord:
    """A record that says which offset it is meant to get."""
    return NewRecord(
        value=b"%0*d" % (size, offset), key=b"k%d" % (offset % 5), tags=(f"t{offset % 3}",)
    )


def check(shard: Shard, rng: random.Random) -> None:
    """Asks one question of each kind; whatever comes back must be whole and in order."""
    status = shard.status
    at = rng.randint(status.start_offset, status.end_offset)
    with suppress(OffsetOutOfRange):  # Retention or a cut came between.
        page = shard.read(at, max_records=rng.randint(1, 50))
        offsets = [each.offset for each in page]
        assert offsets == list(range(at, at + len(offsets)))
        assert [int(each.value or b"") for each in page] == offsets
        raw = shard.raw_records(at, 4000)
        assert [int(each.value or b"") for each in raw] == [each.offset for each in raw]
    with suppress(OffsetOutOfRange):
        found = shard.by_tag(f"t{at % 3}", at, max_records=20)
        assert [int(each.value or b"") % 3 for each in found] == [at % 3] * len(found)
        assert [int(each.value or b"") for each in found] == [each.offset for each in found]
    with suppress(KeyNotFound):
        newest = shard.by_key(b"k%d" % (at % 5))
        assert int(newest.value or b"") == newest.offset
        assert newest.offset % 5 == at % 5
    assert shard.at_time(0) >= status.start_offset


def append_next(shard: Shard) -> None:
    shard.append(record_at(shard.end))


def until_not_found(work: Callable[[], None]) -> None:
    """Repeats until the shard is gone; any other error is a failure."""
    with suppress(ShardNotFound):
        while True:
            work()


@pytest.fixture
def stressed(lab: Lab) -> Shard:
    return lab.shard({"segment.bytes": 2048, "retention.bytes": 4000, "durability": "os"})


def test_readers_and_retention_during_appends(stressed: Shard) -> None:
    """However the threads are scheduled, retention has had work while records were appended."""
    done, retained = threading.Event(), threading.Event()

    def write() -> None:
        offset = 0
        try:
            while offset < 400 or not retained.is_set():
                count = 1 + offset % 7
                stressed.append(*(record_at(offset + part) for part in range(count)))
                offset += count
        finally:
            done.set()

    def read(seed: int) -> Callable[[], None]:
        def run() -> None:
            rng = random.Random(seed)
            while not done.is_set():
                check(stressed, rng)

        return run

    def retain() -> None:
        try:
            while not done.is_set():
                has_work = stressed.end >= 200
                stressed.engine.housekeep()
                if has_work:
                    retained.set()
        finally:
            retained.set()

    together(write, read(1), read(2), retain)
    assert stressed.start > 0
    assert stressed.offsets() == list(range(stressed.start, stressed.end))


def test_readers_during_truncation(lab: Lab) -> None:
    """What is cut is appended again in other batches, so that old places are wrong places."""
    shard = lab.shard({"durability": "os"})
    shard.append(*(record_at(offset) for offset in range(100)))
    done = threading.Event()

    def cut_and_append() -> None:
        rng = random.Random(3)
        try:
            for _ in range(25):
                borders = [100]
                while shard.end < 300:
                    end, count = shard.end, rng.randint(1, 40)
                    shard.append(*(record_at(end + part) for part in range(count)))
                    borders.append(end + count)
                shard.truncate(rng.choice(borders))
                shard.truncate(100)
        finally:
            done.set()

    def read(seed: int) -> Callable[[], None]:
        def run() -> None:
            rng = random.Random(seed)
            while not done.is_set():
                check(shard, rng)
                assert shard.by_key(b"k4").offset >= 99, "what is below the cut never goes"
                assert shard.tagged("t0")[:34] == list(range(0, 100, 3))

        return run

    together(cut_and_append, read(1), read(2))


def test_readers_during_deletion_of_the_shard(lab: Lab) -> None:
    for _ in range(5):
        shard = lab.shard({"segment.bytes": 1024, "durability": "os"})
        shard.append(*(record_at(offset) for offset in range(200)))

        rng = random.Random(1)
        together(
            partial(until_not_found, partial(check, shard, rng)),
            partial(until_not_found, partial(append_next, shard)),
            partial(shard.engine.delete_shard, shard.name),
        )
        with pytest.raises(ShardNotFound):
            shard.read(0)


def test_closing_during_appends(own_lab: Lab) -> None:
    """Every append either is stored or says that the store is closed; nobody hangs."""
    shard = own_lab.shard({"memory.overflow": "spill"})
    stored: list[bytes] = []
    enough = threading.Event()

    def write(writer: int) -> Callable[[], None]:
        def run() -> None:
            number = 0
            while True:
                value = b"%d-%d" % (writer, number)
                try:
                    shard.append_values(value)
                except FirnError:
                    return
                stored.append(value)
                number += 1
                if number == 20:
                    enough.set()

        return run

    def close() -> None:
        enough.wait()
        own_lab.store.close()

    together(*(write(writer) for writer in range(4)), close)
    own_lab.reopen()
    if own_lab.storage_type != "EngineMemory":
        assert set(stored) <= set(shard.values())


@pytest.mark.slow
def test_a_thousand_shards(storage_type: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    lab = Lab(tmp_path_factory.mktemp("many"), storage_type, config=StoreConfig(open_files=50))
    try:
        shards = [lab.shard({"durability": "os"}) for _ in range(1000)]
        for number, shard in enumerate(shards):
            shard.append(record_at(0), NewRecord(value=b"%d" % number))
        assert lab.store.file_statistics().open_files <= 50
        if storage_type != "EngineMemory":
            lab.reopen()
        for number, shard in enumerate(shards):
            assert shard.read(1).records()[0].value == b"%d" % number
        assert len(lab.engine.list_shard()) == 1000
    finally:
        lab.close()
