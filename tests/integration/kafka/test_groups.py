"""Groups whose members join, leave, crash and come back, with each client and with all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from confluent_kafka import ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.kafka.clients import CLIENTS, Client, Confluent
from tests.integration.kafka.conftest import MakeTopic, running
from tests.integration.kafka.members import Crew
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.kafka.rows import numbered

NewName = Callable[[], str]

TIMEOUT_S = 60
MISSED_SOON = ("--session-ms", "5000")
"""For a member whose end is to be noticed: as short as a busy machine allows."""


def write(node: NodeProcess, topic: str, prefix: str, partitions: int, count: int = 60) -> set[str]:
    """Writes rows and returns their values."""
    rows = numbered(count, prefix=prefix, partitions=partitions)
    with Confluent().writer(node.address) as writer:
        writer.write(topic, rows)
    return {(row.value or b"").decode() for row in rows}


def wait_committed(crew: Crew, count: int) -> None:
    """Returns when the group has committed so many records: members commit what they have told."""
    admin = AdminClient({"bootstrap.servers": crew.address})
    whole = confluent_kafka.ConsumerGroupTopicPartitions(crew.group)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        kept = admin.list_consumer_group_offsets([whole])[crew.group].result(TIMEOUT_S)
        committed = sum(max(each.offset, 0) for each in kept.topic_partitions)
        if committed == count:
            return
        assert time.monotonic() < deadline, f"{committed} of {count} were committed"
        time.sleep(0.05)


def test_members_join_leave_and_crash(
    client: Client, quick_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    node, topic = quick_node, make_topic(quick_node, partitions=6)
    with Crew(node.address, new_name(), topic) as crew:
        # 1. One member has everything, two and three share.
        first = crew.join(client.name)
        crew.wait_sizes(6, (first, 6))
        written = write(node, topic, "one", 6)
        crew.wait(lambda: written <= set(crew.values()))
        wait_committed(crew, len(written))
        second = crew.join(client.name, *MISSED_SOON)
        crew.wait_sizes(6, (first, 3), (second, 3))
        third = crew.join(client.name)
        crew.wait_sizes(6, (first, 2), (second, 2), (third, 2))
        written |= write(node, topic, "three", 6)
        crew.wait(lambda: written <= set(crew.values()))
        wait_committed(crew, len(written))
        assert second.records
        assert third.records
        # 2. One leaves in good order, one crashes; what they had goes to the one that stays.
        third.leave()
        crew.wait_sizes(6, (first, 3), (second, 3))
        second.crash()
        crew.wait_sizes(6, (first, 6))
        written |= write(node, topic, "last", 6)
        crew.wait(lambda: written <= set(crew.values()))
        wait_committed(crew, len(written))
        # 3. Each began where the one before had committed, so nothing was read twice.
        assert len(crew.values()) == len(written)


def test_static_member_comes_back_without_a_rebalance(
    client: Client, quick_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    node, topic = quick_node, make_topic(quick_node, partitions=4)
    with Crew(node.address, new_name(), topic) as crew:
        stays = crew.join(client.name, "--instance", "a")
        crew.wait_sizes(4, (stays, 4))
        returns = crew.join(client.name, "--instance", "b")
        crew.wait_sizes(4, (stays, 2), (returns, 2))
        had, seen = returns.assigned, len(stays.assignments)
        returns.crash()
        returned = crew.join(client.name, "--instance", "b")
        crew.wait(lambda: returned.assigned == had)
        written = write(node, topic, "v", 4)
        crew.wait(lambda: written <= set(crew.values()))
        assert len(stays.assignments) == seen


def test_all_clients_in_one_group(
    quick_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    node, topic = quick_node, make_topic(quick_node, partitions=6)
    with Crew(node.address, new_name(), topic) as crew:
        members = [crew.join(client.name) for client in CLIENTS]
        crew.wait_sizes(6, *((member, 2) for member in members))
        written = write(node, topic, "v", 6)
        crew.wait(lambda: written <= set(crew.values()))
        assert all(member.records for member in members)


def test_cooperative_rebalance(
    quick_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    node, topic = quick_node, make_topic(quick_node, partitions=6)
    with Crew(node.address, new_name(), topic) as crew:
        sticky = ("--strategy", "cooperative-sticky")
        first = crew.join("confluent", *sticky)
        crew.wait_sizes(6, (first, 6))
        second = crew.join("confluent", *sticky)
        crew.wait_sizes(6, (first, 3), (second, 3))
        second.leave()
        crew.wait_sizes(6, (first, 6))
        assert [] not in first.assignments[1:]


def test_default_node_forms_a_group_and_bounds_the_session(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(node, partitions=2)
    written = write(node, topic, "v", 2)
    with Crew(node.address, new_name(), topic) as crew:
        members = [crew.join(each.name) for each in CLIENTS[:2]]
        crew.wait_sizes(2, *((member, 1) for member in members))
        crew.wait(lambda: written <= set(crew.values()))
    errors: list[confluent_kafka.KafkaError] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": new_name(),
            "session.timeout.ms": 500,
            "heartbeat.interval.ms": 100,
            "error_cb": errors.append,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while not errors and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is not None:
            errors.append(message.error())
    consumer.close()
    assert errors[0].code() == confluent_kafka.KafkaError.INVALID_SESSION_TIMEOUT


def confluent_consumer(node: NodeProcess, group: str, **config: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )


def test_commits_keep_their_metadata(
    quick_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic, group = make_topic(quick_node, partitions=3), new_name()
    write(quick_node, topic, "v", 3)
    consumer = confluent_consumer(quick_node, group)
    try:
        consumer.commit(
            offsets=[
                TopicPartition(topic, 0, 5, metadata="was hier gelesen wurde ❄"),
                TopicPartition(topic, 1, 7, metadata=""),
            ],
            asynchronous=False,
        )
        kept = consumer.committed(
            [TopicPartition(topic, index) for index in range(3)], timeout=TIMEOUT_S
        )
        assert [each.offset for each in kept[:2]] == [5, 7]
        assert kept[0].metadata == "was hier gelesen wurde ❄"
        assert kept[2].offset == confluent_kafka.OFFSET_INVALID
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            consumer.commit(
                offsets=[TopicPartition(topic, 0, 6, metadata="x" * 5000)], asynchronous=False
            )
        code = refused.value.args[0].code()
        assert code == confluent_kafka.KafkaError.OFFSET_METADATA_TOO_LARGE
    finally:
        consumer.close()


def test_a_group_is_listed_described_reset_and_deleted(
    quick_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    node, group = quick_node, new_name()
    topic = make_topic(node, partitions=2)
    written = write(node, topic, "v", 2)
    admin = AdminClient({"bootstrap.servers": node.address})
    with Crew(node.address, group, topic) as crew:
        # 1. While it has a member it can be looked at but not taken away.
        member = crew.join("confluent", "--instance", "the-one", *MISSED_SOON)
        crew.wait_sizes(2, (member, 2))
        crew.wait(lambda: written <= set(crew.values()))
        found = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert found.state is ConsumerGroupState.STABLE
        assert found.partition_assignor == "range"
        (described,) = found.members
        assert described.group_instance_id == "the-one"
        assert len(described.assignment.topic_partitions) == 2
        listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(TIMEOUT_S)
        assert group in [each.group_id for each in listed.valid]
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
        assert refused.value.args[0].code() == confluent_kafka.KafkaError.NON_EMPTY_GROUP
    # 2. A static member leaves no group by ending; it is gone with its session.
    _delete_when_empty(admin, group)
    gone = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    assert gone.state is ConsumerGroupState.DEAD
    # 3. A group of offsets only: altered, listed, partly deleted, deleted.
    offsets = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)]
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(group, offsets)
    admin.alter_consumer_group_offsets([wanted])[group].result(TIMEOUT_S)
    whole = confluent_kafka.ConsumerGroupTopicPartitions(group)
    kept = admin.list_consumer_group_offsets([whole])[group].result(TIMEOUT_S).topic_partitions
    assert sorted((each.partition, each.offset) for each in kept) == [(0, 3), (1, 4)]
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException) as unknown:
        admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    assert unknown.value.args[0].code() == confluent_kafka.KafkaError.GROUP_ID_NOT_FOUND


def _delete_when_empty(admin: AdminClient, group: str) -> None:
    """Asks again until the session of the last member has passed."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        if found.state is ConsumerGroupState.EMPTY:
            break
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
def test_reset_policy(
    policy: str, quick_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    """An offset beyond the end falls back to what the consumer asked for."""
    topic, group = make_topic(quick_node), new_name()
    write(quick_node, topic, "v", 1, count=10)
    consumer = confluent_consumer(
        quick_node, group, auto_offset_reset=policy, enable_partition_eof=True
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 500)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if policy == "earliest":
            assert message.offset() == 0
        elif policy == "latest":
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            assert message.offset() == 10
        else:
            assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
    finally:
        consumer.close()


@pytest.fixture
def forgetful_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """Offsets expire two seconds after the last member of their group has left."""
    settings = {
        **QUICK,
        "FIRN_GROUPS_OFFSETS_RETENTION_MS": "2000",
        "FIRN_GROUPS_OFFSETS_RETENTION_CHECK_MS": "100",
    }
    yield from running(NodeProcess(tmp_path / "data", settings))


def test_offsets_expire_once_their_group_is_empty(
    forgetful_node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(forgetful_node)
    address = {"bootstrap.servers": forgetful_node.address}
    admin = AdminClient(address)
    consumer = confluent_kafka.Consumer(
        {**address, "group.id": "g", "enable.auto.commit": False, "session.timeout.ms": 6000}
    )
    consumer.subscribe([topic])
    position = confluent_kafka.TopicPartition(topic, 0, 7)
    deadline_s = time.monotonic() + 60
    while not consumer.assignment() and time.monotonic() < deadline_s:
        consumer.poll(0.1)
    consumer.commit(offsets=[position], asynchronous=False)
    in_use_until_s = time.monotonic() + 4
    while time.monotonic() < in_use_until_s:
        consumer.poll(0.1)
    (found,) = consumer.committed([position], timeout=60)
    assert found.offset == 7, "a group in use keeps its offsets"
    consumer.close()

    def groups() -> set[str]:
        return {each.group_id for each in admin.list_consumer_groups().result(60).valid}

    while "g" in groups() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert "g" not in groups()
    with closing(
        kafka.KafkaConsumer(bootstrap_servers=forgetful_node.address, group_id="g")
    ) as other:
        assert other.committed(kafka.TopicPartition(topic, 0)) is None
