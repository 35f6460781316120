"""What a slow collection has visited is not visited again."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.config import StorageType, TopicConfig
from firnmq.disk import run_blocking
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.server.short_collections import PAUSE_S_MAX, ShortCollections


@pytest.fixture
def install() -> Iterator[Callable[[float], None]]:
    """Installs the callback with a clock that goes on by so much whenever it is asked."""
    installed: list[ShortCollections] = []

    def act(step_s: float) -> None:
        times = itertools.count()
        installed.append(ShortCollections(lambda: next(times) * step_s))
        gc.callbacks.append(installed[-1])

    yield act
    for each in installed:
        gc.callbacks.remove(each)
    gc.unfreeze()


def test_a_slow_collection_is_the_last_to_visit_what_is_there(
    install: Callable[[float], None],
) -> None:
    install(2 * PAUSE_S_MAX)
    kept = [[] for _ in range(10_000)]  # type: ignore[var-annotated]
    gc.collect()
    assert gc.get_freeze_count() >= len(kept)
    assert len(gc.get_objects(generation=2)) < len(kept)


def test_a_short_collection_changes_nothing(install: Callable[[float], None]) -> None:
    install(PAUSE_S_MAX / 2)
    before = gc.get_freeze_count()
    gc.collect()
    gc.collect(1)
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize("storage_type", [each.value for each in StorageType])
def test_a_deleted_log_is_freed_without_a_collection(storage_type: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "data", background=False)
    engine = store._log_engines[storage_type]
    try:
        options = {"storage.type": storage_type, "segment.bytes": 2_000}
        engine.create_shard("s", TopicConfig.from_options(options))
        for _ in range(60):
            run_blocking(engine.append("s", [NewRecord(key=b"k", value=bytes(100))]))
        engine.wait_for_roll("s")
        engine.delete_by_key("s", b"k")
        gc.collect()
        gc.disable()
        log = weakref.ref(engine.log("s"))
        engine.delete_shard("s")
        assert log() is None
    finally:
        gc.enable()
        store.close()
