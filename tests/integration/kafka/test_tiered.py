"""Topics that are mostly in an object store, seen by clients that know nothing of it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.integration.kafka.clients import Client
from tests.integration.kafka.conftest import MakeTopic, running
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import BASE_MS, Row
from tests.integration.kafka_transactions.reading import read_all

ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")
PATIENCE_S = 60
TIMEOUT_S = 60
COUNT = 60


@pytest.fixture(scope="module")
def tier_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that copies and drops whatever it may."""
    path = tmp_path_factory.mktemp("tier")
    often = {
        "FIRN_HOUSEKEEPING_MS": "50",
        "FIRN_TIERING_URL": f"file://{path / 'objects'}",
        "FIRN_TIERING_INTERVAL_MS": "50",
    }
    yield from running(NodeProcess(path / "data", often))


@pytest.fixture(params=ENGINES)
def tiered(request: pytest.FixtureRequest, tier_node: NodeProcess, make_topic: MakeTopic) -> str:
    return make_topic(
        tier_node,
        storage_type=request.param,
        memory_overflow="spill",
        tiering="on",
        local_retention_bytes=0,
        segment_bytes=1500,
    )


def segments(node: NodeProcess, topic: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(
        f"{node.admin_url}/v1/topics/{topic}/segments", timeout=TIMEOUT_S
    ) as answer:
        found = json.load(answer)
    return found if isinstance(found, list) else found["segments"]


def wait_until_cold(node: NodeProcess, topic: str) -> int:
    """Returns once all but the active segment are only in the store; how many those are."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = segments(node, topic)
        local = [row["state"] for row in rows if row["is_local"]]
        if len(rows) > 1 and local == ["active"]:
            return len(rows) - 1
        assert time.monotonic() < deadline, (rows, node.errors())
        time.sleep(0.05)


def written(client: Client, node: NodeProcess, topic: str) -> list[Row]:
    rows = [
        Row(key=b"key-%d" % number, value=b"%0100d" % number, timestamp_ms=BASE_MS + number)
        for number in range(COUNT)
    ]
    with client.writer(node.address) as writer:
        for at in range(0, COUNT, 5):
            writer.write(topic, rows[at : at + 5])
    return rows


def test_clients_read_from_the_store_to_the_tail(
    client: Client, tier_node: NodeProcess, tiered: str
) -> None:
    rows = written(client, tier_node, tiered)
    assert wait_until_cold(tier_node, tiered) >= 3
    seen = client.read_to_end(tier_node.address, tiered)
    assert [each.offset for each in seen] == list(range(COUNT))
    assert [each.row.value for each in seen] == [row.value for row in rows]
    assert client.bounds(tier_node.address, tiered) == (0, COUNT)
    for number in (0, 7, 33):
        assert client.offset_at(tier_node.address, tiered, BASE_MS + number) == number
    middle = client.read(tier_node.address, tiered, 3, start=20)
    assert [each.offset for each in middle] == [20, 21, 22]


def test_aborted_transactions_stay_unseen_in_the_store(tier_node: NodeProcess, tiered: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": tier_node.address, "transactional.id": f"tx-{tiered}"}
    )
    producer.init_transactions(TIMEOUT_S)
    wanted = []
    for number in range(8):
        producer.begin_transaction()
        value = f"{number:0400d}"
        producer.produce(tiered, value)
        producer.flush(TIMEOUT_S)
        if number % 2:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            wanted.append(value)
    wait_until_cold(tier_node, tiered)
    assert read_all(tier_node.address, tiered, committed=True) == wanted
    assert len(read_all(tier_node.address, tiered, committed=False)) == 8


def test_records_deleted_by_a_client_go_in_the_store_too(
    tier_node: NodeProcess, tiered: str
) -> None:
    with_confluent = confluent_kafka.Producer({"bootstrap.servers": tier_node.address})
    for number in range(20):
        with_confluent.produce(tiered, b"%0300d" % number)
        with_confluent.flush(TIMEOUT_S)
    before = wait_until_cold(tier_node, tiered)
    admin = AdminClient({"bootstrap.servers": tier_node.address})
    where = confluent_kafka.TopicPartition(tiered, 0, 10)
    admin.delete_records([where])[where].result(TIMEOUT_S)
    assert len(segments(tier_node, tiered)) - 1 < before
    values = read_all(tier_node.address, tiered)
    assert [int(value) for value in values] == list(range(10, 20))


def test_admin_clients_see_and_change_the_options(
    tier_node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(tier_node, tiering="on", local_retention_ms=1000)
    admin = AdminClient({"bootstrap.servers": tier_node.address})
    shown = _options(admin, topic)
    assert {name: shown[name] for name in shown if "tier" in name or "local" in name} == {
        "tiering": "on",
        "tiering.upload.delay.ms": "0",
        "local.retention.ms": "1000",
        "local.retention.bytes": "-2",
    }
    _alter(admin, topic, "local.retention.bytes", "5000")
    assert _options(admin, topic)["local.retention.bytes"] == "5000"
    with pytest.raises(confluent_kafka.KafkaException, match=r"cleanup\.policy=compact"):
        _alter(admin, topic, "cleanup.policy", "compact")
    with pytest.raises(confluent_kafka.KafkaException, match=r"local\.retention\.ms: is 1,000"):
        _alter(admin, topic, "retention.ms", "999", is_trial=True)
    with pytest.raises(confluent_kafka.KafkaException, match=r"local\.retention\.bytes: is 5,000"):
        _alter(admin, topic, "retention.bytes", "4999")
    assert _options(admin, topic)["retention.bytes"] == "-1"
    with pytest.raises(confluent_kafka.KafkaException, match=r"above retention\.ms"):
        make_topic(tier_node, local_retention_ms=1001, retention_ms=1000)
    _alter(admin, topic, "tiering", "off")
    _alter(admin, topic, "cleanup.policy", "compact")
    with pytest.raises(confluent_kafka.KafkaException, match=r"cleanup\.policy=compact"):
        make_topic(tier_node, tiering="on", cleanup_policy="compact,delete")


def test_tiering_stays_on_while_the_store_has_what_is_nowhere_else(
    tier_node: NodeProcess, tiered: str
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": tier_node.address})
    for number in range(10):
        producer.produce(tiered, b"%0300d" % number)
        producer.flush(TIMEOUT_S)
    wait_until_cold(tier_node, tiered)
    admin = AdminClient({"bootstrap.servers": tier_node.address})
    for is_trial in (True, False):
        with pytest.raises(confluent_kafka.KafkaException, match="in the object store alone"):
            _alter(admin, tiered, "tiering", "off", is_trial=is_trial)
    assert _options(admin, tiered)["tiering"] == "on"


def _options(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    shown = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    return {name: entry.value for name, entry in shown.items()}


def _alter(
    admin: AdminClient, topic: str, option: str, value: str, *, is_trial: bool = False
) -> None:
    entry = ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource], validate_only=is_trial)[resource].result(TIMEOUT_S)
