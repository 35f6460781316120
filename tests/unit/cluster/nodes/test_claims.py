"""Claims of topics end, also where the store did not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firnmq.cluster.nodes.claims import TopicClaims
from firnmq.errors import AlreadyExists, StorageFailed
from firnmq.meta.records import topic_claim_key
from firnmq.testing import FakeClock
from firnmq.testing.held_meta import HeldMetaStore

_REFUSAL = AlreadyExists("topic", "t")


def _unknown() -> StorageFailed:
    error = StorageFailed("the metadata", OSError("no answer"))
    error.is_outcome_unknown = True
    return error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HeldMetaStore]:
    store = HeldMetaStore(tmp_path / "meta.db")
    yield store
    store.close()


def _claims(store: HeldMetaStore, clock: FakeClock | None = None) -> TopicClaims:
    registration: Any = SimpleNamespace(session=store.session(60))
    return TopicClaims(store, "node 1", lambda: registration, clock or FakeClock())


def test_a_claim_excludes_others_until_its_end(store: HeldMetaStore) -> None:
    first, second = _claims(store), _claims(store)
    with first.claim("t", _REFUSAL):
        with pytest.raises(AlreadyExists), second.claim("t", _REFUSAL):
            pass
        with second.claim("other", _REFUSAL):
            pass
    with second.claim("t", _REFUSAL):
        pass


def test_a_claim_whose_end_was_not_stored_is_removed_later(store: HeldMetaStore) -> None:
    claims = _claims(store)
    with claims.claim("t", _REFUSAL):
        store.refusal = _unknown()
    store.refusal = None
    assert store.get(topic_claim_key("t")) is not None
    claims.release_left()
    assert store.get(topic_claim_key("t")) is None


def test_a_claim_that_may_have_been_stored_is_removed_however_late_it_comes(
    store: HeldMetaStore,
) -> None:
    clock = FakeClock()
    claims = _claims(store, clock)
    store.refusal, store.happens = _unknown(), True
    with pytest.raises(StorageFailed), claims.claim("t", _REFUSAL):
        pass
    late = store.get(topic_claim_key("t"))
    assert late is not None
    store.refusal, store.happens = None, False
    store.txn(deletes=[late.key])
    claims.release_left()
    clock.advance(10_000)
    store.txn(puts={late.key: late.value})
    claims.release_left()
    assert store.get(late.key) is None


def test_the_next_claim_of_the_node_need_not_wait(store: HeldMetaStore) -> None:
    claims = _claims(store)
    with claims.claim("t", _REFUSAL):
        store.refusal = _unknown()
    store.refusal = None
    with claims.claim("t", _REFUSAL):
        assert store.get(topic_claim_key("t")) is not None
