"""Groups whose coordinator assigns the partitions, with real clients as processes of their own."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.members import Crew
from tests.integration.kafka.nodes import NodeProcess

pytestmark = pytest.mark.slow

NEW = ("--protocol", "consumer", "--strategy", "uniform")
NewName = Callable[[], str]


def write(
    node: NodeProcess, topic: str, partitions: int, count: int, prefix: str = "v"
) -> set[str]:
    producer = Producer({"bootstrap.servers": node.address})
    values = {f"{prefix}{number}" for number in range(count)}
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(60) == 0
    return values


def read_all(crew: Crew, values: set[str]) -> None:
    crew.wait(lambda: set(crew.values()) >= values)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_share_and_go(
    assignor: str, brisk_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic, name = make_topic(brisk_node, partitions=6), new_name()
    options = ("--protocol", "consumer", "--strategy", assignor)
    values = write(brisk_node, topic, 6, 60)
    with Crew(brisk_node.address, name, topic) as crew:
        # 1. One reads everything, then three share.
        one = crew.join("confluent", *options)
        crew.wait_sizes(6, (one, 6))
        two, three = crew.join("confluent", *options), crew.join("confluent", *options)
        crew.wait_sizes(6, (one, 2), (two, 2), (three, 2))
        read_all(crew, values)
        # 2. One leaves, one is killed.
        two.leave()
        crew.wait_sizes(6, (one, 3), (three, 3))
        three.crash()
        crew.wait_sizes(6, (one, 6))
        values |= write(brisk_node, topic, 6, 60, "w")
        read_all(crew, values)
        # 3. What operators see.
        admin = AdminClient({"bootstrap.servers": brisk_node.address})
        found = admin.describe_consumer_groups([name])[name].result(60)
        assert (found.type, found.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
        assert found.partition_assignor == assignor
        (member,) = found.members
        assert len(member.assignment.topic_partitions) == 6
        listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(60)
        assert name in {each.group_id for each in listed.valid}
        with urllib.request.urlopen(f"{brisk_node.admin_url}/v1/groups/{name}") as answer:
            shown = json.load(answer)
        assert (shown["state"], shown["member_count"]) == ("Stable", 1)
        assert {row["member_id"] for row in shown["offsets"]} == {member.member_id}
        one.leave()
    # 4. Each record was committed, and the group can be deleted.
    with Crew(brisk_node.address, name, topic) as crew:
        again = crew.join("confluent", *options)
        crew.wait_sizes(6, (again, 6))
        values = write(brisk_node, topic, 6, 6, "x")
        read_all(crew, values)
        assert set(crew.values()) == values
        again.leave()
    admin.delete_consumer_groups([name])[name].result(60)


def test_a_restarted_node_goes_on_with_its_members(
    own_brisk_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    node = own_brisk_node
    topic = make_topic(node, partitions=4)
    values = write(node, topic, 4, 40)
    with Crew(node.address, new_name(), topic) as crew:
        members = [crew.join("confluent", *NEW) for _ in range(2)]
        crew.wait_sizes(4, *((each, 2) for each in members))
        read_all(crew, values)
        seen = [list(each.assignments) for each in members]
        for end in (node.kill, node.terminate):
            end()
            node.start()
            values |= write(node, topic, 4, 40, f"after {end.__name__} ")
            read_all(crew, values)
        # They were members all the time, and no partition went from one to the other.
        assert [each.assignments for each in members] == seen


def test_a_static_member_restarts_without_a_rebalance(
    brisk_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(brisk_node, partitions=4)
    with Crew(brisk_node.address, new_name(), topic) as crew:
        one = crew.join("confluent", *NEW, "--instance", "one")
        two = crew.join("confluent", *NEW, "--instance", "two")
        crew.wait_sizes(4, (one, 2), (two, 2))
        had, seen = one.assigned, list(two.assignments)
        one.leave()
        back = crew.join("confluent", *NEW, "--instance", "one")
        crew.wait_sizes(4, (back, 2), (two, 2))
        assert back.assigned == had
        assert two.assignments == seen


def test_new_partitions_and_topics_are_found(
    brisk_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(brisk_node, partitions=2)
    with Crew(brisk_node.address, new_name(), f"^{topic}.*") as crew:
        member = crew.join("confluent", *NEW)
        crew.wait_sizes(2, (member, 2))
        admin = AdminClient({"bootstrap.servers": brisk_node.address})
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(60)
        crew.wait_sizes(4, (member, 4))
        values = write(brisk_node, topic, 4, 8)
        read_all(crew, values)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_fleet_goes_over_one_by_one_and_back(
    strategy: str, brisk_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(brisk_node, partitions=6)
    old = ("--strategy", strategy)
    admin = AdminClient({"bootstrap.servers": brisk_node.address})
    values = write(brisk_node, topic, 6, 60)
    with Crew(brisk_node.address, name := new_name(), topic) as crew:
        fleet = [crew.join("confluent", *old) for _ in range(2)]
        crew.wait_sizes(6, *((each, 3) for each in fleet))
        read_all(crew, values)
        for options in (NEW, old):
            for place in range(2):
                fleet[place].leave()
                fleet[place] = crew.join("confluent", *options)
                crew.wait_sizes(6, *((each, 3) for each in fleet))
            kind = ConsumerGroupType.CONSUMER if options is NEW else ConsumerGroupType.CLASSIC
            found = admin.describe_consumer_groups([name])[name].result(60)
            assert found.type is kind
            values |= write(brisk_node, topic, 6, 60, f"{kind.name} ")
            read_all(crew, values)
        for each in fleet:
            each.leave()
    # Nothing was read twice: partitions moved only after they were committed and given up.
    assert len(crew.values()) == len(values)


def test_a_hundred_members_join_and_share(
    own_brisk_node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    node = own_brisk_node
    topic = make_topic(node, partitions=200)
    config = {
        "bootstrap.servers": node.address,
        "group.id": new_name(),
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
    }
    members = [Consumer(config) for _ in range(100)]
    try:
        for member in members:
            member.subscribe([topic])
        deadline = time.monotonic() + 120
        while True:
            for member in members:
                member.poll(0)
            held = [sorted(each.partition for each in member.assignment()) for member in members]
            if all(len(each) == 2 for each in held):
                break
            assert time.monotonic() < deadline, held
        assert sorted(index for each in held for index in each) == list(range(200))
    finally:
        for member in members:
            member.close()
