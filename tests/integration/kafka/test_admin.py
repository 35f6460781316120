"""Topics, options, records and the cluster through the clients' admin calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages import admin as admin_messages
from tests.integration.kafka import aio
from tests.integration.kafka.clients import Confluent
from tests.integration.kafka.conftest import MakeTopic, running
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import BASE_MS, numbered
from tests.integration.kafka.wire import Wire

NewName = Callable[[], str]
TIMEOUT_S = 60


@pytest.fixture
def admin(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.address})


def options_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return admin.describe_configs([resource])[resource].result(TIMEOUT_S)


def alter(admin: AdminClient, topic: str, **changes: object) -> None:
    """Sets some options; None goes back to the default."""
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            None if value is None else str(value),
            incremental_operation=(
                AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            ),
        )
        for name, value in changes.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def write(node: NodeProcess, topic: str, count: int) -> None:
    with Confluent().writer(node.address) as writer:
        writer.write(topic, numbered(count))


def test_topics_come_and_go(admin: AdminClient, node: NodeProcess, new_name: NewName) -> None:
    name = new_name()
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as again:
        admin.create_topics([NewTopic(name, 3, 1)])[name].result(TIMEOUT_S)
    assert again.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    wanted = confluent_kafka.TopicCollection([name])
    (described,) = admin.describe_topics(wanted).values()
    topic = described.result(TIMEOUT_S)
    assert [partition.id for partition in topic.partitions] == [0, 1, 2]
    assert all(partition.leader is not None for partition in topic.partitions)
    admin.create_partitions([NewPartitions(name, 5)])[name].result(TIMEOUT_S)
    assert len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions) == 5
    with pytest.raises(KafkaException) as fewer:
        admin.create_partitions([NewPartitions(name, 4)])[name].result(TIMEOUT_S)
    assert fewer.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    write(node, name, 10)
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics
    with pytest.raises(KafkaException) as gone:
        admin.delete_topics([name])[name].result(TIMEOUT_S)
    assert gone.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    # A topic of the same name begins anew.
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT_S)
    assert Confluent().bounds(node.address, name) == (0, 0)


@pytest.mark.parametrize(
    "partitions, replicas, config, code, words",
    [
        (1, 3, {}, KafkaError.INVALID_REPLICATION_FACTOR, "replication.factor 3"),
        (1, 1, {"cleanup.policy": "shred"}, KafkaError.INVALID_CONFIG, "cleanup.policy: must be"),
        (1, 1, {"min.cleanable.dirty.ratio": "2"}, KafkaError.INVALID_CONFIG, "must be 0 to 1"),
        (1, 1, {"delete.retention.ms": "-2"}, KafkaError.INVALID_CONFIG, "delete.retention.ms"),
        (
            1,
            1,
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"},
            KafkaError.INVALID_CONFIG,
            "must not be below min.compaction.lag.ms",
        ),
        (1, 1, {"storage.type": "Nowhere"}, KafkaError.INVALID_CONFIG, "storage.type"),
        (1, 1, {"no.such.option": "1"}, KafkaError.INVALID_CONFIG, "no.such.option"),
        (1, 1, {"segment.bytes": "a lot"}, KafkaError.INVALID_CONFIG, "must be a whole number"),
        (1, 1, {"max.message.bytes": "-1"}, KafkaError.INVALID_CONFIG, "allowed are"),
    ],
)
def test_wrong_topics_are_refused_by_name_and_reason(
    partitions: int,
    replicas: int,
    config: dict[str, str],
    code: int,
    words: str,
    admin: AdminClient,
    new_name: NewName,
) -> None:
    name = new_name()
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, partitions, replicas, config=config)])[name].result(
            TIMEOUT_S
        )
    assert refused.value.args[0].code() == code
    assert words in refused.value.args[0].str()
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_changes_of_different_options_at_once_are_all_kept(
    node: NodeProcess, make_topic: MakeTopic
) -> None:
    """Four clients change an option each, again and again, while a fifth adds partitions."""
    name = make_topic(node, 2, durability="os")
    options = ["retention.ms", "segment.bytes", "segment.ms", "max.message.bytes"]
    rounds, base = 10, 10_000_000
    admins = [AdminClient({"bootstrap.servers": node.address}) for _ in (*options, "partitions")]

    def change(option: str, admin: AdminClient) -> None:
        for turn in range(1, rounds + 1):
            alter(admin, name, **{option.replace(".", "_"): base + turn})
            assert options_of(admin, name)[option].value == str(base + turn)

    def grow(admin: AdminClient) -> None:
        for turn in range(1, rounds + 1):
            admin.create_partitions([NewPartitions(name, 2 + turn)])[name].result(TIMEOUT_S)

    with ThreadPoolExecutor(len(admins)) as threads:
        jobs = [threads.submit(grow, admins[-1])]
        jobs += [threads.submit(change, *each) for each in zip(options, admins, strict=False)]
        for job in jobs:
            job.result()
    shown = options_of(admins[0], name)
    assert {shown[option].value for option in options} == {str(base + rounds)}
    assert shown["durability"].value == "os"
    topic = admins[0].list_topics(name, timeout=TIMEOUT_S).topics[name]
    assert len(topic.partitions) == 2 + rounds


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[NodeProcess]:
    yield from running(NodeProcess(tmp_path / "data", {"FIRN_SHARD_COUNT_MAX": "30"}))


def test_no_more_partitions_than_the_node_may_have(small_node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": small_node.address})
    admin.create_topics([NewTopic("t", 20, 1)])["t"].result(TIMEOUT_S)
    for outcome in (
        admin.create_topics([NewTopic("u", 11, 1)])["u"],
        admin.create_topics([NewTopic("u", 11, 1)], validate_only=True)["u"],
        admin.create_partitions([NewPartitions("t", 31)])["t"],
        admin.create_topics([NewTopic("u", 100_000, 1)])["u"],
    ):
        with pytest.raises(KafkaException) as refused:
            outcome.result(TIMEOUT_S)
        assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
        assert "the 30 that this node may have" in refused.value.args[0].str()
        assert "shard_count_max in [store]" in refused.value.args[0].str()
    admin.create_topics([NewTopic("u", 10, 1)])["u"].result(TIMEOUT_S)
    consumer = kafka.KafkaConsumer(bootstrap_servers=small_node.address, group_id=None)
    try:
        assert not consumer.partitions_for_topic("made-by-asking")
    finally:
        consumer.close()
    assert set(admin.list_topics(timeout=TIMEOUT_S).topics) == {"t", "u"}


def test_a_wrong_name_is_refused(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("no/slash", 1, 1)])["no/slash"].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


def test_validate_only_makes_nothing(admin: AdminClient, new_name: NewName) -> None:
    name = new_name()
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(TIMEOUT_S)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_options_change_and_go_back(
    admin: AdminClient, node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node, retention_ms=3_600_000)
    before = options_of(admin, topic)
    assert before["retention.ms"].value == "3600000"
    assert not before["retention.ms"].is_default
    assert before["cleanup.policy"].value == "delete"
    assert before["segment.bytes"].is_default
    alter(admin, topic, segment_bytes=1_000_000, max_message_bytes=2_000_000)
    after = options_of(admin, topic)
    assert after["segment.bytes"].value == "1000000"
    assert after["max.message.bytes"].value == "2000000"
    assert after["retention.ms"].value == "3600000"
    alter(admin, topic, segment_bytes=None, retention_ms=-1)
    final = options_of(admin, topic)
    assert final["segment.bytes"].value == before["segment.bytes"].value
    assert final["retention.ms"].value == "-1"


def test_options_of_compaction_are_shown_with_their_defaults_and_can_change(
    admin: AdminClient, node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node, cleanup_policy="compact")
    before = options_of(admin, topic)
    assert before["cleanup.policy"].value == "compact"
    assert not before["cleanup.policy"].is_default
    shown = {
        "min.cleanable.dirty.ratio": "0.5",
        "delete.retention.ms": "86400000",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": str(2**63 - 1),
    }
    for name, value in shown.items():
        assert before[name].value == value
        assert before[name].is_default
    alter(admin, topic, cleanup_policy="delete,compact", min_cleanable_dirty_ratio=0.1)
    alter(admin, topic, max_compaction_lag_ms=2**63 - 1)
    after = options_of(admin, topic)
    assert after["cleanup.policy"].value == "compact,delete"
    assert after["min.cleanable.dirty.ratio"].value == "0.1"
    assert after["max.compaction.lag.ms"].value == str(2**63 - 1)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"storage_type": "EngineMemory"}, "storage.type"),
        ({"no_such_option": "1"}, "no.such.option"),
        ({"retention_ms": "soon"}, "retention.ms"),
        ({"cleanup_policy": "shred"}, "must be delete, compact, both"),
        ({"flush_messages": "0"}, "flush.messages: is 0, allowed are 1 to"),
        ({"expire_header": "best-before"}, "is fixed when a topic is made"),
        ({"max_message_bytes": "-12"}, "max.message.bytes: is -12, allowed are"),
    ],
)
def test_wrong_options_are_refused_by_name_and_reason(
    changes: dict[str, object],
    words: str,
    admin: AdminClient,
    node: NodeProcess,
    make_topic: MakeTopic,
) -> None:
    topic = make_topic(node)
    before = {name: entry.value for name, entry in options_of(admin, topic).items()}
    with pytest.raises(KafkaException) as refused:
        alter(admin, topic, **changes)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert words in refused.value.args[0].str()
    assert {name: entry.value for name, entry in options_of(admin, topic).items()} == before


def test_configs_that_tools_set_for_every_topic_are_kept(
    admin: AdminClient, node: NodeProcess, make_topic: MakeTopic
) -> None:
    blind = {
        "min_insync_replicas": "2",
        "unclean_leader_election_enable": "false",
        "flush_ms": "1000",
        "file_delete_delay_ms": "1",
        "cleanup_policy": "",
    }
    topic = make_topic(node, **blind)
    shown = options_of(admin, topic)
    for name, value in blind.items():
        assert shown[name.replace("_", ".")].value == value
    assert not shown["flush.ms"].is_default
    assert shown["unclean.leader.election.enable"].is_default
    alter(admin, topic, flush_ms=None, not_there=None, preallocate="true")
    after = options_of(admin, topic)
    assert (after["flush.ms"].value, after["flush.ms"].is_default) == (str(2**63 - 1), True)
    assert after["preallocate"].value == "true"
    assert after["min.insync.replicas"].value == "2"


def test_configs_are_shown_with_type_sources_and_documentation(
    node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node, retention_ms=1000)
    request = admin_messages.DescribeConfigsRequest(
        resources=[
            admin_messages.DescribeConfigsResource(resource_type=2, resource_name=topic),
            admin_messages.DescribeConfigsResource(resource_type=4, resource_name="1"),
            admin_messages.DescribeConfigsResource(resource_type=4, resource_name="2"),
            admin_messages.DescribeConfigsResource(resource_type=4, resource_name=""),
        ],
        include_synonyms=True,
        include_documentation=True,
    )
    with Wire(node.port) as wire:
        answer = wire.ask(ApiKey.DESCRIBE_CONFIGS, 4, request)
    of_topic, of_broker, of_another, of_all = answer.results
    configs = {each.name: each for each in of_topic.configs}
    limit = configs["retention.ms"]
    assert (limit.config_type, limit.config_source, limit.read_only) == (5, 1, False)
    assert [(each.name, each.value, each.source) for each in limit.synonyms] == [
        ("retention.ms", "1000", 1),
        ("log.retention.ms", "-1", 5),
    ]
    assert "dropped" in limit.documentation
    assert configs["flush.ms"].documentation.startswith("Kept for Kafka's tools, without effect")
    broker = {each.name: each for each in of_broker.configs}
    assert broker["log.retention.ms"].value == "-1"
    assert broker["log.dirs"].config_source == 4
    assert all(each.read_only for each in broker.values())
    assert of_another.error_code == ErrorCode.INVALID_REQUEST
    assert (of_all.error_code, of_all.configs) == (0, ())


def test_the_time_of_the_append_is_told_to_producers_and_consumers(
    node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node, message_timestamp_type="LogAppendTime")
    told: list[tuple[int, int]] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": node.address})
    for turn in range(2):  # The second request is like the first.
        producer.produce(
            topic, f"{turn}", timestamp=5, on_delivery=lambda _, sent: told.append(sent.timestamp())
        )
        assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.address, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        read = [record.timestamp() for record in consumer.consume(2, TIMEOUT_S)]
    finally:
        consumer.close()
    assert read == told
    assert {kind for kind, _ in read} == {confluent_kafka.TIMESTAMP_LOG_APPEND_TIME}
    assert min(at_ms for _, at_ms in read) > BASE_MS


def test_records_too_far_from_the_present_are_refused(
    node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node, message_timestamp_before_max_ms=1000)
    refused: list[KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": node.address})
    producer.produce(topic, "old", timestamp=5, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert [error.code() for error in refused] == [KafkaError.INVALID_TIMESTAMP]


def test_records_are_deleted_and_offsets_listed(
    admin: AdminClient, node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node)
    write(node, topic, 100)
    where = TopicPartition(topic, 0, 40)
    (deleted,) = admin.delete_records([where]).values()
    assert deleted.result(TIMEOUT_S).low_watermark == 40
    found = {}
    for name, spec in (
        ("earliest", OffsetSpec.earliest()),
        ("latest", OffsetSpec.latest()),
        ("newest", OffsetSpec.max_timestamp()),
        ("at", OffsetSpec.for_timestamp(BASE_MS + 60)),
    ):
        (answer,) = admin.list_offsets({TopicPartition(topic, 0): spec}).values()
        found[name] = answer.result(TIMEOUT_S).offset
    assert found == {"earliest": 40, "latest": 100, "newest": 99, "at": 60}
    (beyond,) = admin.delete_records([TopicPartition(topic, 0, 101)]).values()
    with pytest.raises(KafkaException) as refused:
        beyond.result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    (emptied,) = admin.delete_records(
        [TopicPartition(topic, 0, confluent_kafka.OFFSET_END)]
    ).values()
    assert emptied.result(TIMEOUT_S).low_watermark == 100


def test_records_of_a_compacted_topic_are_not_deleted_by_offset(
    admin: AdminClient, node: NodeProcess, make_topic: MakeTopic
) -> None:
    """The newest record of every key stays, unless the topic deletes as well; each partition of a
    request is judged by itself."""
    kept = make_topic(node, cleanup_policy="compact")
    both = make_topic(node, cleanup_policy="compact,delete")
    for topic in (kept, both):
        write(node, topic, 10)
    answers = admin.delete_records([TopicPartition(each, 0, 4) for each in (kept, both)])
    found = {where.topic: answer for where, answer in answers.items()}
    assert found[both].result(TIMEOUT_S).low_watermark == 4
    with pytest.raises(KafkaException) as refused:
        found[kept].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    (first,) = admin.list_offsets({TopicPartition(kept, 0): OffsetSpec.earliest()}).values()
    assert first.result(TIMEOUT_S).offset == 0
    alter(admin, kept, cleanup_policy="compact,delete")
    (deleted,) = admin.delete_records([TopicPartition(kept, 0, 4)]).values()
    assert deleted.result(TIMEOUT_S).low_watermark == 4


def test_the_cluster_is_one_node(admin: AdminClient, node: NodeProcess) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert [(each.host, each.port) for each in cluster.nodes] == [("127.0.0.1", node.port)]
    assert cluster.controller.id == cluster.nodes[0].id
    broker = ConfigResource(ConfigResource.Type.BROKER, str(cluster.controller.id))
    options = admin.describe_configs([broker])[broker].result(TIMEOUT_S)
    assert options["auto.create.topics.enable"].value == "true"


def test_topics_make_themselves_only_where_allowed(
    node: NodeProcess, quick_node: NodeProcess, new_name: NewName
) -> None:
    name = new_name()
    write(node, name, 3)
    assert Confluent().bounds(node.address, name) == (0, 3)
    # The node would make it, the consumer does not want it.
    absent = new_name()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": new_name(),
            "allow.auto.create.topics": False,
        }
    )
    consumer.subscribe([absent])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    # The producer wants it, the node does not make it.
    errors: list[KafkaError] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": quick_node.address,
            "topic.metadata.propagation.max.ms": 200,
            "message.timeout.ms": 50_000,
        }
    )
    producer.produce(absent, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors[0].code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
    for each in (node, quick_node):
        topics = AdminClient({"bootstrap.servers": each.address}).list_topics(timeout=TIMEOUT_S)
        assert absent not in topics.topics


def test_kafka_python_admin(node: NodeProcess, new_name: NewName) -> None:
    name, group = new_name(), new_name()
    where = kafka.TopicPartition(name, 1)
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=node.address)
    try:
        configs = {"storage.type": "EngineRocksDB", "expire.header": "best-before"}
        made = {"num_partitions": 2, "configs": configs}
        admin.create_topics({name: made})
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics({name: made})
        admin.create_partitions({name: 3})
        assert len(admin.describe_topics([name])[0]["partitions"]) == 3
        resource = kafka.admin.ConfigResource("TOPIC", name)
        (shown,) = admin.describe_configs([resource])["topic"].values()
        assert {name: shown[name]["value"] for name in configs} == configs
        for incremental in (True, False):
            change = kafka.admin.ConfigResource("TOPIC", name, {"retention.ms": "60000"})
            answer = admin.alter_configs(
                [change], incremental=incremental, raise_on_unknown=incremental
            )
            assert answer["topic"][name] == "OK"
        wrong = kafka.admin.ConfigResource("TOPIC", name, {"segment.bytes": "12"})
        assert "segment.bytes" in admin.alter_configs([wrong])["topic"][name]
        producer = kafka.KafkaProducer(bootstrap_servers=node.address)
        for _ in range(10):
            producer.send(name, b"v", partition=1)
        producer.close()
        assert admin.delete_records({where: 4})[where]["low_watermark"] == 4
        offsets = admin.list_partition_offsets({where: kafka.admin.OffsetSpec.EARLIEST})
        assert offsets[where].offset == 4
        assert len(admin.describe_cluster()["brokers"]) == 1
        _check_group_calls(admin, group, where)
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


def _check_group_calls(
    admin: kafka.admin.KafkaAdminClient, group: str, where: kafka.TopicPartition
) -> None:
    committed = kafka.OffsetAndMetadata(7, "a note", -1)
    admin.alter_group_offsets(group, {where: committed})
    kept = admin.list_group_offsets({group: [where]})[group][where]
    assert (kept.offset, kept.metadata) == (7, "a note")
    assert group in [each["group_id"] for each in admin.list_groups()]
    assert admin.describe_groups([group])[group]["group_state"] == "Empty"
    admin.reset_group_offsets(group, {where: kafka.admin.OffsetSpec.EARLIEST})
    assert admin.list_group_offsets({group: [where]})[group][where].offset == 4
    assert admin.delete_group_offsets(group, [where])[where] is kafka.errors.NoError
    admin.alter_group_offsets(group, {where: committed})
    admin.delete_groups([group])
    assert group not in [each["group_id"] for each in admin.list_groups()]


def test_aiokafka_admin(node: NodeProcess, new_name: NewName) -> None:
    aio.run(use_aiokafka_admin(node, new_name()))


async def use_aiokafka_admin(node: NodeProcess, name: str) -> None:
    where = aiokafka.TopicPartition(name, 1)
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=node.address)
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic(name, 2, 1)])
        assert name in await admin.list_topics()
        await admin.create_partitions({name: aiokafka.admin.NewPartitions(3)})
        (described,) = await admin.describe_topics([name])
        assert len(described["partitions"]) == 3
        kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
        resource = aiokafka.admin.config_resource.ConfigResource(kind, name, None)
        (shown,) = await admin.describe_configs([resource])
        assert "retention.ms" in [entry[0] for entry in shown.resources[0][4]]
        change = aiokafka.admin.config_resource.ConfigResource(
            kind, name, {"retention.ms": "60000"}
        )
        (answer,) = await admin.alter_configs([change])
        assert answer.resources[0][0] == 0
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=node.address)
        await producer.start()
        for _ in range(10):
            await producer.send_and_wait(name, b"v", partition=1)
        await producer.stop()
        before = aiokafka.admin.RecordsToDelete(before_offset=4)
        assert await admin.delete_records({where: before}) == {where: 4}
        cluster = await admin.describe_cluster()
        assert len(cluster["brokers"]) == 1
        assert await admin.list_consumer_group_offsets("nobody") == {}
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()
    finally:
        await admin.close()
