"""Users in the metadata of several nodes: each node follows what the others change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.brokers.security.users import MetaUserRows, UserNotFound, UserStore
from firnmq.meta import MetaCache, SqliteMetaStore
from firnmq.meta.records import USERS

SEEN_WITHIN_S = 30


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[SqliteMetaStore]:
    meta = SqliteMetaStore(tmp_path / "meta.db")
    yield meta
    meta.close()


def test_a_user_removed_on_one_node_is_gone_on_the_others(meta: SqliteMetaStore) -> None:
    one, other = MetaCache(meta), MetaCache(meta)
    gone: list[str] = []
    here, there = MetaUserRows(meta, one), MetaUserRows(meta, other)
    there.on_removed = gone.append
    users, others = UserStore(here), UserStore(there)
    assert users.put("ann", "secret")
    assert users.put("bob", "secret")
    other.wait_for_revision(one.revision, SEEN_WITHIN_S)
    assert others.get("ann") == users.get("ann") is not None
    # Another password is no removal, and neither are the salts of unknown users.
    assert not users.put("ann", "other")
    users.decoy_secret()
    users.remove("ann")
    other.wait_for_revision(one.revision, SEEN_WITHIN_S)
    assert others.get("ann") is None
    assert others.get("bob") is not None
    assert gone == ["ann"]
    with pytest.raises(UserNotFound):
        others.remove("ann")
    one.close()
    other.close()


def test_a_record_that_cannot_be_read_keeps_no_other_user_out(meta: SqliteMetaStore) -> None:
    cache = MetaCache(meta)
    users = UserStore(MetaUserRows(meta, cache))
    users.put("ann", "secret")
    cache.wait_for_revision(meta.txn((), {f"{USERS}aa": b"\xc1"}), SEEN_WITHIN_S)
    cache.close()
    # Both at once, as a node that starts finds them.
    again = MetaCache(meta)
    assert UserStore(MetaUserRows(meta, again)).get("ann") is not None
    again.close()
