"""Nodes of a cluster share one object store: each segment is uploaded once, by its leader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

import firnmq
from firnmq import NewRecord
from firnmq.config import TieringConfig
from firnmq.disk import run_blocking
from firnmq.record import encode
from firnmq.server import LocalStore
from firnmq.server.recovery import recover_directory
from firnmq.testing.appending import append_batch
from firnmq.tiering.format.manifest import GroupsManifest
from firnmq.tiering.format.object_names import SEGMENT, parse
from tests.integration.admin.serving import firn
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until
from tests.integration.cluster.stores import Stores

_SHARDS = 6
_READERS = {"all", "readers-1", "readers-2", "readers-3"}
_QUICK_TIER = {
    "FIRN_TIERING_INTERVAL_MS": "50",
    "FIRN_TIERING_RETRY_MS": "10",
    "FIRN_TIERING_RETRY_MS_MAX": "100",
    "FIRN_TIERING_OFFSETS_MS": "1000",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def nodes(tmp_path: Path, store: Path) -> Iterator[Nodes]:
    settings = {"FIRN_TIERING_URL": store.as_uri(), **_QUICK_TIER}
    with closing(Nodes(tmp_path, settings=settings)) as found:
        found.start()
        yield found


def _firn(*args: str) -> str:
    done = firn(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _create(nodes: Nodes, name: str = "history") -> None:
    options = ("tiering=on", "segment.bytes=4096", "local.retention.ms=0", "index.key=true")
    chosen = [part for each in options for part in ("-o", each)]
    at = ("--node", nodes[2].admin_url)
    _firn("topic", "create", name, "--shards", str(_SHARDS), *chosen, *at)
    for number in nodes.processes:
        nodes.wait_leaders(number, name)


def _produce(nodes: Nodes, first: int, count: int, shards: set[int] | None = None) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": nodes.bootstrap, "linger.ms": 0})
    chosen = sorted(shards if shards is not None else range(_SHARDS))
    for number in range(first, first + count):
        producer.produce(
            "history",
            b"%d" % number + b" " * 100,
            key=b"key-%d" % number,
            partition=chosen[number % len(chosen)],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        if number % 30 == 0:
            producer.flush(WAIT_S)  # Many small batches make many segments.
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def _status(nodes: Nodes, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        _firn("tier", "status", "--json", "--node", nodes[number].admin_url)
    )
    return found


def _upload_all(nodes: Nodes, through: int) -> None:
    _firn("tier", "upload", "--roll", "--node", nodes[through].admin_url)

    def is_done() -> bool:
        status = _status(nodes, through)
        return status["waiting_segments"] == status["local_segments"] == 0

    wait_until(is_done, "everything is only in the store")


def _segments(store: Path) -> list[Path]:
    return [path for path in store.rglob("*" + SEGMENT) if path.is_file()]


def _numbers(nodes: Nodes, through: int, group: str, count: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": nodes[through].address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: list[int] = []
    try:
        consumer.subscribe(["history"])
        while len(found) < count:
            record = consumer.poll(WAIT_S)
            assert record is not None, f"{len(found)} of {count} records"
            assert record.error() is None, record.error()
            value = record.value()
            assert value is not None
            found.append(int(value))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return sorted(found)


def _groups_in(store: Path) -> set[str]:
    found = sorted(path for path in (store / "groups").rglob("*.mf"))
    return set(GroupsManifest.unpack(found[-1].read_bytes(), "").groups) if found else set()


def test_history_of_a_cluster_is_in_one_store(nodes: Nodes, store: Path, tmp_path: Path) -> None:
    """1. Every node uploads the segments of its shards, once. 2. Any node reads them. 3. A node
    is killed: the others go on, and it goes on when it is back. 4. A scrub finds nothing to do.
    5. Everything comes back from the store alone, with the groups' offsets."""
    _create(nodes)
    _produce(nodes, 0, 600)
    _upload_all(nodes, through=1)
    status = _status(nodes, 3)
    assert status["tiered_segments"] == len(_segments(store)) >= 3 * _SHARDS
    shards = {parse(str(each.relative_to(store))).shard for each in _segments(store)}  # type: ignore[union-attr]
    assert len(shards) == _SHARDS

    for number in nodes.processes:
        assert _numbers(nodes, number, f"readers-{number}", 600) == list(range(600))
    read = _firn("read", "history", "--key", "key-77", "--json", "--node", nodes[3].admin_url)
    assert json.loads(read)["value"].split()[0] == "77"

    leaders = nodes.leaders(2, "history")
    nodes[1].kill()
    nodes.wait_registered(2, 3)
    _produce(nodes, 600, 120, {shard for shard, node in leaders.items() if node != 1})
    _upload_all(nodes, through=2)
    nodes[1].start()
    nodes.wait_registered()
    _produce(nodes, 720, 120)
    _upload_all(nodes, through=1)
    assert _numbers(nodes, 3, "all", 840) == list(range(840))

    report = json.loads(_firn("tier", "scrub", "--json", "--node", nodes[2].admin_url))
    assert (report["orphan_count"], report["missing"]) == (0, [])
    assert report["segment_count"] == len(_segments(store))

    wait_until(lambda: _groups_in(store) >= _READERS, "all groups are in the store")
    nodes.close()
    recovered = tmp_path / "recovered"
    _firn("recover", "--from", store.as_uri(), "--data", str(recovered))
    with firnmq.open(recovered, tiering=store.as_uri()) as opened:
        topic = opened.topic("history")
        pages = [topic.read(0, shard=shard, max_records=2000) for shard in range(_SHARDS)]
        numbers = sorted(int(record.value) for page in pages for record in page)
        assert numbers == list(range(840))
    with closing(LocalStore(recovered, background=False)) as local:
        ends = {shard: each.offset for shard, each in local.offsets.committed("all").items()}
    assert len(ends) == _SHARDS
    assert sum(ends.values()) == 840


def _producer_batch(producer_id: int, first: int, count: int) -> bytearray:
    records = [
        NewRecord(value=b"%d" % n, key=b"key %d" % (n % 5), tags=("t",))
        for n in range(first, first + count)
    ]
    return encode(records, now_ms=1, producer_id=producer_id, producer_epoch=0, base_sequence=first)


def test_segments_that_other_nodes_hold_are_uploaded(tmp_path: Path, store: Path) -> None:
    """1. A shard moves; its new leader uploads what the earlier one holds, indexes and producers
    included. 2. Local retention drops it there. 3. A look-up by key, tag and offset finds it in the
    store, and a recovery has the producers."""
    tiering = TieringConfig(url=store.as_uri())
    with closing(Stores(tmp_path, tiering=tiering)) as stores:
        stores.create(options={"tiering": "on", "local.retention.ms": 0, "index.tag": "true"})
        shard = stores.shard()
        first = stores.leader(shard)
        other = 3 - first
        engine = stores[first].engines["EngineSegment"]
        run_blocking(append_batch(engine, shard, _producer_batch(7, 0, 20)))
        stores.move(1, shard, other)
        run_blocking(stores.driver(1).delete_key(shard, b"key 3"))
        directory = tmp_path / f"node{first}" / "segments" / shard
        assert len(list(directory.glob("*.log"))) == 1
        mover = stores[other].mover
        mover.request_upload()
        mover.work()
        stores.catch_up()
        mover.work()
        stores.catch_up()
        status = mover.status()
        assert (status.tiered_segments, status.local_segments) == (1, 0), status
        assert stores[first].mover.status().tiered_segments == 0
        follower = stores[first].member.service._follower  # type: ignore[union-attr]
        assert follower.wait(stores[first].cache.revision, WAIT_S)
        assert list(directory.glob("*.log")) == []
        live = [n for n in range(20) if n % 5 != 3]
        for number in (1, 2):
            assert stores.values(number, shard) == [b"%d" % n for n in live]
            page = run_blocking(stores.driver(number).read_by_key(shard, b"key 2"))
            assert [record.offset for record in page.records()] == [17]
            page = run_blocking(
                stores.driver(number).read_by_tag(shard, b"t", 0, max_records=100, max_bytes=2**20)
            )
            assert [record.offset for record in page.records()] == live
    recovered = tmp_path / "recovered"
    recover_directory(recovered, tiering)
    with closing(LocalStore(recovered, background=False, tiering=tiering)) as local:
        engine = local.engines["EngineSegment"]
        assert [each.producer_id for each in engine.producers(shard)] == [7]
        again = run_blocking(append_batch(engine, shard, _producer_batch(7, 0, 20)))
        assert again.base_offset == 0, "what the producer sends again is not stored again"


def test_a_deleted_topic_leaves_nothing_in_the_store(nodes: Nodes, store: Path) -> None:
    """Segments of shards of all nodes, and every manifest; and a topic of the same name is another
    one."""
    _create(nodes)
    _produce(nodes, 0, 300)
    _upload_all(nodes, through=2)
    assert _segments(store)
    _firn("topic", "delete", "history", "--yes", "--node", nodes[3].admin_url)
    wait_until(lambda: not _segments(store), "the objects are removed")
    wait_until(lambda: not list((store / "manifests").rglob("*.mf")), "and the manifests")
    _create(nodes)
    _produce(nodes, 0, 60)
    _upload_all(nodes, through=1)
    assert _numbers(nodes, 1, "later", 60) == list(range(60))
