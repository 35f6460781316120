"""Topics with their partitions, page by page, and the metadata in the words of a quorum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages import topic_partitions as pages
from firnmq.config import TopicConfig
from tests.unit.brokers.kafka.stage import Stage, on_stage

COUNTS = {"a": 3, "b": 1, "c": 4}


async def ask(stage: Stage, request: Any, key: ApiKey, version: int = 0) -> Any:
    stage.feed(stage.request(1, key, request, version))
    ((_, answer),) = await stage.answers(1)
    return answer


async def page(
    stage: Stage, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> tuple[dict[str, list[int]], tuple[str, int] | None]:
    begins = None
    if cursor is not None:
        begins = pages.PageCursor(topic_name=cursor[0], partition_index=cursor[1])
    request = pages.DescribeTopicPartitionsRequest(
        topics=[pages.PagedTopic(name=name) for name in names],
        response_partition_limit=limit,
        cursor=begins,
    )
    answer = await ask(stage, request, ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    found = {
        topic.name: [each.partition_index for each in topic.partitions] for topic in answer.topics
    }
    following = answer.next_cursor
    return found, following and (following.topic_name, following.partition_index)


def test_every_page_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        for name, count in COUNTS.items():
            await stage.storage.manager.create_topic(name, count, TopicConfig())
        everything = {name: list(range(count)) for name, count in COUNTS.items()}
        assert await page(stage) == (everything, None)
        for limit in range(1, 10):
            read: dict[str, list[int]] = {}
            cursor: tuple[str, int] | None = None
            for _ in range(20):
                found, cursor = await page(stage, limit=limit, cursor=cursor)
                assert 0 < sum(map(len, found.values())) <= limit
                for name, indexes in found.items():
                    read.setdefault(name, []).extend(indexes)
                if cursor is None:
                    break
            assert read == everything, limit
        assert await page(stage, "c", "a", cursor=("b", 1)) == ({"c": [0, 1, 2, 3]}, None)
        assert await page(stage, "b", limit=0) == ({"b": [0]}, None)
        assert await page(stage, "c", cursor=("c", 9)) == ({"c": []}, None)

    on_stage(tmp_path, act)


def test_what_a_topic_looks_like_and_one_that_there_is_not(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        names = [pages.PagedTopic(name=name) for name in ("gone", "in valid", "orders")]
        request = pages.DescribeTopicPartitionsRequest(topics=names)
        answer = await ask(stage, request, ApiKey.DESCRIBE_TOPIC_PARTITIONS)
        gone, invalid, orders = answer.topics
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert invalid.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert orders.topic_id == stage.storage.id_of("orders")
        (partition,) = orders.partitions
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (
            1,
            (1,),
            (1,),
        )
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())

    on_stage(tmp_path, act)


def test_the_metadata_as_a_quorum(tmp_path: Path) -> None:
    def asking(topic: str, index: int) -> pages.DescribeQuorumRequest:
        part = pages.QuorumPartition(partition_index=index)
        return pages.DescribeQuorumRequest(
            topics=[pages.QuorumTopic(topic_name=topic, partitions=[part])]
        )

    async def act(stage: Stage) -> None:
        await stage.create()
        key = ApiKey.DESCRIBE_QUORUM
        answer = await ask(stage, asking("__cluster_metadata", 0), key, 1)
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (0, 1)
        assert partition.high_watermark > 0
        assert [each.replica_id for each in partition.current_voters] == [1]
        answer = await ask(stage, asking("orders", 0), key, 1)
        code = answer.topics[0].partitions[0].error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_stage(tmp_path, act)
