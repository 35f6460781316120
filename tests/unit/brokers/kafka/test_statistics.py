"""What is counted about requests."""

from __future__ import annotations

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.catalog import RESPONSES
from firnmq.brokers.kafka.protocol.messages.groups import HeartbeatResponse
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from firnmq.brokers.kafka.statistics import (
    _NESTED,
    LATENCY_BUCKETS_S,
    ApiStatistics,
    BrokerStatistics,
    error_of,
)


def produced(*codes: int) -> ProduceResponse:
    answers = [
        PartitionProduceResponse(index=index, error_code=code, base_offset=0)
        for index, code in enumerate(codes)
    ]
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=answers)])


def test_the_first_error_of_an_answer_counts() -> None:
    assert error_of(produced(0, 0)) == 0
    assert error_of(produced(0, 10, 3)) == 10
    assert error_of(ProduceResponse(responses=[])) == 0
    assert error_of(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)) == 27


def test_paths_to_error_codes_are_those_of_the_messages() -> None:
    for kind, path in _NESTED.items():
        assert kind in RESPONSES.values()
        assert path[0] in kind.__annotations__, kind


def test_latencies_fall_into_their_buckets() -> None:
    api = ApiStatistics("produce")
    for seconds in (0.0, 0.0001, 0.0002, 29.0, 31.0):
        api.add(seconds, 0)
    api.add(0.0, 7)
    api.add(0.0, 7)
    assert api.request_count == 7
    assert api.errors == {7: 2}
    assert (api.latency_counts[0], api.latency_counts[1]) == (4, 1)
    assert api.latency_counts[-2:] == [1, 1]
    assert len(api.latency_counts) == len(LATENCY_BUCKETS_S) + 1


def test_limits_are_counted_by_name() -> None:
    statistics = BrokerStatistics()
    for limit in ("idle", "idle", "frame"):
        statistics.limit_hit(limit)
    assert statistics.closed_by_limit == {"idle": 2, "frame": 1}
