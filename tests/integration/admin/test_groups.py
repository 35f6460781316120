"""Groups through HTTP and the command line: members, lag, moving offsets, deletion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.admin.serving import Served


@pytest.fixture
def filled(node: Served, topic: str) -> str:
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(20):
        producer.produce(topic, b"v", partition=number % 2, timestamp=1000 + number)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture
def member(node: Served, filled: str) -> Iterator[Consumer]:
    """A consumer that has joined, read something and committed it."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": f"live-{filled}",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([filled])
    while not consumer.consume(1, 1):
        pass
    consumer.commit(
        offsets=[TopicPartition(filled, 0, 4), TopicPartition(filled, 1, 10)], asynchronous=False
    )
    yield consumer
    consumer.close()


def test_a_live_group_shows_members_and_lag_and_cannot_be_moved(
    node: Served, filled: str, member: Consumer
) -> None:
    group = f"live-{filled}"
    found = node.get(f"/v1/groups/{group}")
    assert found["state"] == "Stable"
    assert [each["client_id"] for each in found["members"]] == ["reader"]
    assert found["leader"] == found["members"][0]["member_id"]
    assert [(row["shard"], row["committed_offset"], row["lag"]) for row in found["offsets"]] == [
        (0, 4, 6),
        (1, 10, 0),
    ]
    assert {row["member_id"] for row in found["offsets"]} == {found["leader"]}
    for body in ({"to": "earliest"}, {"to": "earliest", "dry_run": True}):
        refused = node.call("POST", f"/v1/groups/{group}/offsets", {"topic": filled, **body})
        assert (refused.status, refused.document["error"]) == (409, "GroupInUse")
    assert node.call("DELETE", f"/v1/groups/{group}").status == 409
    assert node.get(f"/v1/groups/{group}")["offsets"] == found["offsets"]


def test_moving_and_deleting_an_unused_group(node: Served, filled: str, run, documents) -> None:
    group = f"a/b {filled}"

    def move(*args: str) -> list[tuple[int, int | None, int]]:
        moved = documents("group", "reset-offsets", group, filled, *args)
        return [(row["shard"], row["before"], row["after"]) for row in moved]

    assert move("--to-latest", "--dry-run") == [(0, None, 10), (1, None, 10)]
    assert run("group", "describe", group).exit_code == 1
    assert move("--to-offset", "7", "--shard", "1") == [(1, None, 7)]
    assert move("--shift-by", "-2", "--shard", "1") == [(1, 7, 5)]
    assert move("--shift-by", "100", "--shard", "1") == [(1, 5, 10)]
    assert move("--to-time", "1010") == [(0, None, 5), (1, 10, 5)]
    assert move("--to-earliest") == [(0, 5, 0), (1, 5, 0)]
    (found,) = documents("group", "describe", group)
    assert [row["lag"] for row in found["offsets"]] == [10, 10]
    assert group in [each["group"] for each in documents("group", "list")]
    out_of_range = run("group", "reset-offsets", group, filled, "--to-offset", "11")
    assert out_of_range.exit_code == 1
    assert "outside" in out_of_range.stderr
    assert documents("group", "delete", group, "--yes") == [{"group": group, "deleted": True}]
    assert group not in [each["group"] for each in documents("group", "list")]


def test_a_moved_group_reads_on_from_there(node: Served, filled: str, documents) -> None:
    group = f"moved-{filled}"
    documents("group", "reset-offsets", group, filled, "--to-offset", "8")
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": group})
    consumer.subscribe([filled])
    read: list[tuple[int, int]] = []
    while len(read) < 4:
        read += [(each.partition(), each.offset()) for each in consumer.consume(4, 1)]
    consumer.close()
    assert sorted(read) == [(0, 8), (0, 9), (1, 8), (1, 9)]


@pytest.mark.parametrize(
    "body", [{"to": "nowhere"}, {"to": "offset"}, {"to": "latest", "value": 1}]
)
def test_a_reset_that_cannot_be_meant(node: Served, topic: str, body: dict[str, object]) -> None:
    answer = node.call("POST", "/v1/groups/g/offsets", {"topic": topic, **body})
    assert answer.status == 400


def test_tables_have_the_same_fields(node: Served, filled: str, run, documents) -> None:
    group = f"table-{filled}"
    moved = run("group", "reset-offsets", group, filled, "--to-earliest", "--dry-run")
    assert moved.stdout.splitlines()[0].split() == [
        *("TOPIC", "SHARD", "BEFORE", "AFTER", "START", "END")
    ]
    documents("group", "reset-offsets", group, filled, "--to-earliest")
    table = run("group", "describe", group).stdout
    assert "COMMITTED" in table
    assert f"group {group}, Empty, 0 members" in table
    assert group in run("group", "list").stdout
    assert run("group", "reset-offsets", group, filled).exit_code == 2
