"""Group offsets: both strategies keep the same things; one of them syncs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.adapter import OffsetCacheManager, OffsetManager, OffsetStorageManager
from firnmq.disk import KeyValueStore
from firnmq.errors import InvalidArgument
from firnmq.testing import FakeClock


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[KeyValueStore]:
    kv = KeyValueStore(tmp_path)
    yield kv
    kv.close()


@pytest.fixture(params=[OffsetCacheManager, OffsetStorageManager])
def offsets(request: pytest.FixtureRequest, kv: KeyValueStore) -> OffsetManager:
    return OffsetManager(request.param(kv), FakeClock(1000))


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
    cached = OffsetManager(OffsetCacheManager(kv), FakeClock())
    cached.commit("g", {"a_0": 1})
    cached.forget("g")
    assert kv.sync_count == 0
    stored = OffsetManager(OffsetStorageManager(kv), FakeClock())
    stored.commit("g", {"a_0": 1})
    assert kv.sync_count == 1
    stored.forget("g")
    assert kv.sync_count == 2
