"""What only a directory as a store does: sync, clean up, notice that a share is gone."""

import errno
import itertools
import os
import threading
from pathlib import Path

import pytest

from firnmq.errors import ObjectNotFound, StoreDenied, StoreUnavailable
from firnmq.testing.crash_disk import SECTOR_BYTES
from firnmq.tiering.stores import open_store
from firnmq.tiering.stores.local import PARTIAL, LocalStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "new" / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


class Syncs:
    """Notes the order of syncs, links and renames, and does them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        for name in ("fsync", "link", "replace"):
            monkeypatch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name, function):
        def call(*arguments):
            what = arguments[0]
            path = os.readlink(f"/proc/self/fd/{what}") if name == "fsync" else str(arguments[1])
            function(*arguments)
            self.steps.append(f"{name} {path}")

        return call


def test_a_new_object_is_synced_before_it_has_its_key_and_its_folders_after(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for write, step in (
        (lambda: store.put("a/b/created", b"x"), "link"),
        (lambda: store.upload("a/b/uploaded", [b"x"], size=1), "replace"),
    ):
        syncs = Syncs(monkeypatch)
        info = write()
        first, second, *folders = syncs.steps
        assert first.startswith(f"fsync {root / PARTIAL}/")
        assert second == f"{step} {root / info.key}"
        assert folders == [f"fsync {each}" for each in (root / "a/b", root / "a", root)]
        monkeypatch.undo()


def test_of_several_objects_all_data_is_synced_before_any_key_and_each_folder_once(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    store.upload_all([("a/1", b"x"), ("a/2", b"yy"), ("b/3", b"zzz")])
    data, names, folders = syncs.steps[:3], syncs.steps[3:6], syncs.steps[6:]
    assert all(step.startswith(f"fsync {root / PARTIAL}/") for step in data)
    assert len(set(data)) == 3
    assert names == [f"replace {root / key}" for key in ("a/1", "a/2", "b/3")]
    assert folders == [f"fsync {each}" for each in (root / "b", root / "a", root)]
    assert [(info.key, info.size) for info in store.list("")] == [
        ("a/1", 1),
        ("a/2", 2),
        ("b/3", 3),
    ]
    assert os.listdir(root / PARTIAL) == []


def test_objects_that_got_their_keys_before_a_failure_are_durable(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that tries again finds them, and relies on them."""
    store.put("b", b"is no folder")
    syncs = Syncs(monkeypatch)
    with pytest.raises(StoreDenied):
        store.upload_all([("a/1", b"x"), ("b/2", b"y"), ("c/3", b"z")])
    assert [info.key for info in store.list("")] == ["a/1", "b"]
    assert syncs.steps[-2:] == [f"fsync {root / 'a'}", f"fsync {root}"]
    assert os.listdir(root / PARTIAL) == []


def test_opening_makes_the_directory_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    open_store(f"file://{tmp_path}/one/two")
    assert {f"fsync {tmp_path / each}" for each in ("one/two", "one", "")} <= set(syncs.steps)


def test_a_removal_is_synced_and_takes_empty_folders_with_it(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/b/c/1", b"")
    store.put("a/2", b"")
    syncs = Syncs(monkeypatch)
    store.delete(["a/b/c/1"])
    assert f"fsync {root / 'a'}" in syncs.steps
    assert sorted(each.name for each in (root / "a").iterdir()) == ["2"]
    store.delete(["a/2"])
    assert f"fsync {root}" in syncs.steps
    assert [each.name for each in root.iterdir()] == [PARTIAL]


def test_a_folder_that_was_may_become_an_object(store: LocalStore) -> None:
    store.put("a/b", b"x")
    store.delete(["a/b"])
    store.put("a", b"x")
    assert [info.key for info in store.list("")] == ["a"]


def test_an_object_cannot_be_a_folder_too(store: LocalStore) -> None:
    store.put("a", b"x")
    with pytest.raises(StoreDenied):
        store.put("a/b", b"x")
    assert bytes(store.get_range("a", 0, 1)) == b"x"


def test_everything_is_listed_in_the_order_of_keys(store: LocalStore) -> None:
    # "-" and "." sort before "/", so a plain walk of folders would give another order.
    names = ["a-/b", "a.b", "a/b-c", "a/b.x/y", "a/b/c", "a0", "ab/c", "B", "b/c"]
    for name in names:
        store.put(name, b"")
    assert [info.key for info in store.list("")] == sorted(names)


def test_what_a_crash_leaves_is_no_object_and_is_swept(store: LocalStore, root: Path) -> None:
    old, young = root / PARTIAL / "old", root / PARTIAL / "young"
    for path, time_s in ((old, 1_000), (young, 2_000)):
        path.write_bytes(bytes(SECTOR_BYTES))
        os.utime(path, (time_s, time_s))
    assert list(store.list("")) == []
    assert store.sweep("any", before_ms=1_500_000) == 1
    assert not old.exists()
    assert young.exists()


def test_nothing_partial_is_left_when_the_disk_is_full(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    calls = (
        lambda: store.put("a/b", b"data"),
        lambda: store.upload_all([("a/b", b"data"), ("a/c", b"more")]),
    )
    for step, call in itertools.product(("write", "fsync"), calls):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            with pytest.raises(StoreUnavailable):
                call()
        assert os.listdir(root / PARTIAL) == []
        with pytest.raises(ObjectNotFound):
            store.head("a/b")


def test_a_share_that_is_gone_is_not_an_empty_store(store: LocalStore, root: Path) -> None:
    store.put("a/b", b"x")
    root.rename(root.parent / "elsewhere")
    root.mkdir()
    calls = (
        lambda: store.put("a/c", b""),
        lambda: store.get_range("a/b", 0, 1),
        lambda: store.head("a/b"),
        lambda: list(store.list("")),
        lambda: store.delete(["a/b"]),
        lambda: store.sweep("", before_ms=0),
    )
    for call in calls:
        with pytest.raises(StoreUnavailable):
            call()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_someone_else_is_denied(store: LocalStore, root: Path) -> None:
    (root / PARTIAL).chmod(0o500)
    with pytest.raises(StoreDenied):
        store.put("a", b"")


def test_a_read_only_file_system_is_denied(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreDenied):
        store.put("a", b"")


def test_readers_see_the_old_or_the_new_object_whole(store: LocalStore) -> None:
    size = 300_000
    store.put("key", b"0" * size)
    stop = threading.Event()
    torn: list[bytes] = []

    def look() -> None:
        while not stop.is_set():
            data = bytes(store.get_range("key", 0, size))
            if len(set(data)) != 1:
                torn.append(data)

    reader = threading.Thread(target=look)
    reader.start()
    for turn in range(40):
        store.upload("key", [b"%d" % (turn % 10) * size], size=size)
    stop.set()
    reader.join()
    assert torn == []


def test_a_reader_creates_no_directory(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/typo", creates=False)
    for ask in (
        lambda: list(store.list("")),
        lambda: store.head("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.put("a", b"x"),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(StoreUnavailable, match="typo: the directory does not exist; check"):
            ask()
    assert not any(tmp_path.iterdir())


def test_a_copy_of_a_store_without_its_empty_folder_is_one(store: LocalStore, root: Path) -> None:
    store.put("a", b"x")
    (root / PARTIAL).rmdir()
    again = open_store(f"file://{root}", creates=False)
    assert [info.key for info in again.list("")] == ["a"]
    again.delete(["a"])
    (root / PARTIAL).rmdir()
    with pytest.raises(StoreUnavailable, match="nothing of FirnMQ is in the directory"):
        list(open_store(f"file://{root}", creates=False).list(""))
