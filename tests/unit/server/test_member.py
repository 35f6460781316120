"""A directory's place in a cluster: its own for good, and no other node's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from firnmq.cluster.config import ClusterConfig
from firnmq.config import MetaConfig, TopicConfig
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import Corruption, InvalidArgument
from firnmq.index.layout import shard_range
from firnmq.record.deletion import Deletion
from firnmq.server.identity import known_directory, write_down
from firnmq.server.local import LocalStore
from firnmq.server.member import ClusterMember
from firnmq.server.settings import load_node_config


def _opened(path: Path, number: int, name: str = "") -> LocalStore:
    config = ClusterConfig(enabled=True, meta_file=path / "cluster.db")
    member = ClusterMember(config, MetaConfig(), number)
    return LocalStore(path / (name or f"node{number}"), background=False, member=member)


def _start(path: Path, number: int, name: str = "") -> tuple[int, int]:
    store = _opened(path, number, name)
    store.close()
    return store.node.node, store.node.incarnation


def test_each_start_is_another_incarnation(tmp_path: Path) -> None:
    lives = [_start(tmp_path, number) for number in (1, 2, 1, 1)]
    assert lives == [(1, 1), (2, 1), (1, 2), (1, 3)]


def test_an_empty_directory_is_not_taken_for_a_known_node(tmp_path: Path) -> None:
    _start(tmp_path, 1)
    with pytest.raises(Corruption, match="node 1 has another directory"):
        _start(tmp_path, 1, "empty")
    assert _start(tmp_path, 1) == (1, 2)


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    _start(tmp_path, 1)
    _start(tmp_path, 2)
    with pytest.raises(Corruption, match="not the directory of node 1"):
        _start(tmp_path, 1, "node2")
    with pytest.raises(Corruption, match="it is node 2's"):
        _start(tmp_path, 3, "node2")


def test_an_old_copy_of_the_directory_is_refused(tmp_path: Path) -> None:
    _start(tmp_path, 1)
    shutil.copytree(tmp_path / "node1", tmp_path / "copy")
    _start(tmp_path, 1)
    with pytest.raises(Corruption, match="an old copy"):
        _start(tmp_path, 1, "copy")
    assert _start(tmp_path, 1) == (1, 3)


def test_a_copy_made_while_the_node_ran_is_refused(tmp_path: Path) -> None:
    store = _opened(tmp_path, 1)
    assert store.member is not None
    store.member.mark.renew()
    shutil.copytree(tmp_path / "node1", tmp_path / "copy")
    with store.kv.batch() as batch:
        batch.put(Family.STATE, b"Z", b"acknowledged after the copy")
    store.kv.sync()
    store.close()
    with pytest.raises(Corruption, match="an old copy of node 1's directory, made while"):
        _start(tmp_path, 1, "copy")
    assert _start(tmp_path, 1) == (1, 2)


def test_a_node_that_stores_nothing_does_not_renew_its_mark(tmp_path: Path) -> None:
    store = _opened(tmp_path, 1)
    assert store.member is not None
    store.member.mark.renew()
    revision = store.meta.range("").revision
    store.member.mark.renew()
    assert store.meta.range("").revision == revision
    store.close()


def test_a_mark_that_only_the_directory_has_is_no_old_copy(tmp_path: Path) -> None:
    """As after a crash between the two, or while the metadata was away."""
    store = _opened(tmp_path, 1)
    record = known_directory(store.kv)
    store.close()
    assert record is not None
    kv = KeyValueStore(tmp_path / "node1" / "db")
    write_down(kv, replace(record, mark=1_000))
    kv.close()
    assert _start(tmp_path, 1) == (1, 2)


def test_a_clusters_directory_is_not_opened_alone(tmp_path: Path) -> None:
    _start(tmp_path, 1)
    with pytest.raises(Corruption, match=r"a cluster's: then start it with \[cluster\]"):
        LocalStore(tmp_path / "node1", background=False)
    assert _start(tmp_path, 1) == (1, 2)


def test_the_metadata_of_a_node_that_is_alone_is_no_clusters(tmp_path: Path) -> None:
    LocalStore(tmp_path / "alone", background=False).close()
    shutil.copy(tmp_path / "alone" / "meta.db", tmp_path / "cluster.db")
    with pytest.raises(InvalidArgument, match="a node that is alone"):
        _start(tmp_path, 1)


def test_what_is_left_of_deleted_shards_goes_at_the_start(tmp_path: Path) -> None:
    store = _opened(tmp_path, 1)
    own = store.node.replica
    (spec,) = store.shards.add_shards(["t_0"], TopicConfig(), replicas={"t_0": (own,)})
    files = [tmp_path / "node1" / "segments" / name / "0.log" for name in ("t_0", "gone_0")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    with store.kv.batch() as batch:
        for uid in (spec.uid, spec.uid + 7):
            batch.put(Family.INDEX, shard_range(uid)[0], b"")
            batch.put(Family.MESSAGES, shard_range(uid)[0], b"")
    store.state.deletions.add_unlogged(spec.uid + 7, Deletion(offsets=(5,)))
    store.close()

    store = _opened(tmp_path, 1)
    assert [file.exists() for file in files] == [True, False]
    for family in (Family.INDEX, Family.MESSAGES):
        (kept,) = store.kv.items(family, b"", b"\xff")
        assert kept[0] == shard_range(spec.uid)[0]
    assert store.state.deletions.unlogged(spec.uid + 7) == Deletion()
    store.close()


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"FIRN_CLUSTER_ENABLED": "true"}, "either meta.endpoints or cluster.meta_file"),
        ({"FIRN_CLUSTER_META_FILE": "c.db"}, "set cluster.enabled as well"),
        ({"FIRN_META_ENDPOINTS": "127.0.0.1:2379"}, "set cluster.enabled as well"),
    ],
)
def test_settings_that_do_not_fit_are_refused(variables: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        load_node_config(environment=variables)


def test_other_hosts_may_see_what_nodes_send_only_if_that_is_meant() -> None:
    variables = {
        "FIRN_CLUSTER_ENABLED": "true",
        "FIRN_CLUSTER_META_FILE": "c.db",
        "FIRN_CLUSTER_HOST": "0.0.0.0",
    }
    with pytest.raises(InvalidArgument, match="cluster listener"):
        load_node_config(environment=variables).exposures()
