"""What the broker counts: a few additions per request, nothing per record.

Plain numbers, owned by the event loop; an exporter turns them into its own form.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from firnmq.brokers.kafka.protocol import ApiKey, Message
from firnmq.brokers.kafka.protocol.messages import (
    acls,
    admin,
    clients,
    consumer_groups,
    groups,
    metadata,
    offsets,
    produce_fetch,
    tools,
    topic_partitions,
    transactions,
)

LATENCY_BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0),
)
"""Upper bounds in seconds; a fetch that waits for records may take up to 30."""


class ApiStatistics:
    """One API's requests: how many, how they ended, how long they took."""

    __slots__ = ("api", "errors", "latency_counts", "latency_sum_s", "request_count")

    def __init__(self, api: str) -> None:
        self.api = api
        self.request_count = 0
        self.errors: dict[int, int] = {}
        """Requests by the first error code in the answer, without those that had none."""
        self.latency_counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.latency_sum_s = 0.0

    def add(self, seconds: float, error_code: int) -> None:
        self.request_count += 1
        self.latency_sum_s += seconds
        self.latency_counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        if error_code:
            self.errors[error_code] = self.errors.get(error_code, 0) + 1


class BrokerStatistics:
    """Everything one listener counts."""

    __slots__ = (
        "accepted_count",
        "apis",
        "authentication_failed_count",
        "closed_by_limit",
        "received_bytes",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.apis: dict[int, ApiStatistics] = {
            int(key): ApiStatistics(key.name.lower()) for key in ApiKey
        }
        self.accepted_count = 0
        self.closed_by_limit: dict[str, int] = {}
        """Connections refused or closed, by the limit that did it."""
        self.authentication_failed_count = 0
        self.received_bytes = 0
        self.sent_bytes = 0

    def limit_hit(self, limit: str) -> None:
        self.closed_by_limit[limit] = self.closed_by_limit.get(limit, 0) + 1


def error_of(response: Message) -> int:
    """The first error code in a response, 0 if there is none."""
    code: int = getattr(response, "error_code", 0)
    if code:
        return code
    path = _NESTED.get(type(response))
    return 0 if path is None else _first_error(response, path)


def _first_error(message: Message, path: tuple[str, ...]) -> int:
    for child in getattr(message, path[0]):
        code: int = getattr(child, "error_code", 0)
        if not code and len(path) > 1:
            code = _first_error(child, path[1:])
        if code:
            return code
    return 0


_NESTED: Final[dict[type[Message], tuple[str, ...]]] = {
    produce_fetch.ProduceResponse: ("responses", "partition_responses"),
    produce_fetch.FetchResponse: ("responses", "partitions"),
    produce_fetch.ListOffsetsResponse: ("topics", "partitions"),
    produce_fetch.OffsetForLeaderEpochResponse: ("topics", "partitions"),
    metadata.MetadataResponse: ("topics",),
    metadata.FindCoordinatorResponse: ("coordinators",),
    groups.DescribeGroupsResponse: ("groups",),
    groups.DeleteGroupsResponse: ("results",),
    consumer_groups.ConsumerGroupDescribeResponse: ("groups",),
    topic_partitions.DescribeTopicPartitionsResponse: ("topics",),
    clients.AlterClientQuotasResponse: ("entries",),
    clients.DescribeUserScramCredentialsResponse: ("results",),
    clients.AlterUserScramCredentialsResponse: ("results",),
    offsets.OffsetCommitResponse: ("topics", "partitions"),
    offsets.OffsetFetchResponse: ("topics", "partitions"),
    offsets.OffsetDeleteResponse: ("topics", "partitions"),
    acls.CreateAclsResponse: ("results",),
    acls.DeleteAclsResponse: ("filter_results",),
    admin.CreateTopicsResponse: ("topics",),
    tools.DescribeLogDirsResponse: ("results",),
    tools.DescribeProducersResponse: ("topics", "partitions"),
    tools.DescribeTransactionsResponse: ("transaction_states",),
    tools.ElectLeadersResponse: ("replica_election_results", "partition_result"),
    tools.AlterPartitionReassignmentsResponse: ("responses", "partitions"),
    admin.DeleteTopicsResponse: ("responses",),
    admin.CreatePartitionsResponse: ("results",),
    admin.DeleteRecordsResponse: ("topics", "partitions"),
    admin.DescribeConfigsResponse: ("results",),
    admin.AlterConfigsResponse: ("responses",),
    admin.IncrementalAlterConfigsResponse: ("responses",),
    transactions.AddPartitionsToTxnResponse: ("results", "results"),
    transactions.TxnOffsetCommitResponse: ("topics", "partitions"),
}
"""Where answers about several things keep their error codes."""
