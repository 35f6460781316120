"""Apache Kafka's own command-line tools, where Java and the archives are at hand.

The archives are those that `make bench` has fetched, or the folder that FIRN_KAFKA_JARS names;
nothing is fetched here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.kafka_peer import CACHE_ROOT, KAFKA_VERSION
from tests.integration.kafka.clients import Confluent
from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import numbered

JAVA = shutil.which("java")
JARS = Path(os.environ.get("FIRN_KAFKA_JARS") or CACHE_ROOT / KAFKA_VERSION)
TIMEOUT_S = 180
_TOOLS = "org.apache.kafka.tools"
TOPICS = f"{_TOOLS}.TopicCommand"
GROUPS = f"{_TOOLS}.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = f"{_TOOLS}.GetOffsetShell"
PRODUCE = f"{_TOOLS}.ConsoleProducer"
CONSUME = f"{_TOOLS}.consumer.ConsoleConsumer"
PERFORMANCE = f"{_TOOLS}.ProducerPerformance"
LOG_DIRS = f"{_TOOLS}.LogDirsCommand"
TRANSACTIONS = f"{_TOOLS}.TransactionsCommand"
ELECTION = f"{_TOOLS}.LeaderElectionCommand"
REASSIGNMENT = f"{_TOOLS}.reassign.ReassignPartitionsCommand"
QUORUM = f"{_TOOLS}.MetadataQuorumCommand"
DELETE_RECORDS = f"{_TOOLS}.DeleteRecordsCommand"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(JAVA is None, reason="Java is not installed"),
    pytest.mark.skipif(not any(JARS.glob("kafka-tools-*.jar")), reason="no archives of Kafka"),
]

NewName = Callable[[], str]


def tool(node: NodeProcess, name: str, *options: str, stdin: str = "", fails: bool = False) -> str:
    """What a tool says; one that fails says why on its standard error too."""
    assert JAVA is not None
    done = subprocess.run(
        [
            *(JAVA, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-cp", f"{JARS}/*", name, "--bootstrap-server", node.address, *options),
        ],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    output = done.stdout + done.stderr
    assert (done.returncode != 0) is fails, output
    return output if fails else done.stdout


def ends(node: NodeProcess, topic: str, *options: str) -> dict[int, int]:
    lines = tool(node, OFFSETS, "--topic", topic, *options).splitlines()
    return {int(line.split(":")[1]): int(line.split(":")[2]) for line in lines}


def test_topics_are_made_shown_altered_and_deleted(node: NodeProcess, new_name: NewName) -> None:
    name = new_name()
    one = ("--topic", name)
    made = ("--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=100000")
    assert "Created topic" in tool(node, TOPICS, "--create", *one, *made)
    assert name in tool(node, TOPICS, "--list").splitlines()
    tool(node, TOPICS, "--alter", *one, "--partitions", "3")
    shown = tool(node, TOPICS, "--describe", *one)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: retention.ms=100", shown)
    assert shown.count("Leader: 1") == 3
    assert "TopicExistsException" in tool(node, TOPICS, "--create", *one, *made, fails=True)
    tool(node, TOPICS, "--delete", *one)
    assert name not in tool(node, TOPICS, "--list").splitlines()
    assert "does not exist" in tool(node, TOPICS, "--describe", *one, fails=True)


def test_configs_are_shown_altered_and_refused(node: NodeProcess, make_topic: MakeTopic) -> None:
    topic = ("--entity-type", "topics", "--entity-name", make_topic(node))
    changes = "segment.bytes=2000000,retention.bytes=5000000,max.message.bytes=2000000"
    tool(node, CONFIGS, "--alter", *topic, "--add-config", changes)
    tool(node, CONFIGS, "--alter", *topic, "--delete-config", "retention.bytes")
    shown = tool(node, CONFIGS, "--describe", *topic)
    assert "segment.bytes=2000000" in shown
    assert "max.message.bytes=2000000" in shown
    assert "retention.bytes" not in shown
    everything = tool(node, CONFIGS, "--describe", "--all", *topic)
    assert "retention.bytes=-1" in everything
    assert "storage.type=EngineSegment" in everything
    bad = ("--add-config", "cleanup.policy=shred")
    assert "shred" in tool(node, CONFIGS, "--alter", *topic, *bad, fails=True)
    broker = ("--entity-type", "brokers", "--entity-name", "1", "--all")
    assert "auto.create.topics.enable=true" in tool(node, CONFIGS, "--describe", *broker)


def test_records_go_round_and_a_group_keeps_its_place(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic, group = make_topic(node, partitions=2), new_name()
    lines = [f"k{number}\tvalue {number}" for number in range(100)]
    keyed = ("--reader-property", "parse.key=true")
    tool(node, PRODUCE, "--topic", topic, *keyed, stdin="\n".join(lines) + "\n")
    # 1. A group reads some, then the rest.
    reading = ("--topic", topic, "--group", group, "--from-beginning", "--timeout-ms", "60000")
    shown = ("--formatter-property", "print.key=true")
    read: list[str] = []
    for count in (30, 70):
        read += tool(node, CONSUME, *reading, *shown, "--max-messages", str(count)).splitlines()
    assert sorted(read) == sorted(lines)
    # 2. It is listed, described and set back.
    assert group in tool(node, GROUPS, "--list").splitlines()
    described = tool(node, GROUPS, "--describe", "--group", group)
    places = re.findall(rf"{re.escape(topic)}\s+(\d+)\s+(\d+)\s+(\d+)\s+0\s", described)
    assert sorted((int(index), int(at)) for index, at, _ in places) == sorted(
        ends(node, topic).items()
    )
    assert "Empty" in tool(node, GROUPS, "--describe", "--group", group, "--state")
    back = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
    assert len(re.findall(r"\s0\s*$", tool(node, GROUPS, *back, "--dry-run"), re.MULTILINE)) == 2
    tool(node, GROUPS, *back, "--execute")
    again = tool(node, CONSUME, *reading, *shown, "--max-messages", "100")
    assert sorted(again.splitlines()) == sorted(lines)
    # 3. And deleted.
    tool(node, GROUPS, "--delete", "--group", group)
    assert group not in tool(node, GROUPS, "--list").splitlines()


def test_consumers_whose_partitions_the_node_assigns(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic, group = make_topic(node, partitions=2), new_name()
    values = [f"value {number}" for number in range(100)]
    tool(node, PRODUCE, "--topic", topic, stdin="\n".join(values) + "\n")
    reading = ("--topic", topic, "--group", group, "--from-beginning", "--timeout-ms", "60000")
    new = ("--command-property", "group.protocol=consumer")
    old = ("--command-property", "group.protocol=classic")
    read: list[str] = []
    # The group goes over with its clients, and its offsets stay.
    for protocol in (new, old, new, new):
        read += tool(node, CONSUME, *reading, *protocol, "--max-messages", "25").splitlines()
    assert sorted(read) == sorted(values)
    listed = tool(node, GROUPS, "--list", "--type", "consumer", "--state")
    assert re.search(rf"{re.escape(group)}\s+Consumer\s+Empty", listed)
    assert "uniform" in tool(node, GROUPS, "--describe", "--group", group, "--state")
    back = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    tool(node, GROUPS, *back)
    tool(node, GROUPS, "--delete", "--group", group)


def test_quotas_are_set_and_hold(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic, client_id = make_topic(node), new_name()
    entity = ("--entity-type", "clients", "--entity-name", client_id)
    limits = "producer_byte_rate=20000,consumer_byte_rate=30000"
    tool(node, CONFIGS, "--alter", *entity, "--add-config", limits)
    shown = tool(node, CONFIGS, "--describe", *entity)
    assert "producer_byte_rate=20000.0" in shown
    assert "consumer_byte_rate=30000.0" in shown
    # 60 kB at 20 kB/s after a burst of 40 kB: the client is told to wait.
    sizes = ("--num-records", "60", "--record-size", "1000", "--throughput", "-1")
    named = ("--command-property", f"client.id={client_id}", "--print-metrics")
    said = tool(node, PERFORMANCE, "--topic", topic, *sizes, *named)
    throttled = re.search(r"produce-throttle-time-max:\{client-id=[^}]*\}\s*: ([\d.]+)", said)
    assert throttled is not None
    assert float(throttled[1]) > 0
    tool(node, CONFIGS, "--alter", *entity, "--delete-config", "producer_byte_rate")
    assert "producer_byte_rate" not in tool(node, CONFIGS, "--describe", *entity)


def test_the_metadata_as_a_quorum(node: NodeProcess) -> None:
    assert re.search(r"LeaderId:\s+1", tool(node, QUORUM, "describe", "--status"))


def test_offsets_and_deleted_records(
    node: NodeProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(node)
    with Confluent().writer(node.address) as writer:
        writer.write(topic, numbered(20))
    where = tmp_path / "offsets.json"
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 5}], "version": 1}
    where.write_text(json.dumps(wanted))
    deleted = tool(node, DELETE_RECORDS, "--offset-json-file", str(where))
    assert "low_watermark: 5" in deleted
    assert ends(node, topic, "--time", "earliest") == {0: 5}
    assert ends(node, topic) == {0: 20}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_java_producer_with_each_codec(
    codec: str, node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node)
    sizes = ("--num-records", "5000", "--record-size", "200", "--throughput", "-1")
    option = ("--command-property", f"compression.type={codec}")
    said = tool(node, PERFORMANCE, "--topic", topic, *sizes, *option)
    assert "5000 records sent" in said
    assert Confluent().bounds(node.address, topic) == (0, 5000)
    seen = Confluent().read(node.address, topic, 5000)
    assert [each.offset for each in seen] == list(range(5000))
    assert {len(each.row.value or b"") for each in seen} == {200}


def test_transactions_of_the_java_producer(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic = make_topic(node)
    sizes = ("--num-records", "3000", "--record-size", "100", "--throughput", "3000")
    ending = ("--transactional-id", new_name(), "--transaction-duration-ms", "100")
    assert "3000 records sent" in tool(node, PERFORMANCE, "--topic", topic, *sizes, *ending)
    _, end = Confluent().bounds(node.address, topic)
    assert end > 3001, "more than one transaction ended"
    committed = ("--isolation-level", "read_committed", "--max-messages", "3000")
    read = tool(
        node,
        CONSUME,
        *("--topic", topic, "--from-beginning", "--timeout-ms", "60000", *committed),
    )
    assert len(read.splitlines()) == 3000


def test_directories_producers_and_transactions(
    node: NodeProcess, make_topic: MakeTopic, new_name: NewName
) -> None:
    topic, name = make_topic(node, partitions=2), new_name()
    sizes = ("--num-records", "300", "--record-size", "100", "--throughput", "-1")
    ending = ("--transactional-id", name, "--transaction-duration-ms", "100")
    tool(node, PERFORMANCE, "--topic", topic, *sizes, *ending)
    shown = tool(node, LOG_DIRS, "--describe", "--topic-list", topic).splitlines()[-1]
    (directory,) = json.loads(shown)["brokers"][0]["logDirs"]
    assert directory["error"] is None
    kept = {each["partition"]: each["size"] for each in directory["partitions"]}
    assert set(kept) == {f"{topic}-0", f"{topic}-1"}
    assert sum(kept.values()) > 300 * 100
    assert re.search(rf"{name}\s+\d+\s+\d+\s+CompleteCommit", tool(node, TRANSACTIONS, "list"))
    described = tool(node, TRANSACTIONS, "describe", "--transactional-id", name)
    assert "CompleteCommit" in described
    partition = ("--topic", topic, "--partition", "0")
    assert "CurrentTransactionStartOffset" in tool(
        node, TRANSACTIONS, "describe-producers", *partition
    )


def test_leaders_and_copies_are_where_they_should_be(
    node: NodeProcess, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(node)
    one = ("--topic", topic, "--partition", "0", "--election-type", "preferred")
    assert "already elected" in tool(node, ELECTION, *one)
    plan = tmp_path / "plan.json"
    wanted = {"topic": topic, "partition": 0, "replicas": [1]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    moving = ("--reassignment-json-file", str(plan))
    assert "Successfully started" in tool(node, REASSIGNMENT, *moving, "--execute")
    assert "is completed" in tool(node, REASSIGNMENT, *moving, "--verify")
    assert "No partition reassignments found" in tool(node, REASSIGNMENT, "--list")
    wanted["replicas"] = [1, 2]
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    tool(node, REASSIGNMENT, *moving, "--execute", fails=True)
