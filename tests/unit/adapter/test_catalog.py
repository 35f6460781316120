"""Topics on their way: hidden until they are whole, known until they are gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.adapter import Topic, TopicCatalog
from firnmq.adapter.catalog import TopicState
from firnmq.config import TopicConfig
from firnmq.errors import AlreadyExists, Corruption, TopicNotFound
from firnmq.meta import MetaCache, SqliteMetaStore
from firnmq.meta.records import topic_key

Meta = tuple[SqliteMetaStore, MetaCache]


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[Meta]:
    store = SqliteMetaStore(tmp_path / "meta.db")
    cache = MetaCache(store)
    yield store, cache
    cache.close()
    store.close()


def topic(name: str, **fields: object) -> Topic:
    given = {"topic_id": f"id-{name}", "shard_count": 2, "config": TopicConfig(), "created_ms": 5}
    return Topic(name=name, **{**given, **fields})  # type: ignore[arg-type]


def test_a_topic_is_shown_when_it_is_ready(meta: Meta) -> None:
    catalog = TopicCatalog(*meta)
    catalog.begin_creation(topic("t"))
    assert catalog.topics() == []
    assert [each.name for each in catalog.unfinished()] == ["t"]
    with pytest.raises(TopicNotFound):
        catalog.get("t")
    with pytest.raises(AlreadyExists):
        catalog.begin_creation(topic("t"))
    ready = catalog.become_ready(topic("t"))
    assert (catalog.get("t"), catalog.topics(), catalog.unfinished()) == (ready, [ready], [])
    assert ready.shard_names() == ["id-t_0", "id-t_1"]


def test_a_topic_is_hidden_when_it_is_being_deleted(meta: Meta) -> None:
    catalog = TopicCatalog(*meta)
    with pytest.raises(TopicNotFound):
        catalog.begin_deletion("t")
    catalog.begin_creation(topic("t"))
    catalog.become_ready(topic("t"))
    going = catalog.begin_deletion("t")
    assert going.state is TopicState.DELETING
    with pytest.raises(TopicNotFound):
        catalog.begin_deletion("t")
    with pytest.raises(AlreadyExists):
        catalog.begin_creation(topic("t"))
    catalog.forget(going)
    catalog.forget(going)
    assert catalog.unfinished() == []
    catalog.begin_creation(topic("t"))


def test_a_removal_of_what_was_left_behind_spares_a_topic_that_has_become_ready(
    meta: Meta,
) -> None:
    catalog = TopicCatalog(*meta)
    catalog.begin_creation(topic("t"))
    left = catalog.stored("t")
    assert left is not None
    ready = catalog.become_ready(left)
    assert catalog.begin_removal(left, unless_ready=True) == ready
    assert catalog.get("t") == ready
    assert catalog.begin_removal(left) is None
    stored = catalog.stored("t")
    assert stored is not None
    assert stored.state is TopicState.DELETING


def test_all_of_it_is_there_after_a_restart(meta: Meta) -> None:
    catalog = TopicCatalog(*meta)
    config = TopicConfig(ttl_ms=7, tag_headers=("a", "b"))
    for name in ("b", "a", "half", "going", "gone"):
        catalog.begin_creation(topic(name, config=config))
        if name != "half":
            catalog.become_ready(topic(name, config=config))
    catalog.begin_deletion("going")
    catalog.forget(catalog.begin_deletion("gone"))
    again = TopicCatalog(*meta)
    assert again.topics() == catalog.topics()
    assert [each.name for each in again.topics()] == ["a", "b"]
    assert {each.name for each in again.unfinished()} == {"half", "going"}
    assert again.get("a").config == config


def test_a_damaged_entry_is_called_so(meta: Meta) -> None:
    store, cache = meta
    cache.wait_for_revision(store.txn(puts={topic_key("broken"): b"\xff\xff"}), 30)
    with pytest.raises(Corruption):
        TopicCatalog(*meta)
