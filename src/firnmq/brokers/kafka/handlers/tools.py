"""What administrators' tools ask for: directories, producers, transactions, leaders, copies.

One node has one directory, leads every partition and has its only copy; so some of the answers say
that there is nothing to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from typing import Final

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.tools import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ConfigResource,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ElectionPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ProducersPartitionResponse,
    ProducerState,
    ProducersTopicResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.errors import FirnError

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_RESOURCE_TYPES: Final = frozenset({_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP})
_TYPES_NAMED_SINCE = 1
"""Version of ListConfigResources from which on it is about more than client metrics."""
PRODUCERS_MAX = 50_000
"""Producers in one answer: a partition can have many thousand."""


class ToolHandler:
    def __init__(
        self, storage: KafkaStorage, config: KafkaConfig, turns: Turns, data_path: str
    ) -> None:
        self._storage = storage
        self._config = config
        self._turns = turns
        self._data_path = data_path

    async def describe_log_dirs(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        topics: list[DescribeLogDirsTopic] = []
        # Each partition is described once; what is not there is left out, as in Kafka.
        wanted: dict[str, set[int]] = {}
        if request.topics is None:
            async for topic in self._turns.over(self._storage.catalog.topics()):
                wanted[topic.name] = set(range(topic.shard_count))
        else:
            async for each in self._turns.over(request.topics):
                wanted.setdefault(each.topic, set()).update(each.partitions)
        async for name, indexes in self._turns.over(wanted.items()):
            partitions = [each async for each in self._sizes(name, indexes)]
            if partitions:
                topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
        total_bytes, usable_bytes = await asyncio.to_thread(_space, self._data_path)
        result = DescribeLogDirsResult(
            log_dir=self._data_path,
            topics=topics,
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )
        return DescribeLogDirsResponse(results=[result])

    async def _sizes(
        self, name: str, indexes: Iterable[int]
    ) -> AsyncIterator[DescribeLogDirsPartition]:
        async for index in self._turns.over(sorted(indexes)):
            try:
                status = await self._storage.status(name, index)
            except FirnError:
                continue
            yield DescribeLogDirsPartition(
                partition_index=index, partition_size=status.length_bytes
            )

    async def describe_producers(
        self, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        left = PRODUCERS_MAX
        topics = []
        seen: set[tuple[str, int]] = set()
        async for topic in self._turns.over(request.topics):
            partitions = []
            async for index in self._turns.over(topic.partition_indexes):
                if (topic.name, index) not in seen:
                    seen.add((topic.name, index))
                    found = await self._producers(topic.name, index, left)
                    left -= len(found.active_producers)
                    partitions.append(found)
            topics.append(ProducersTopicResponse(name=topic.name, partitions=partitions))
        return DescribeProducersResponse(topics=topics)

    async def _producers(self, name: str, index: int, left: int) -> ProducersPartitionResponse:
        try:
            found = await self._storage.producers(name, index)
        except FirnError as error:
            return ProducersPartitionResponse(
                partition_index=index,
                error_code=code_of(error),
                error_message=str(error),
                active_producers=[],
            )
        if len(found) > left:
            return ProducersPartitionResponse(
                partition_index=index,
                error_code=ErrorCode.POLICY_VIOLATION,
                error_message=f"an answer has at most {PRODUCERS_MAX:,} producers; "
                "ask for fewer partitions",
                active_producers=[],
            )
        return ProducersPartitionResponse(
            partition_index=index,
            active_producers=[
                ProducerState(
                    producer_id=each.producer_id,
                    producer_epoch=each.epoch,
                    last_sequence=each.last_sequence,
                    last_timestamp=each.stored_ms,
                    coordinator_epoch=0,
                    current_txn_start_offset=each.transaction_start,
                )
                for each in found
            ],
        )

    async def list_config_resources(
        self, request: ListConfigResourcesRequest, version: int
    ) -> ListConfigResourcesResponse:
        """Client metrics and groups have no configs here."""
        types = frozenset(request.resource_types) or _RESOURCE_TYPES
        if version < _TYPES_NAMED_SINCE:
            types = frozenset({_CLIENT_METRICS})
        if not types <= _RESOURCE_TYPES:
            unsupported = ErrorCode.UNSUPPORTED_VERSION
            return ListConfigResourcesResponse(error_code=unsupported, config_resources=[])
        found = [
            ConfigResource(resource_name=str(self._config.node_id), resource_type=kind)
            for kind in (_BROKER, _BROKER_LOGGER)
            if kind in types
        ]
        if _TOPIC in types:
            async for topic in self._turns.over(self._storage.catalog.topics()):
                found.append(ConfigResource(resource_name=topic.name, resource_type=_TOPIC))
        return ListConfigResourcesResponse(config_resources=found)

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """The node leads every partition, so none needs an election; asked about all, it names
        those that had one."""
        results = []
        async for topic in self._turns.over(request.topic_partitions or ()):
            partitions = []
            async for index in self._turns.distinct(topic.partitions):
                code, message = self._judge(topic.topic, index)
                if code is ErrorCode.NONE:
                    code, message = ErrorCode.ELECTION_NOT_NEEDED, "the node is the leader"
                partitions.append(
                    ElectionPartitionResult(
                        partition_id=index, error_code=code, error_message=message
                    )
                )
            results.append(ReplicaElectionResult(topic=topic.topic, partition_result=partitions))
        return ElectLeadersResponse(replica_election_results=results)

    async def reassign(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        topics = []
        async for topic in self._turns.over(request.topics):
            partitions = [
                self._reassign(topic.name, each)
                async for each in self._turns.over(topic.partitions)
            ]
            topics.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            responses=topics,
        )

    async def list_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """None is ever under way."""
        return ListPartitionReassignmentsResponse(topics=[])

    def _reassign(self, name: str, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
        code, message = self._judge(name, wanted.partition_index)
        node = self._config.node_id
        if code is ErrorCode.NONE and wanted.replicas is None:
            code, message = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "none is under way"
        elif code is ErrorCode.NONE and tuple(wanted.replicas or ()) != (node,):
            code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
            message = f"this cluster has one node, {node}"
        return ReassignablePartitionResponse(
            partition_index=wanted.partition_index, error_code=code, error_message=message
        )

    def _judge(self, name: str, index: int) -> tuple[ErrorCode, str | None]:
        """Whether there is such a partition."""
        try:
            self._storage.shard(name, index)
        except FirnError as error:
            return code_of(error), str(error)
        return ErrorCode.NONE, None


def _space(path: str) -> tuple[int, int]:
    """Bytes of the file system, and those that can still be used; -1 if unknown."""
    try:
        status = os.statvfs(path)
    except OSError:
        return -1, -1
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
