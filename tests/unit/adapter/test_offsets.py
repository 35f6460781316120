"""Group offsets: both strategies keep the same things; one of them syncs."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firnmq.adapter import (
    CommittedOffset,
    OffsetCacheManager,
    OffsetLimits,
    OffsetManager,
    OffsetRows,
    OffsetStorageManager,
)
from firnmq.disk import KeyValueStore
from firnmq.errors import InvalidArgument, OffsetLimitReached, StorageFailed
from firnmq.testing import FakeClock


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[KeyValueStore]:
    kv = KeyValueStore(tmp_path)
    yield kv
    kv.close()


@pytest.fixture(params=[OffsetCacheManager, OffsetStorageManager])
def offsets(request: pytest.FixtureRequest, kv: KeyValueStore) -> OffsetManager:
    return OffsetManager(request.param(OffsetRows(kv)), FakeClock(1000))


def test_commits_come_back_by_group_and_shard(offsets: OffsetManager) -> None:
    offsets.commit("g", {"a_0": 5, "a_1": 0}, "note")
    offsets.commit("g", {"a_0": 7})
    offsets.commit("g2", {"a_0": 1})
    found = offsets.committed("g")
    assert {shard: entry.offset for shard, entry in found.items()} == {"a_0": 7, "a_1": 0}
    assert (found["a_1"].metadata, found["a_1"].committed_ms) == ("note", 1000)
    assert found["a_0"].metadata is None
    assert offsets.committed("nobody") == {}
    assert offsets.groups() == ["g", "g2"]


def test_groups_with_names_that_begin_alike(offsets: OffsetManager) -> None:
    names = ["g", "gg", "g\u00e9", "g_0", "x" * 255]
    for number, name in enumerate(names):
        offsets.commit(name, {"s_0": number, "g_0": number})
    for number, name in enumerate(names):
        assert {entry.offset for entry in offsets.committed(name).values()} == {number}
    assert offsets.groups() == sorted(names)
    assert all(map(offsets.has_offsets, names))
    assert not any(map(offsets.has_offsets, ["", "ggg", "G", "x" * 254, "x" * 70_000]))


def test_one_group_is_found_without_reading_all(
    offsets: OffsetManager, kv: KeyValueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        offsets.commit(f"g{number}", {"a_0": 5, "a_1": 6})
    rows = []
    items = kv.items

    def counted(*args: Any, **limits: Any) -> list[tuple[bytes, bytes]]:
        found = items(*args, **limits)
        rows.extend(found)
        return found

    monkeypatch.setattr(kv, "items", counted)
    assert offsets.has_offsets("g7")
    assert not offsets.has_offsets("nobody")
    assert len(rows) == 1


class FailingSyncs:
    """A database whose syncs fail. What was written since the last one is lost if it is told so."""

    def __init__(self, kv: KeyValueStore, path: Path, *, loses: bool) -> None:
        generation, file = kv._generation, kv._journal._file
        assert generation is not None
        assert file is not None
        self._journal, self._path, self._loses = kv._journal, path, loses
        self._synced = {each: each.read_bytes() for each in path.iterdir()}
        self._close_database = generation.close
        generation.close = self._close  # type: ignore[method-assign]
        file.sync = self._refuse  # type: ignore[method-assign]

    def _refuse(self) -> None:
        raise OSError(5, "the device said no")

    def _close(self) -> None:
        self._close_database()
        if self._loses:
            self._journal.close()
            for path in set(self._path.iterdir()) - set(self._synced):
                path.unlink()
            for path, content in self._synced.items():
                path.write_bytes(content)


@pytest.mark.parametrize("loses", [True, False], ids=["lost", "kept"])
def test_a_commit_whose_sync_failed_is_what_the_store_says(
    kv: KeyValueStore, tmp_path: Path, loses: bool
) -> None:
    offsets = OffsetManager(OffsetStorageManager(OffsetRows(kv)), FakeClock(1000))
    offsets.commit("g", {"a_0": 5})
    FailingSyncs(kv, tmp_path, loses=loses)
    with pytest.raises(StorageFailed):
        offsets.commit("g", {"a_0": 7})
    expected = 5 if loses else 7
    assert offsets.committed("g")["a_0"].offset == expected
    offsets.commit("g", {"a_1": 1})
    assert offsets.committed("g")["a_0"].offset == expected


def test_an_offset_is_shown_once_it_is_synced(kv: KeyValueStore, tmp_path: Path) -> None:
    offsets = OffsetManager(OffsetStorageManager(OffsetRows(kv)), FakeClock(1000))
    offsets.commit("g", {"a_0": 5})
    FailingSyncs(kv, tmp_path, loses=True)
    OffsetCacheManager(OffsetRows(kv)).put("g", {"a_0": CommittedOffset(offset=7, committed_ms=1)})
    assert offsets.committed("g")["a_0"].offset == 5, "its sync failed, so the store was reopened"
    OffsetCacheManager(OffsetRows(kv)).put("g", {"a_0": CommittedOffset(offset=8, committed_ms=1)})
    count = kv.sync_count
    assert offsets.committed("g")["a_0"].offset == 8
    assert offsets.committed("g")["a_0"].offset == 8
    assert kv.sync_count == count + 1


def test_groups_are_forgotten(offsets: OffsetManager) -> None:
    offsets.commit("g", {"a_0": 5, "a_1": 6, "b_0": 7})
    offsets.forget("g", ["a_0", "never"])
    assert offsets.committed("g").keys() == {"a_1", "b_0"}
    offsets.forget("g")
    assert offsets.committed("g") == {}
    assert offsets.groups() == []
    offsets.forget("nobody")


@pytest.mark.parametrize("offset", [-1, True, 1.5, "1", None])
def test_an_offset_that_cannot_be_meant_commits_nothing(
    offsets: OffsetManager, offset: int
) -> None:
    with pytest.raises(InvalidArgument):
        offsets.commit("g", {"a_0": 1, "a_1": offset})
    assert offsets.committed("g") == {}


def test_bad_groups_are_refused(offsets: OffsetManager) -> None:
    for operation in (lambda: offsets.commit("", {}), lambda: offsets.committed("a\nb")):
        with pytest.raises(InvalidArgument):
            operation()


def test_only_one_strategy_syncs(kv: KeyValueStore) -> None:
    cached = OffsetManager(OffsetCacheManager(OffsetRows(kv)), FakeClock())
    cached.commit("g", {"a_0": 1})
    cached.forget("g")
    assert kv.sync_count == 0
    stored = OffsetManager(OffsetStorageManager(OffsetRows(kv)), FakeClock())
    stored.commit("g", {"a_0": 1})
    assert kv.sync_count == 1
    stored.forget("g")
    assert kv.sync_count == 2


# Limits -------------------------------------------------------------------------------------------

LIMITS = OffsetLimits(
    group_count_max=5, client_group_count_max=3, bytes_max=3_000, client_bytes_max=2_000
)


def of(owner: str, offset: int = 1, note: str | None = None) -> CommittedOffset:
    return CommittedOffset(offset=offset, committed_ms=1, owner=owner, metadata=note)


@pytest.fixture
def rows(kv: KeyValueStore) -> OffsetRows:
    rows = OffsetRows(kv)
    rows.limits = LIMITS
    return rows


@pytest.fixture
def limited(rows: OffsetRows) -> OffsetManager:
    return OffsetManager(OffsetStorageManager(rows), FakeClock(1000))


def refused(offsets: OffsetManager, group: str, entry: CommittedOffset) -> OffsetLimitReached:
    before = offsets.committed(group)
    with pytest.raises(OffsetLimitReached) as caught:
        offsets.check_entries(group, {"a_0": entry})
    with pytest.raises(OffsetLimitReached):
        offsets.commit_entries(group, {"a_0": entry})
    assert offsets.committed(group) == before
    return caught.value


def test_groups_are_limited_by_client_and_altogether(
    limited: OffsetManager, kv: KeyValueStore
) -> None:
    for number in range(3):
        limited.commit_entries(f"x{number}", {"a_0": of("x")})
    error = refused(limited, "x3", of("x"))
    assert (error.unit, error.limit, error.client) == ("groups", 3, "x")
    for number in range(2):
        limited.commit_entries(f"y{number}", {"a_0": of("y")})
    error = refused(limited, "z", of("z"))
    assert (error.limit, error.client) == (5, "")
    limited.commit_entries("x0", {"a_0": of("x", 7), "a_1": of("y")})  # A group that is there.
    limited.commit("by the operator", {"a_0": 5})
    limited.forget("x0", ["a_0"])
    refused(limited, "x3", of("x"))
    limited.forget("x0")
    limited.forget("y0")
    limited.commit_entries("x3", {"a_0": of("x")})
    reopened = OffsetRows(kv)
    reopened.limits = LIMITS
    refused(OffsetManager(OffsetStorageManager(reopened), FakeClock()), "x4", of("x"))


def test_bytes_are_limited_by_client_and_altogether(limited: OffsetManager) -> None:
    limited.commit_entries("x", {"a_0": of("x", note="n" * 1_500)})
    error = refused(limited, "x", of("x", note="n" * 2_000))
    assert (error.unit, error.limit, error.client) == ("bytes", 2_000, "x")
    for _ in range(5):
        limited.commit_entries("x", {"a_0": of("x", note="m" * 1_500)})  # In place of the first.
    limited.commit_entries("y", {"a_0": of("y", note="n" * 800)})
    error = refused(limited, "z", of("z", note="n" * 1_000))
    assert (error.limit, error.client) == (3_000, "")
    limited.commit_entries("x", {"a_0": of("y")})  # It belongs to another client now.
    limited.commit_entries("z", {"a_0": of("z", note="n" * 1_000)})


def test_what_a_failed_write_did_not_store_is_not_counted(
    limited: OffsetManager, kv: KeyValueStore, tmp_path: Path
) -> None:
    limited.commit_entries("x0", {"a_0": of("x")})
    FailingSyncs(kv, tmp_path, loses=True)
    with pytest.raises(StorageFailed):
        limited.commit_entries("x1", {"a_0": of("x")})
    for group in ("x2", "x3"):
        limited.commit_entries(group, {"a_0": of("x")})
    refused(limited, "x5", of("x"))


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("gh"), st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 3)
        ),
        max_size=20,
    )
)
def test_counts_are_those_of_a_new_count(steps: list[tuple[str, str, str, int]]) -> None:
    with TemporaryDirectory() as path:
        kv = KeyValueStore(Path(path))
        rows = OffsetRows(kv)
        offsets = OffsetManager(OffsetCacheManager(rows), FakeClock())
        for group, shard, owner, size in steps:
            if size:
                offsets.commit_entries(group, {shard: of(owner, note="n" * size)})
            else:
                offsets.forget(group, [shard])
        assert _usage(rows) == _usage(OffsetRows(kv))
        kv.close()


def _usage(rows: OffsetRows) -> tuple[object, ...]:
    usage = rows._counted()
    counts = {group: count for group, (_, count) in usage._groups.items()}
    return counts, usage._bytes, usage._total_bytes, usage._group_count.total()
