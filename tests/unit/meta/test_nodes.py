"""Nodes: every registration is another life, and only the last one may write."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.errors import StaleIncarnation
from firnmq.meta import SqliteMetaStore, TxnConflict, register_node
from firnmq.meta.records import NODES, NodeRecord, decode, node_key
from firnmq.testing import FakeClock

CLOCK = FakeClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetaStore]:
    store = SqliteMetaStore(tmp_path / "meta.db", clock=CLOCK)
    yield store
    store.close()


def test_the_incarnation_goes_up_with_every_registration(tmp_path: Path) -> None:
    seen = []
    for _ in range(4):
        store = SqliteMetaStore(tmp_path / "meta.db")
        seen.append(register_node(store, 1, CLOCK).incarnation)
        store.close()
    assert seen == [1, 2, 3, 4]


def test_nodes_are_counted_each_by_itself(store: SqliteMetaStore) -> None:
    lives = [register_node(store, node, CLOCK) for node in (1, 2, 1)]
    assert [(each.node, each.incarnation) for each in lives] == [(1, 1), (2, 1), (1, 2)]
    listed = [decode(entry, NodeRecord) for entry in store.range(NODES).entries]
    assert [(each.node, each.incarnation) for each in listed] == [(1, 2), (2, 1)]


def test_an_earlier_life_cannot_write(store: SqliteMetaStore) -> None:
    first = register_node(store, 1, CLOCK)
    store.txn([first.guard], {"x": b"1"})
    second = register_node(store, 1, CLOCK)
    with pytest.raises(TxnConflict):
        store.txn([first.guard], {"x": b"2"})
    refusal = first.refusal(store)
    assert isinstance(refusal, StaleIncarnation)
    assert (refusal.node, refusal.incarnation, refusal.current) == (1, 1, 2)
    store.txn([second.guard], {"x": b"3"})


def test_a_node_with_a_session_is_listed_while_it_lasts(store: SqliteMetaStore) -> None:
    session = store.session(5)
    first = register_node(store, 1, CLOCK, session)
    assert store.get(node_key(1)) is not None
    CLOCK.advance(5_000)
    store.expire_sessions()
    assert store.get(node_key(1)) is None
    again = register_node(store, 1, CLOCK, store.session(5))
    assert again.incarnation == first.incarnation + 1, "its lives are still counted"
