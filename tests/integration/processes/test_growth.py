"""The directory of a single node becomes that of several processes, and never of fewer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import firnmq
from firnmq import NewRecord
from firnmq.brokers.security import UserStore
from firnmq.errors import FirnError, SeveralProcesses
from firnmq.server.local import DATABASE_DIRECTORY, LocalStore
from firnmq.server.processes.growth import make_directories
from tests.integration.cluster.nodes import WAIT_S, wait_until
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.processes.served import SETTINGS, Machine, firn

_SHARDS = 3


def _single(data: Path) -> None:
    """A node that has a topic of each kind, a group with offsets, a transaction and a user."""
    node = NodeProcess(data, SETTINGS)
    node.start()
    try:
        for name, kind in (("events", "segment"), ("rows", "rocksdb")):
            made = firn(
                *("topic", "create", name, "--shards", str(_SHARDS), "--data", str(data)),
                *("-o", f"storage.type={kind}"),
            )
            assert made.returncode == 0, made.stderr
        producer = Producer({"bootstrap.servers": node.address, "transactional.id": "mover"})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for number in range(30):
            producer.produce("events", str(number), partition=number % _SHARDS)
            producer.produce("rows", str(number), partition=number % _SHARDS)
        producer.commit_transaction(WAIT_S)
        consumer = _consumer(node.address)
        try:
            _consume(consumer, 10)
        finally:
            consumer.close()
    finally:
        node.terminate()
    store = LocalStore(data)
    try:
        UserStore(store.kv).put("ada", "secret")
    finally:
        store.close()


def _consumer(address: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )


def _consume(consumer: Consumer, count: int) -> set[int]:
    consumer.subscribe(["events"])
    found = set()
    while len(found) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        found.add(int(message.value()))
        consumer.commit(message, asynchronous=False)
    return found


def _check_all_is_there(machine: Machine) -> None:
    for topic in ("events", "rows"):
        lines = machine.firn("read", topic).splitlines()
        assert sorted(int(line.split()[-1]) for line in lines) == list(range(30))
    assert machine.get("/v1/users") == [{"user": "ada"}]
    consumer = _consumer(machine.kafka[1])  # It goes on where it was.
    try:
        assert len(_consume(consumer, 20)) == 20
    finally:
        consumer.close()
    producer = Producer({"bootstrap.servers": machine.kafka[1], "transactional.id": "mover"})
    producer.init_transactions(WAIT_S)  # The same id: its epoch goes on, too.
    producer.begin_transaction()
    producer.produce("events", "30", partition=0)
    producer.commit_transaction(WAIT_S)


def test_a_single_nodes_directory_grows(tmp_path: Path) -> None:
    """1. Everything of the node is process 1's. 2. New shards go to the others. 3. It grows again,
    and comes back after a stop. 4. Fewer processes are refused, with what to do."""
    data = tmp_path / "data"
    _single(data)
    files = sorted(each.name for each in (data / "segments").rglob("*.seg"))
    machine = Machine(data, 2)
    machine.start()
    try:
        machine.wait_ready()
        assert sorted(each.name for each in (data / "process1").rglob("*.seg")) == files
        _check_all_is_there(machine)
        leaders = {each["node"]: each["leaders"] for each in machine.get("/v1/cluster")["nodes"]}
        assert leaders == {1: 2 * _SHARDS, 2: 0}
        machine.firn("topic", "create", "more", "--shards", "4")
        leaders = {each["node"]: each["leaders"] for each in machine.get("/v1/cluster")["nodes"]}
        assert leaders == {1: 2 * _SHARDS, 2: 4}
    finally:
        machine.close()
    machine.count = 3
    machine.start()
    try:
        machine.wait_ready()
        assert len(machine.firn("read", "events").splitlines()) == 31
    finally:
        machine.close()
    for count in ("1", "2"):
        refused = firn("serve", "--data", str(data), "--processes", count, "--port", "0")
        assert refused.returncode == 2
        assert f"{data} has 3" in refused.stderr
        assert "--processes 3" in refused.stderr
    opened = firn("read", "events", "--data", str(data))
    assert opened.returncode == 1
    assert "serve it with --processes 3" in opened.stderr
    with pytest.raises(SeveralProcesses):
        firnmq.open(data)


def test_shared_files_and_history_in_a_store_grow_too(tmp_path: Path) -> None:
    """Shards that share files, and segments that are only in the object store, which the processes
    go on to own: they upload to it under the same claim."""
    data, store = tmp_path / "data", tmp_path / "objects"
    shared = {"segment.layout": "shared-file"}
    tiered = {"tiering": "on", "local.retention.ms": 0}
    with firnmq.open(data, tiering=store.as_uri()) as opened:
        for name, options in (("many", shared), ("old", tiered)):
            topic = opened.create_topic(name, shards=2, options=options)
            for shard in (0, 1):
                topic.append([f"{name} {shard}"], shard=shard)
        topic.roll()
        opened.upload()
        wait_until(lambda: not topic.status().segments[0].is_local, "it is only in the store")
    settings = {"FIRN_TIERING_URL": store.as_uri(), "FIRN_TIERING_INTERVAL_MS": "50"}
    machine = Machine(data, 2, settings)
    machine.start()
    try:
        machine.wait_ready()
        for name in ("many", "old"):
            values = [line.split("  ")[-1] for line in machine.firn("read", name).splitlines()]
            assert sorted(values) == [f"{name} 0", f"{name} 1"]
        options = [part for name, value in tiered.items() for part in ("-o", f"{name}={value}")]
        machine.firn("topic", "create", "new", "--shards", "4", *options)
        machine.firn("produce", "new", "later")
        machine.firn("tier", "upload", "--roll")
        wait_until(lambda: machine.get("/v1/tier")["waiting_segments"] == 0, "all is uploaded")
        status = machine.get("/v1/tier")
        assert (status["state"], status["tiered_segments"]) == ("ok", 3)
        assert machine.firn("read", "new").split()[-1] == "later"
    finally:
        machine.close()


@pytest.mark.parametrize("moved", [0, 1])
def test_growth_that_a_crash_interrupted_goes_on(tmp_path: Path, moved: int) -> None:
    """The crash came before the metadata changed, or after it and before all was renamed."""
    data = tmp_path / "data"
    _single(data)
    make_directories(data, 2)
    if moved:
        whole = Machine(data, 2)
        whole.start()
        whole.close()
        shutil.move(data / "process1" / "segments", data / "segments")
        (data / "process1" / DATABASE_DIRECTORY).rename(data / DATABASE_DIRECTORY)
    with pytest.raises(SeveralProcesses):
        LocalStore(data)
    machine = Machine(data, 2)
    machine.start()
    try:
        machine.wait_ready()
        _check_all_is_there(machine)
    finally:
        machine.close()


def test_a_directory_with_another_number_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with firnmq.open(data) as store:
        store.create_topic("t").append([NewRecord(value=b"v")])
    refused = firn(
        *("serve", "--data", str(data), "--processes", "2", "--port", "0", "--node-id", "7")
    )
    assert refused.returncode == 2
    assert "is node 1's" in refused.stderr
    with firnmq.open(data) as store:  # Nothing was changed.
        assert store.topic("t") is not None


def test_the_metadata_of_a_cluster_is_not_opened_alone(tmp_path: Path) -> None:
    """Even if every process's directory is lost: shards would be numbered anew."""
    machine = Machine(tmp_path / "data", 2)
    machine.start()
    machine.close()
    for number in (1, 2):
        shutil.rmtree(tmp_path / "data" / f"process{number}")
    with pytest.raises(FirnError, match="cluster"):
        LocalStore(tmp_path / "data")
