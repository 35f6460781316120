"""Since when nothing was lost, after every way in which a process can end."""

from __future__ import annotations

from pathlib import Path

import pytest

from firnmq.config import TopicConfig
from firnmq.disk import KeyValueStore
from firnmq.engines.replicas.continuity import Continuity
from firnmq.server import LocalStore

MADE = 4


def since(continuity: Continuity, **options: object) -> int:
    return continuity.since(TopicConfig.from_options(options))


@pytest.mark.parametrize(
    ("closes", "boot", "page_cache_since"),
    [
        (True, "first", MADE),
        (False, "first", MADE),
        (True, "second", MADE),
        (False, "second", MADE + 1),
    ],
)
@pytest.mark.parametrize("durability", ["os", "interval"])
def test_only_a_crash_of_the_machine_loses_the_page_cache(
    tmp_path: Path, durability: str, closes: bool, boot: str, page_cache_since: int
) -> None:
    """1. A directory is made. 2. Its process ends, with everything synced or killed, and the
    machine may start again. 3. The next incarnations tell what was lost."""
    kv = KeyValueStore(tmp_path)
    first = Continuity(kv, MADE, "first")
    assert since(first, durability="fsync") == since(first, durability=durability) == MADE
    if closes:
        first.close()
    kv.close()
    kv = KeyValueStore(tmp_path)
    for incarnation in (MADE + 1, MADE + 2):
        later = Continuity(kv, incarnation, boot)
        assert since(later, durability="fsync") == MADE
        assert since(later, durability=durability) == page_cache_since
        assert since(later, **{"storage.type": "EngineMemory"}) == incarnation
    kv.close()


def test_a_store_that_closes_has_lost_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, background=False)
    made = store.node.incarnation
    store.close()
    kv = KeyValueStore(tmp_path / "db")
    assert since(Continuity(kv, made + 1, "another boot"), durability="os") == made
    kv.close()  # Without `close`: as after a crash.
    kv = KeyValueStore(tmp_path / "db")
    assert since(Continuity(kv, made + 2, "a third boot"), durability="os") == made + 2
    kv.close()
