"""What administrators' tools ask a node for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firnmq.brokers.kafka.handlers.transaction_lookup import TransactionLookup
from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import tools, transactions
from firnmq.brokers.net.loop_turns import Turns
from firnmq.testing import FakeClock
from tests.unit.brokers.kafka.stage import TOPIC, Stage, append_to, batch_of, on_stage

ID = "payments"


async def ask(stage: Stage, api_key: ApiKey, request: Message, version: int = 0) -> Any:
    stage.feed(stage.request(1, api_key, request, version))
    ((_, answer),) = await stage.answers(1)
    return answer


async def begin_transaction(stage: Stage, *partitions: int) -> Any:
    answer = await ask(
        stage,
        ApiKey.INIT_PRODUCER_ID,
        transactions.InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000),
        4,
    )
    if partitions:
        topic = transactions.AddPartitionsToTxnTopic(name=TOPIC, partitions=partitions)
        added = await ask(
            stage,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            transactions.AddPartitionsToTxnRequest(
                transactional_id=ID,
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
                topics=[topic],
            ),
            3,
        )
        assert not any(each.error_code for each in added.results[0].results)
    return answer


def test_the_directory_has_every_partition_with_its_size(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(shards=2)
        await append_to(stage.storage, TOPIC, 0, batch_of(b"value"))
        answer = await ask(
            stage, ApiKey.DESCRIBE_LOG_DIRS, tools.DescribeLogDirsRequest(topics=None), 5
        )
        (result,) = answer.results
        assert result.log_dir == str(tmp_path)
        assert 0 < result.usable_bytes <= result.total_bytes
        (topic,) = result.topics
        sizes = {each.partition_index: each.partition_size for each in topic.partitions}
        assert sizes[0] > 0
        assert sizes[1] == 0
        # What is named again is described once, and what is not there is left out.
        named = [
            tools.DescribableLogDirTopic(topic=TOPIC, partitions=[1, 1, 7]),
            tools.DescribableLogDirTopic(topic=TOPIC, partitions=[1]),
            tools.DescribableLogDirTopic(topic="none", partitions=[0]),
        ]
        request = tools.DescribeLogDirsRequest(topics=named)
        (result,) = (await ask(stage, ApiKey.DESCRIBE_LOG_DIRS, request, 1)).results
        assert [each.name for each in result.topics] == [TOPIC]
        assert [each.partition_index for each in result.topics[0].partitions] == [1]

    on_stage(tmp_path, act)


def test_transactions_are_listed_and_described(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(shards=3)
        producer = await begin_transaction(stage, 2, 0)

        async def listed(**filters: Any) -> list[str]:
            request = tools.ListTransactionsRequest(**filters)
            answer = await ask(stage, ApiKey.LIST_TRANSACTIONS, request, 1)
            assert list(answer.unknown_state_filters) == (
                ["Nowhere"] if "Nowhere" in filters.get("state_filters", ()) else []
            )
            return [each.transactional_id for each in answer.transaction_states]

        assert await listed() == [ID]
        assert await listed(state_filters=["Ongoing", "Nowhere"]) == [ID]
        assert await listed(state_filters=["Empty"]) == []
        assert await listed(producer_id_filters=[producer.producer_id]) == [ID]
        assert await listed(producer_id_filters=[producer.producer_id + 1]) == []
        assert await listed(duration_filter=0) == [ID]
        assert await listed(duration_filter=10**12) == []
        request = tools.DescribeTransactionsRequest(transactional_ids=[ID, "none", ID])
        answer = await ask(stage, ApiKey.DESCRIBE_TRANSACTIONS, request)
        known, unknown = answer.transaction_states
        assert (known.transaction_state, known.transaction_timeout_ms) == ("Ongoing", 60_000)
        assert known.producer_id == producer.producer_id
        assert known.transaction_start_time_ms > 0
        assert [(each.topic, list(each.partitions)) for each in known.topics] == [(TOPIC, [0, 2])]
        assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    on_stage(tmp_path, act)


def test_a_clock_that_is_set_back_hides_no_old_transaction(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(shards=1)
        await begin_transaction(stage, 0)
        clock = FakeClock()  # Years behind the node's clock.
        lookup = TransactionLookup(stage.node.broker._transactions, clock, Turns())
        request = tools.ListTransactionsRequest(duration_filter=60_000)
        assert (await lookup.list(request)).transaction_states == []
        clock.advance(60_000)
        (found,) = (await lookup.list(request)).transaction_states
        assert found.transactional_id == ID

    on_stage(tmp_path, act)


def test_the_producers_of_a_partition_are_described(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create(shards=2)
        await append_to(stage.storage, TOPIC, 0, batch_of(b"a", b"b", producer=(7, 0)))
        topic = tools.ProducersTopicRequest(name=TOPIC, partition_indexes=[0, 1, 0, 9])
        request = tools.DescribeProducersRequest(topics=[topic])
        (found,) = (await ask(stage, ApiKey.DESCRIBE_PRODUCERS, request)).topics
        first, second, missing = found.partitions
        (known,) = first.active_producers
        assert (known.producer_id, known.producer_epoch, known.last_sequence) == (7, 0, 1)
        assert known.current_txn_start_offset == -1
        assert second.active_producers == ()
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_stage(tmp_path, act)


@pytest.mark.parametrize(
    ("version", "types", "found"),
    [
        (0, [], []),
        (1, [], [("1", 4), ("1", 8), (TOPIC, 2)]),
        (1, [2], [(TOPIC, 2)]),
        (1, [16, 32], []),
    ],
)
def test_what_has_configs_is_listed(
    version: int, types: list[int], found: list[tuple[str, int]], tmp_path: Path
) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        request = tools.ListConfigResourcesRequest(resource_types=types)
        answer = await ask(stage, ApiKey.LIST_CONFIG_RESOURCES, request, version)
        assert [(each.resource_name, each.resource_type) for each in answer.config_resources] == (
            found
        )
        if version:
            request = tools.ListConfigResourcesRequest(resource_types=[99])
            answer = await ask(stage, ApiKey.LIST_CONFIG_RESOURCES, request, version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    on_stage(tmp_path, act)


def test_the_one_node_leads_and_has_every_partition(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        wanted = tools.TopicPartitions(topic=TOPIC, partitions=[0, 5])
        elected = await ask(
            stage,
            ApiKey.ELECT_LEADERS,
            tools.ElectLeadersRequest(election_type=0, topic_partitions=[wanted]),
            2,
        )
        codes = [each.error_code for each in elected.replica_election_results[0].partition_result]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [ErrorCode.ELECTION_NOT_NEEDED, unknown]
        everything = tools.ElectLeadersRequest(topic_partitions=None)
        answer = await ask(stage, ApiKey.ELECT_LEADERS, everything, 1)
        assert (answer.error_code, answer.replica_election_results) == (0, ())
        topic = tools.ReassignableTopic(
            name=TOPIC,
            partitions=[
                tools.ReassignablePartition(partition_index=0, replicas=[1]),
                tools.ReassignablePartition(partition_index=0, replicas=[1, 2]),
                tools.ReassignablePartition(partition_index=0, replicas=None),
                tools.ReassignablePartition(partition_index=5, replicas=[1]),
            ],
        )
        moved = await ask(
            stage,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            tools.AlterPartitionReassignmentsRequest(topics=[topic]),
            1,
        )
        assert [each.error_code for each in moved.responses[0].partitions] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            unknown,
        ]
        request = tools.ListPartitionReassignmentsRequest(topics=None)
        assert (await ask(stage, ApiKey.LIST_PARTITION_REASSIGNMENTS, request)).topics == ()

    on_stage(tmp_path, act)
