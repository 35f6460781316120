"""What every object store does, whatever it is."""

import os
import secrets
import threading
import time
from collections.abc import Iterator

import pytest

from firnmq.errors import InvalidArgument, ObjectExists, ObjectNotFound, ObjectTruncated
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY
from firnmq.tiering.stores import ObjectStore

MIB = 1024 * 1024


class Gone(OSError):
    """What a source of chunks may raise; an OSError, as stores' own errors are."""


def read(store: ObjectStore, key: str) -> bytes:
    return bytes(store.get_range(key, 0, store.head(key).size))


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


def is_clean(store: ObjectStore) -> bool:
    """Whether no unfinished upload is left."""
    return store.sweep("", before_ms=1 << 50) == 0


def test_what_was_put_is_read(store: ObjectStore) -> None:
    before_ms = time.time_ns() // 1_000_000 - 5_000
    info = store.put("a/b-1.seg", b"hello")
    assert (info.key, info.size) == ("a/b-1.seg", 5)
    assert info.modified_ms > before_ms
    found = store.head("a/b-1.seg")
    assert (found.key, found.size, found.e_tag) == (info.key, 5, info.e_tag)
    assert found.modified_ms > before_ms
    assert read(store, "a/b-1.seg") == b"hello"


@pytest.mark.parametrize("data", [b"", bytearray(b"ab"), memoryview(b"xabcx")[1:4]])
def test_put_takes_any_buffer(store: ObjectStore, data: bytes) -> None:
    assert store.put("key", data).size == len(data)
    assert store.head("key").size == len(data)
    assert bytes(store.get_range("key", 0, len(data))) == bytes(data)


def test_ranges_are_exact(store: ObjectStore) -> None:
    store.put("key", bytes(range(100)))
    assert bytes(store.get_range("key", 0, 1)) == b"\x00"
    assert bytes(store.get_range("key", 10, 20)) == bytes(range(10, 30))
    assert bytes(store.get_range("key", 99, 1)) == b"\x63"
    assert bytes(store.get_range("key", 100, 0)) == b""


@pytest.mark.parametrize(("start", "size", "found"), [(0, 101, 100), (90, 20, 10), (100, 1, 0)])
def test_a_range_beyond_the_end_is_truncated(
    store: ObjectStore, start: int, size: int, found: int
) -> None:
    store.put("key", bytes(100))
    with pytest.raises(ObjectTruncated) as error:
        store.get_range("key", start, size)
    assert (error.value.expected, error.value.found) == (size, found)
    assert error.value.key == "key"


def test_what_is_not_there(store: ObjectStore) -> None:
    store.put("folder/key", b"x")
    for key in ("nothing", "folder", "folder/key/below", "folder/other"):
        with pytest.raises(ObjectNotFound):
            store.get_range(key, 0, 1)
        with pytest.raises(ObjectNotFound):
            store.head(key)
    assert keys(store, "nothing") == []


def test_an_object_is_created_once(store: ObjectStore) -> None:
    store.put("key", b"first")
    with pytest.raises(ObjectExists):
        store.put("key", b"second")
    assert read(store, "key") == b"first"
    store.put("key", b"third", if_absent=False)
    assert read(store, "key") == b"third"
    store.delete(["key"])
    store.put("key", b"fourth")
    assert read(store, "key") == b"fourth"


def test_one_of_many_creators_wins(store: ObjectStore) -> None:
    for turn in range(2):
        start = threading.Barrier(8)
        won: list[int] = []

        def create(me: int, start: threading.Barrier, won: list[int], key: str) -> None:
            start.wait()
            try:
                store.put(key, b"%d" % me)
            except ObjectExists:
                return
            won.append(me)

        key = f"race/{turn}"
        threads = [threading.Thread(target=create, args=(me, start, won, key)) for me in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert read(store, key) == b"%d" % won[0]


@pytest.mark.parametrize("size", [0, 1, 100_000, 8 * MIB, 8 * MIB + 1, 20 * MIB + 7])
def test_uploads_of_any_size(store: ObjectStore, size: int) -> None:
    data = os.urandom(size)
    step = 700_001
    chunks = (memoryview(data)[at : at + step] for at in range(0, size, step))
    info = store.upload("deep/down/key", chunks, size=size)
    assert (info.key, info.size) == ("deep/down/key", size)
    assert store.head("deep/down/key").size == size
    assert read(store, "deep/down/key") == data
    assert is_clean(store)


def test_several_objects_are_uploaded_with_one_call(store: ObjectStore) -> None:
    objects = [(f"many/{number % 3}/{number}", os.urandom(number * 1000)) for number in range(8)]
    store.put(objects[5][0], b"is replaced")
    store.upload_all([(key, memoryview(data)) for key, data in objects])
    assert {info.key for info in store.list("many")} == {key for key, _ in objects}
    for key, data in objects:
        assert bytes(store.get_range(key, 0, len(data))) == data
    store.upload_all([])


@pytest.mark.parametrize("size", [10, 20 * MIB])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_an_upload_of_another_size_leaves_nothing(
    store: ObjectStore, size: int, wrong: int
) -> None:
    chunks = [os.urandom(size // 10)] * 10
    with pytest.raises(ObjectTruncated) as error:
        store.upload("key", iter(chunks), size=size + wrong)
    assert error.value.expected == size + wrong
    assert keys(store) == []
    assert is_clean(store)


@pytest.mark.parametrize("part_size", [10, 3 * MIB])
def test_an_upload_whose_source_fails_leaves_nothing(store: ObjectStore, part_size: int) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(8):
            yield os.urandom(part_size)
        raise Gone("the file has gone")

    with pytest.raises(Gone):
        store.upload("key", chunks(), size=10 * part_size)
    assert keys(store) == []
    assert is_clean(store)


def test_a_failed_upload_leaves_the_object_of_that_name(store: ObjectStore) -> None:
    store.put("key", b"old")
    with pytest.raises(ObjectTruncated):
        store.upload("key", [b"new", os.urandom(9 * MIB)], size=20 * MIB)
    assert read(store, "key") == b"old"


def test_an_upload_appears_only_when_it_is_whole(store: ObjectStore) -> None:
    seen: list[list[str]] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(12):
            yield bytes(MIB)
            look = threading.Thread(target=lambda: seen.append(keys(store)))
            look.start()
            look.join()

    store.upload("key", chunks(), size=12 * MIB)
    assert seen == [[]] * 12
    assert keys(store) == ["key"]


def test_a_folder_is_listed_in_the_order_of_its_names(store: ObjectStore) -> None:
    names = ["a-", "a.b", "a0", "B", "b", "00000000000000000010-x", "00000000000000000009-y"]
    folders = ["t-1", "t-1/0", "t-1/1", "t-10/0", "t.x/0", "T/0"]
    for folder in folders:
        for name in names:
            store.put(f"{folder}/{name}", folder.encode())
    found = list(store.list(""))
    assert sorted(info.key for info in found) == sorted(
        f"{folder}/{name}" for folder in folders for name in names
    )
    for folder in folders:
        inside = [info for info in found if info.key.rpartition("/")[0] == folder]
        assert [info.key for info in inside] == [f"{folder}/{name}" for name in sorted(names)]
        assert {info.size for info in inside} == {len(folder)}


def test_a_prefix_is_a_folder(store: ObjectStore) -> None:
    for name in ("a/b/1", "a/b/2", "a/bc/3", "a/b-4", "b/a/5"):
        store.put(name, b"")
    assert keys(store, "a/b") == keys(store, "a/b/") == ["a/b/1", "a/b/2"]
    assert sorted(keys(store, "a")) == ["a/b-4", "a/b/1", "a/b/2", "a/bc/3"]
    assert keys(store, "a/b/1/x") == []


def test_lists_of_many_pages(store: ObjectStore) -> None:
    names = [f"many/{index:05d}" for index in range(2_300)]
    threads = [
        threading.Thread(target=lambda part=part: [store.put(name, b"") for name in names[part::8]])
        for part in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys(store, "many") == names
    store.delete(names)
    assert keys(store) == []


def test_deletes(store: ObjectStore) -> None:
    for name in ("a/1", "a/2", "b/1"):
        store.put(name, b"x")
    store.delete([])
    store.delete(["a/1", "a/none", "none/none", "a/1"])
    assert keys(store) == ["a/2", "b/1"]
    store.delete(["a/1"])
    store.delete(["a/2"])
    assert keys(store) == ["b/1"]
    store.delete(["b/1"])
    assert keys(store) == []


def test_puts_and_deletes_in_one_folder_do_not_disturb_each_other(store: ObjectStore) -> None:
    failures: list[BaseException] = []

    def churn(me: int) -> None:
        try:
            for turn in range(40):
                key = f"x/y/{me}-{turn}"
                store.put(key, b"data")
                assert read(store, key) == b"data"
                store.delete([key])
        except BaseException as error:  # Shown by the assertion below.
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(me,)) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert keys(store) == []


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a/../b", ".", "a/.b", "a b", "a%20b", "ä", "a\nb", "a" * 1000]
)
def test_keys_that_not_every_store_can_have_are_refused(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: store.put(key, b""),
        lambda: store.upload(key, [], size=0),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete([key]),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_negative_ranges_are_refused(store: ObjectStore) -> None:
    store.put("key", b"x")
    for start, size in ((-1, 1), (0, -1)):
        with pytest.raises(InvalidArgument):
            store.get_range("key", start, size)


def test_many_threads_read(store: ObjectStore) -> None:
    data = secrets.token_bytes(2 * MIB)
    store.upload("key", [data], size=len(data))
    wrong: list[int] = []

    def look(me: int) -> None:
        for turn in range(20):
            start = (me * 7919 + turn * 104_729) % (len(data) - 5_000)
            if bytes(store.get_range("key", start, 5_000)) != data[start : start + 5_000]:
                wrong.append(start)

    threads = [threading.Thread(target=look, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_url_names_no_key(store: ObjectStore) -> None:
    assert store.url.startswith(("file://", "s3://", "hdfs://"))
    assert ACCESS_KEY not in repr(store.url)
    assert SECRET_KEY not in repr(store.url)
