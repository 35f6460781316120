"""The chunk cache: each byte is fetched once, errors reach all who wait, nothing grows."""

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firnmq.errors import Closed, Corruption, ObjectNotFound
from firnmq.tiering.cold import cache_files
from firnmq.tiering.cold.cache import ChunkCache
from firnmq.tiering.cold.cache_files import _BLOCK_BYTES, _SLICE_BYTES, CacheFiles
from firnmq.tiering.cold.extents import Extent, ExtentTable, ObjectPart
from firnmq.tiering.cold.throttle import ColdThrottle
from tests.unit.tiering.scripted_store import Counted, ScriptedStore, StoreDown
from tests.unit.tiering.throttles import Paced

PIECE, CHUNK = 1_000, 8_000
CONTENT = random.Random(1).randbytes(50_500)
PART = ObjectPart("a.seg", 0, len(CONTENT))

Make = Callable[..., ChunkCache]


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore({"a.seg": CONTENT, "b.seg": CONTENT[::-1]})


@pytest.fixture
def make(store: ScriptedStore, tmp_path: Path) -> Iterator[Make]:
    made: list[ChunkCache] = []

    def make_one(**changes: object) -> ChunkCache:
        options = {
            "disk_bytes": 10**6,
            "memory_bytes": 10**6,
            "chunk_bytes": CHUNK,
            "piece_bytes": PIECE,
            "threads": 4,
        }
        cache = ChunkCache(store, tmp_path / "cache", **(options | changes))
        made.append(cache)
        return cache

    yield make_one
    store.is_open.set()
    for cache in made:
        cache.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("firn-cold")]


def cached_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_reads_give_the_objects_bytes_and_fetch_none_twice(
    make: Make, store: ScriptedStore
) -> None:
    cache = make()
    chance = random.Random(2)
    for _ in range(300):
        start = chance.randrange(len(CONTENT))
        size = chance.randrange(min(20_000, len(CONTENT) - start) + 1)
        assert cache.read(PART, start, size) == CONTENT[start : start + size]
    assert store.is_fetched_once("a.seg")
    assert cache.statistics().fetched_bytes <= len(CONTENT)


def test_fetches_are_whole_pieces_up_to_what_is_needed(make: Make, store: ScriptedStore) -> None:
    cache = make()
    cache.read(PART, 1_500, 600)
    assert store.fetched("a.seg") == [(1_000, 3_000)]
    cache.read(PART, 500, 3_000)
    assert store.fetched("a.seg") == [(0, 1_000), (1_000, 3_000), (3_000, 4_000)]
    cache.read(PART, 50_400, 100)
    assert store.fetched("a.seg")[-1] == (50_000, 50_500)


def test_a_part_of_an_object_is_read_from_where_it_begins(make: Make) -> None:
    cache = make()
    part = ObjectPart("a.seg", 777, 5_000)
    assert cache.read(part, 0, 5_000) == CONTENT[777:5_777]
    with pytest.raises(Corruption, match=r"asked for, it has 5,000") as refused:
        cache.read(part, 4_999, 2)
    assert refused.value.where == "test://bucket/a.seg"


def test_many_threads_that_want_the_same_share_one_fetch(make: Make, store: ScriptedStore) -> None:
    cache = make()
    store.is_open.clear()
    with ThreadPoolExecutor(12) as pool:
        found = [pool.submit(cache.read, PART, 100, 700) for _ in range(12)]
        assert store.arrived.acquire(timeout=30)
        store.is_open.set()
        assert all(each.result(30) == CONTENT[100:800] for each in found)
    assert len(store.gets) == 1


def test_threads_that_read_all_over_get_their_bytes_while_extents_are_evicted(
    make: Make, store: ScriptedStore
) -> None:
    cache = make(disk_bytes=20_000, memory_bytes=9_000)

    def read_much(seed: int) -> int:
        chance = random.Random(seed)
        wrong = rounds = 0
        while rounds < 150 or (cache.statistics().evicted_count == 0 and rounds < 2_000):
            rounds += 1
            if chance.random() < 0.05:
                cache.flush()  # A disk that falls behind would cache too little to evict it.
            key, content = chance.choice((("a.seg", CONTENT), ("b.seg", CONTENT[::-1])))
            start = chance.randrange(len(content) - 3_000)
            part = ObjectPart(key, 0, len(content))
            if chance.random() < 0.2:
                cache.prefetch(part, start, start + 12_000)
            if chance.random() < 0.02:
                cache.forget(part)
            wrong += cache.read(part, start, 3_000) != content[start : start + 3_000]
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(read_much, range(8))) == 0
    cache.flush()
    statistics = cache.statistics()
    assert statistics.memory_bytes <= 9_000
    assert statistics.disk_bytes <= 20_000
    assert statistics.evicted_count > 0


def test_a_failed_fetch_wakes_all_and_the_next_read_tries_again(
    make: Make, store: ScriptedStore
) -> None:
    cache = make()
    store.is_open.clear()
    store.failures.append(StoreDown("down"))
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(cache.read, PART, 0, 500) for _ in range(6)]
        assert store.arrived.acquire(timeout=30)
        # The others join the flight, or come after it and succeed: no reader hangs.
        store.is_open.set()
        errors = [each.exception(30) for each in found]
    assert any(isinstance(error, StoreDown) for error in errors)
    assert all(error is None or isinstance(error, StoreDown) for error in errors)
    assert cache.read(PART, 0, 500) == CONTENT[:500]
    assert cache.statistics().failed_fetch_count == 1


def test_failures_are_told_once_in_a_while(
    make: Make, store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    cache = make()
    store.failures.extend(StoreDown("down") for _ in range(3))
    for _ in range(3):
        with pytest.raises(StoreDown):
            cache.read(PART, 0, 10)
    (told,) = [each for each in caplog.records if "cold_read_failed" in each.getMessage()]
    assert (told.levelname, "down" in told.getMessage()) == ("ERROR", True)


def test_a_store_that_fails_for_a_while(make: Make, store: ScriptedStore) -> None:
    cache = make()
    store.failures.extend(StoreDown("down") for _ in range(5))
    for _ in range(5):
        with pytest.raises(StoreDown):
            cache.read(PART, 0, 500)
    assert cache.read(PART, 0, 500) == CONTENT[:500]


def test_an_interrupted_reader_leaves_the_fetch_to_others(make: Make, store: ScriptedStore) -> None:
    cache = make()
    store.failures.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        cache.read(PART, 0, 500)
    assert cache.read(PART, 0, 500) == CONTENT[:500]


def test_a_missing_and_a_truncated_object_are_told_by_name(
    make: Make, store: ScriptedStore
) -> None:
    cache = make()
    with pytest.raises(ObjectNotFound):
        cache.read(ObjectPart("gone.seg", 0, 10), 0, 10)
    store.objects["a.seg"] = CONTENT[:4_321]
    assert cache.read(PART, 0, 4_000) == CONTENT[:4_000]
    with pytest.raises(Corruption, match="321 bytes came instead of 1,000") as refused:
        cache.read(PART, 4_000, 500)
    assert refused.value.where == "test://bucket/a.seg"
    assert refused.value.position == 4_000


def test_what_is_fetched_ahead_is_not_waited_for_and_a_reader_need_not_queue(
    make: Make, store: ScriptedStore
) -> None:
    cache = make(threads=1)
    store.is_open.clear()
    cache.prefetch(PART, 0, 3 * CHUNK)
    assert store.arrived.acquire(timeout=30)  # The one thread fetches the first chunk.
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(cache.read, PART, 2 * CHUNK, 100)
        assert store.arrived.acquire(timeout=30)  # The reader fetches the third itself.
        store.is_open.set()
        assert found.result(30) == CONTENT[2 * CHUNK : 2 * CHUNK + 100]
    assert cache.read(PART, 0, 3 * CHUNK) == CONTENT[: 3 * CHUNK]
    assert store.fetched("a.seg") == [(0, CHUNK), (CHUNK, 2 * CHUNK), (2 * CHUNK, 3 * CHUNK)]


def test_what_is_in_memory_or_under_way_wakes_no_thread(make: Make, store: ScriptedStore) -> None:
    """Each thread that wakes would want the interpreter's lock, which those who append need."""
    # 1. All threads have fetched something, and wait.
    cache = make()
    cache.prefetch(PART, 0, 4 * CHUNK)
    cache.read(PART, 0, 4 * CHUNK)
    cache.flush()
    # 2. Three of them are busy, the fourth waits.
    store.is_open.clear()
    for _ in range(len(store.gets)):
        assert store.arrived.acquire(timeout=30)
    cache.prefetch(PART, 4 * CHUNK, len(CONTENT))
    for _ in range(3):
        assert store.arrived.acquire(timeout=30)
    wait_until_parked("firn-cold")
    before = switches("firn-cold")
    # 3. Whatever is asked for again is here or on its way.
    for _ in range(50):
        cache.prefetch(PART, 0, len(CONTENT))
        assert cache.read(PART, 500, CHUNK) == CONTENT[500 : 500 + CHUNK]
    assert switches("firn-cold") == before
    # 4. What is new wakes one.
    cache.prefetch(ObjectPart("b.seg", 0, 5 * PIECE), 0, PIECE)
    assert store.arrived.acquire(timeout=30)


def switches(prefix: str) -> dict[str, str]:
    """What each thread of ours does, and how often it has given up the processor by itself."""
    found = {}
    for thread in threading.enumerate():
        if thread.name.startswith(prefix):
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines()
            wanted = (line for line in status if line.startswith(("State", "voluntary")))
            found[thread.name] = " ".join(line.split()[1] for line in wanted)
    return found


def wait_until_parked(prefix: str) -> None:
    """Until all of them sleep: seen twice with no switch in between."""
    seen: dict[str, str] = {}
    for _ in range(1_000):
        now = switches(prefix)
        if now == seen and all(each.startswith("S ") for each in now.values()):
            return
        seen = now
        threading.Event().wait(0.02)
    raise AssertionError(f"threads do not come to rest: {seen}")


def test_a_failed_fetch_ahead_fails_no_read(make: Make, store: ScriptedStore) -> None:
    cache = make(threads=1)
    store.failures.extend((StoreDown("down"), ValueError("a defect")))
    cache.prefetch(PART, 0, 3 * CHUNK)
    for _ in range(3):
        assert store.arrived.acquire(timeout=30)
    assert cache.read(PART, 2 * CHUNK, 10) == CONTENT[2 * CHUNK : 2 * CHUNK + 10]
    assert cache.read(PART, 0, 10) == CONTENT[:10]


def test_the_cache_outlives_the_process(make: Make, store: ScriptedStore, tmp_path: Path) -> None:
    first = make()
    first.read(PART, 0, 30_000)
    first.close()
    store.gets.clear()
    second = make()
    assert second.statistics().disk_bytes >= 30_000
    assert second.read(PART, 0, 30_000) == CONTENT[:30_000]
    assert store.gets == []
    store.url = "test://other"
    assert make().read(PART, 0, 10) == CONTENT[:10]
    assert len(store.gets) == 1


@pytest.mark.parametrize("harm", ["flip", "cut", "grow", "remove", "unfinished"])
def test_harm_on_the_disk_is_found_and_repaired(
    make: Make, store: ScriptedStore, tmp_path: Path, harm: str
) -> None:
    first = make()
    first.read(PART, 0, 5_000)
    first.close()
    (path,) = cached_files(tmp_path)
    data = bytearray(path.read_bytes())
    match harm:
        case "flip":
            data[700] ^= 4
            path.write_bytes(data)
        case "cut":
            path.write_bytes(data[:-1])
        case "grow":
            path.write_bytes(data + b"x")
        case "remove":
            path.unlink()
        case "unfinished":
            path.rename(path.with_name(path.name + ".new"))
    store.gets.clear()
    second = make()
    assert second.read(PART, 0, 5_000) == CONTENT[:5_000]
    assert len(store.gets) == 1
    second.flush()
    (repaired,) = cached_files(tmp_path)
    assert repaired.read_bytes() == CONTENT[:5_000]


def test_a_file_that_goes_under_a_running_cache_is_fetched_again(
    make: Make, store: ScriptedStore, tmp_path: Path
) -> None:
    cache = make(memory_bytes=CHUNK)
    cache.read(PART, 0, CHUNK)
    cache.flush()
    for path in cached_files(tmp_path):
        path.unlink()
    cache.read(PART, CHUNK, CHUNK)  # Displaces the first chunk from memory.
    assert cache.read(PART, 0, 100) == CONTENT[:100]


def files_in(directory: Path, max_bytes: int = 10**6) -> CacheFiles:
    return CacheFiles(
        directory, max_bytes=max_bytes, piece_bytes=PIECE, origin="test", throttle=ColdThrottle()
    )


@pytest.mark.parametrize("size", [PIECE, CHUNK, 5_500])
def test_a_full_cache_writes_over_the_files_it_has(tmp_path: Path, size: int) -> None:
    """No file is removed and recreated, which would delay every fsync if the device discards."""
    files = files_in(tmp_path, max_bytes=2 * CHUNK)
    for name in ("a", "b"):
        assert files.write(name, 0, CONTENT[:CHUNK])
    before = {path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}
    for number in range(5):
        content = CONTENT[number : number + size]
        assert files.write(f"new-{number}", 0, content)
        after = {path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}
        assert after & before
        assert files.read(f"new-{number}", 0, size) == content
        assert files.size_bytes <= 2 * CHUNK
        before = after
    assert files.corrupt_count == files.failed_write_count == 0
    again = files_in(tmp_path, max_bytes=2 * CHUNK)
    assert again.read("new-4", 0, size) == CONTENT[4 : 4 + size]
    assert again.read("a", 0, CHUNK) is None


def test_a_file_that_is_gone_is_not_missed_when_it_would_be_written_over(tmp_path: Path) -> None:
    files = files_in(tmp_path, max_bytes=2 * CHUNK)
    for start in (0, CHUNK):
        assert files.write("a", start, CONTENT[:CHUNK])
    shutil.rmtree(tmp_path)
    for name in ("a", "b"):
        assert files.write(name, 2 * CHUNK, CONTENT[:CHUNK])
        assert files.read(name, 2 * CHUNK, CHUNK) == CONTENT[:CHUNK]


def test_extents_of_one_part_make_room_for_each_other(tmp_path: Path) -> None:
    """Its folder is there all the time, whichever of them is the last."""
    files = files_in(tmp_path, max_bytes=CHUNK)
    for start in range(0, 5 * CHUNK, CHUNK):
        assert files.write("a", start, CONTENT[start : start + CHUNK])
        assert files.read("a", start, CHUNK) == CONTENT[start : start + CHUNK]
    assert files.evicted_count == 4


def test_a_reader_is_not_given_what_was_written_over_its_file(tmp_path: Path) -> None:
    """While it reads, its extent goes and the file gets other bytes."""
    size = 3 * _SLICE_BYTES
    content, other = CONTENT * 4, CONTENT[::-1] * 4
    looks = 0

    def is_appending() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:  # Before the second slice.
            assert files.write("b", 0, other[:size])
        return False

    files = files_in(tmp_path, max_bytes=size)
    assert files.write("a", 0, content[:size])
    (inode,) = (path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file())
    files._throttle = ColdThrottle(is_appending)
    assert files.read("a", 0, size) is None
    assert looks > 2
    assert files.corrupt_count == 0, "it was evicted, not damaged"
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.stat().st_ino == inode
    assert files.read("b", 0, size) == other[:size]


def test_what_is_written_lets_appends_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it begins, before each slice, and before the truncation."""
    waits: list[float] = []
    throttle = ColdThrottle()
    monkeypatch.setattr(
        throttle, "wait_for_appends", lambda wait_s_max: waits.append(wait_s_max) or 0.0
    )
    files = files_in(tmp_path)
    files._throttle = throttle
    content = (CONTENT * 4)[: 2 * _SLICE_BYTES + 1]
    assert files.write("a", 0, content)
    assert len(waits) == 1 + 3 + 1
    assert files.read("a", 0, len(content)) == content
    assert len(waits) == 1 + 3 + 1 + 3


def test_blocks_are_freed_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A long file is written over by a short extent. 2. Two go for one. 3. There is a hurry."""
    cuts: list[int] = []
    cut = os.ftruncate
    monkeypatch.setattr(
        cache_files.os, "ftruncate", lambda file, size: cuts.append(size) or cut(file, size)
    )
    size = 4 * _SLICE_BYTES
    content = (CONTENT * 8)[:size]
    files = files_in(tmp_path, max_bytes=2 * size)
    assert files.write("a", 0, content)
    assert files.write("b", 0, content)
    assert cuts == []

    assert files.write("c", 0, content[:_BLOCK_BYTES])
    assert cuts == [3 * _SLICE_BYTES, 2 * _SLICE_BYTES, _SLICE_BYTES, _BLOCK_BYTES]

    cuts.clear()
    assert files.write("d", 0, content * 2)
    assert cuts == [0], "b is written over, c removed"
    assert files.evicted_count == 3
    assert files.read("d", 0, 2 * size) == content * 2

    cuts.clear()
    looks = iter([True])  # Wanted for the one slice that is written, and then no more.
    files.write("e", 0, content[:_BLOCK_BYTES], lambda: next(looks, False))
    assert cuts == [_BLOCK_BYTES]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_read_waits_for_appends_once_and_not_for_every_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_in(tmp_path)
    content = (CONTENT * 20)[: 10 * _SLICE_BYTES]
    assert files.write("a", 0, content)
    waits: list[float] = []
    throttle = ColdThrottle()
    monkeypatch.setattr(
        throttle, "wait_for_appends", lambda wait_s_max: waits.append(wait_s_max) or wait_s_max
    )
    files._throttle = throttle
    assert files.read("a", 0, len(content)) == content
    assert [wait for wait in waits if wait > 0] == waits[:1]


def test_what_is_forgotten_while_it_is_written_is_given_up(
    make: Make, store: ScriptedStore, tmp_path: Path
) -> None:
    """The caller of `forget` may hold a lock that appends wait for."""
    began, may_go_on = threading.Event(), threading.Event()

    def is_appending() -> bool:
        began.set()
        may_go_on.wait(20)
        return False

    cache = make(throttle=ColdThrottle(is_appending))
    assert cache.read(PART, 0, 100) == CONTENT[:100]
    assert began.wait(20)
    forgetting = threading.Thread(target=cache.forget, args=(PART,))
    forgetting.start()
    flight = cache._being_written
    assert flight is not None
    while not flight.is_unwanted:
        forgetting.join(0.001)
    may_go_on.set()
    forgetting.join(20)
    assert not forgetting.is_alive()
    assert cached_files(tmp_path) == []
    assert cache.statistics().failed_write_count == 0


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("os.pwrite", full)
    assert not files.write("a", 0, CONTENT[:CHUNK])
    assert list(tmp_path.iterdir()) == []


def test_extents_of_one_size_that_overlap_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """The one that is asked for is on the disk, and then a newer one over its first pieces."""
    files = files_in(tmp_path)
    for start in (3_000, 2_000):
        assert files.write("a", start, CONTENT[start : start + 4_000])
    assert files.extent_at("a", 6) == (3_000, 4_000)
    assert files.read("a", 3_000, 4_000) == CONTENT[3_000:7_000]
    assert files.read("a", 2_000, 4_000) == CONTENT[2_000:6_000]
    assert files.read("a", 4_000, 4_000) is None
    assert files.read("a", 3_000, 3_000) is None


def test_what_was_used_last_survives_eviction_and_restart(
    make: Make, store: ScriptedStore, tmp_path: Path
) -> None:
    cache = make(disk_bytes=4 * CHUNK, memory_bytes=CHUNK)
    for number in range(3):
        cache.read(PART, number * CHUNK, CHUNK)
        cache.flush()
    assert cache.statistics().disk_bytes == 3 * CHUNK
    cache.read(PART, 0, 10)  # From the disk: now the newest.
    cache.close()
    again = make(disk_bytes=2 * CHUNK, memory_bytes=CHUNK)  # Room for one chunk of data.
    assert again.statistics().disk_bytes == CHUNK
    store.gets.clear()
    again.read(PART, 0, CHUNK)
    assert store.gets == []


def test_heads_are_not_displaced_by_data(make: Make, store: ScriptedStore) -> None:
    cache = make(disk_bytes=40_000, memory_bytes=CHUNK)
    head = ObjectPart("b.seg", 0, 900, is_head=True)
    cache.put(head, CONTENT[::-1][:900])
    for start in range(0, len(CONTENT) - CHUNK, CHUNK):
        cache.read(PART, start, CHUNK)
        cache.flush()
    assert cache.read(head, 0, 900) == CONTENT[::-1][:900]
    assert store.fetched("b.seg") == []


def test_a_full_disk_makes_reads_uncached_and_nothing_else(
    make: Make, store: ScriptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make(memory_bytes=CHUNK)
    is_full = True
    rename = Path.rename

    def rename_if_room(path: Path, target: Path) -> Path:
        if is_full:
            raise OSError(errno.ENOSPC, "no space")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_if_room)
    for start in (0, CHUNK, 0):
        assert cache.read(PART, start, CHUNK) == CONTENT[start : start + CHUNK]
        cache.flush()
    assert len(store.gets) == 3
    assert cached_files(tmp_path) == []
    assert cache.statistics().failed_write_count == 3
    is_full = False
    cache.read(PART, CHUNK, CHUNK)
    cache.flush()
    assert len(cached_files(tmp_path)) == 1


def test_a_directory_that_cannot_be_made_is_no_cache(store: ScriptedStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ChunkCache(
        store,
        tmp_path / "file" / "cache",
        disk_bytes=10**6,
        memory_bytes=CHUNK,
        chunk_bytes=CHUNK,
        piece_bytes=PIECE,
        threads=1,
    )
    assert cache.read(PART, 0, 20_000) == CONTENT[:20_000]
    cache.close()


def test_forgotten_bytes_are_fetched_anew(make: Make, store: ScriptedStore, tmp_path: Path) -> None:
    cache = make()
    cache.read(PART, 0, 5_000)
    cache.flush()
    store.objects["a.seg"] = CONTENT[::-1]
    cache.forget(PART)
    assert cached_files(tmp_path) == []
    assert cache.read(PART, 0, 5_000) == CONTENT[::-1][:5_000]


def test_a_fetch_under_way_when_its_part_is_forgotten_is_not_kept(
    make: Make, store: ScriptedStore, tmp_path: Path
) -> None:
    cache = make()
    store.is_open.clear()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(cache.read, PART, 0, 500)
        assert store.arrived.acquire(timeout=30)
        cache.forget(PART)
        store.is_open.set()
        assert found.result(30) == CONTENT[:500]
    cache.flush()
    assert cache.statistics().memory_bytes == 0
    assert cached_files(tmp_path) == []


def test_every_fetch_goes_through_the_limiter(make: Make, store: ScriptedStore) -> None:
    limiter = Counted()
    cache = make(throttle=ColdThrottle(fetch_limiter=limiter))
    cache.prefetch(PART, 10_000, 20_000)
    cache.read(PART, 0, 30_000)
    assert limiter.total == cache.statistics().fetched_bytes
    assert limiter.total == sum(size for _, _, size in store.gets)


def test_only_memory_answers_without_waiting(make: Make, store: ScriptedStore) -> None:
    cache = make(memory_bytes=CHUNK)
    assert cache.read_nowait(PART, 0, 10) is None
    assert store.gets == []
    cache.read(PART, 0, 3_000)
    assert cache.read_nowait(PART, 500, 2_500) == CONTENT[500:3_000]
    assert cache.read_nowait(PART, 500, 2_501) is None
    cache.flush()
    cache.read(PART, CHUNK, CHUNK)
    assert cache.read_nowait(PART, 0, 10) is None


def test_close_stops_threads_and_refuses_reads(make: Make, store: ScriptedStore) -> None:
    cache = make(threads=1)
    store.is_open.clear()
    cache.prefetch(PART, 0, 5 * CHUNK)
    assert store.arrived.acquire(timeout=30)
    closing = threading.Thread(target=cache.close)
    closing.start()
    assert cache._closing.wait(30)
    store.is_open.set()
    closing.join(30)
    assert not closing.is_alive()
    assert len(store.gets) == 1
    with pytest.raises(Closed):
        cache.read(PART, 0, 10)
    cache.close()


def test_close_does_not_wait_for_the_limiter(make: Make, store: ScriptedStore) -> None:
    limiter = Counted(wait_s=3_600)
    cache = make(throttle=ColdThrottle(fetch_limiter=limiter))
    cache.prefetch(PART, 0, CHUNK)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(cache.read, PART, CHUNK, 10)
        for _ in range(2):
            assert limiter.asked.acquire(timeout=30)
        cache.close()
        assert isinstance(found.exception(30), Closed)
    assert store.gets == []


def test_beside_appends_a_scan_of_store_and_disk_is_throttled(
    make: Make, store: ScriptedStore
) -> None:
    earlier = make()
    earlier.read(PART, 0, 2 * CHUNK)
    earlier.close()
    throttle = Paced(0.001)
    cache = make(throttle=throttle)
    cache.read(PART, 0, 3 * CHUNK, is_scan=True)
    assert throttle.sizes == [CHUNK] * 3, "two from the disk, one from the store"
    assert len(store.gets) == 3
    cache.read(PART, 2 * CHUNK, CHUNK, is_scan=True)
    assert len(throttle.sizes) == 3, "what is in memory costs nothing"
    assert cache.statistics().paced_count == 3
    assert throttle.noted_sizes == []


def test_who_looks_something_up_does_not_wait_for_scans(make: Make) -> None:
    """1. A scan is held back. 2. A reader reads elsewhere. 3. A reader needs bytes of the scan."""
    throttle = Paced(3_600)
    cache = make(throttle=throttle)
    cache.prefetch(PART, CHUNK, 3 * CHUNK, is_scan=True)
    for _ in range(2):
        assert throttle.asked.acquire(timeout=30)
    assert cache.read(PART, 100, 1_500) == CONTENT[100:1_600]
    assert throttle.noted_sizes == [2 * PIECE]
    assert cache.read(PART, CHUNK + 7, 10) == CONTENT[CHUNK + 7 : CHUNK + 17]
    assert cache.read_nowait(PART, 2 * CHUNK, 1) is None, "the rest of the scan waits"


def test_a_scan_goes_on_when_appends_have_ended(make: Make) -> None:
    throttle = Paced(3_600)
    cache = make(throttle=throttle)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(cache.read, PART, 0, CHUNK, is_scan=True)
        assert throttle.asked.acquire(timeout=30)
        assert not found.done()
        throttle.has_appends = False
        assert found.result(30) == CONTENT[:CHUNK]


def test_close_and_forget_do_not_wait_for_the_throttle(make: Make, store: ScriptedStore) -> None:
    throttle = Paced(3_600)
    cache = make(throttle=throttle)
    with ThreadPoolExecutor(2) as pool:
        forgotten = pool.submit(cache.read, PART, 0, CHUNK, is_scan=True)
        assert throttle.asked.acquire(timeout=30)
        cache.forget(PART)
        assert forgotten.result(30) == CONTENT[:CHUNK]
        count = len(store.gets)
        cache.prefetch(PART, 0, CHUNK, is_scan=True)
        closed = pool.submit(cache.read, PART, CHUNK, CHUNK, is_scan=True)
        for _ in range(2):
            assert throttle.asked.acquire(timeout=30)
        cache.close()
        assert isinstance(closed.exception(30), Closed)
    assert len(store.gets) == count


def test_extents_may_overlap_without_losing_count() -> None:
    table: ExtentTable[str] = ExtentTable(10)
    table.put(Extent("p", 0, 20, "old"))
    table.put(Extent("p", 10, 30, "new"))
    found = [table.find("p", piece) for piece in range(5)]
    assert [each and each.content for each in found] == ["old", "new", "new", "new", None]
    table.put(Extent("p", 0, 10, "other"))
    assert table.size_bytes == 40
    table.remove_part("p")
    assert (table.size_bytes, len(table), table.find("p", 1)) == (0, 0, None)


def test_a_file_that_begins_elsewhere_is_not_what_was_wanted(make: Make) -> None:
    """1. A fetch begins. 2. An older one that it overlaps, and that is as long, is written."""
    cache = make()
    with cache._lock:
        flight = cache._begin(PART, 1, 3 * PIECE, False)
    assert (flight.start, flight.size) == (PIECE, 2 * PIECE)
    assert cache._data_files.write(PART.name, 0, CONTENT[: 2 * PIECE])
    cache._fly(flight)
    assert flight.data == CONTENT[PIECE : 3 * PIECE]
    assert cache.read(PART, PIECE, 2 * PIECE) == CONTENT[PIECE : 3 * PIECE]
