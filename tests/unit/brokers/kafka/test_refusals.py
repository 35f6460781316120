"""Requests that are too long get an answer of their own API, where there can be one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from uuid import UUID

import pytest

from firnmq.brokers.kafka.protocol import ADVERTISED, ApiKey, ErrorCode, decode_response
from firnmq.brokers.kafka.protocol.messages import admin, groups, produce_fetch
from firnmq.brokers.kafka.protocol.refusals import refuse
from firnmq.brokers.kafka.statistics import BrokerStatistics, error_of
from firnmq.brokers.net.limit_log import LOG_S, LimitLog
from firnmq.testing.large_requests import large_requests
from tests.unit.brokers.kafka.stage import TOPIC, Stage, batch_of, on_stage, outcome

FIRST_BYTES = 1024
FRAME_MAX = 200_000


def answer_to(frame: bytes, api_key: int, version: int) -> object:
    parts = refuse(frame[4:][:FIRST_BYTES], "too long")
    if parts is None:
        return None
    answer = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    correlation_id, message = decode_response(api_key, version, answer[4:])
    assert correlation_id == 1
    return message


@pytest.mark.parametrize("api", [ApiKey(key) for key in ADVERTISED], ids=lambda api: api.name)
def test_every_api_has_an_answer_of_its_own(api: ApiKey) -> None:
    for request in large_requests(500, topic="t", topic_id=UUID(int=7), group="g", only=api):
        answer = answer_to(request.frame, request.api_key, request.version)
        if api is ApiKey.PRODUCE:
            continue  # Below.
        assert answer is not None, request.label
        code = error_of(answer) or error_of(answer.groups[0])  # type: ignore[attr-defined,arg-type]
        assert code in (ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION), request.label


def test_the_error_is_at_what_the_request_names_first() -> None:
    frames = large_requests(
        500, topic="t", topic_id=UUID(int=7), group="g", only=ApiKey.CREATE_TOPICS
    )
    for request in frames:
        answer = answer_to(request.frame, request.api_key, request.version)
        assert isinstance(answer, admin.CreateTopicsResponse)
        (topic,) = answer.topics
        assert topic.name in ("t", "x0")
        assert (topic.error_code, topic.error_message) == (ErrorCode.POLICY_VIOLATION, "too long")


@pytest.mark.parametrize("size", range(60))
def test_what_ends_too_early_has_no_answer_or_a_right_one(size: int) -> None:
    (request, *_) = large_requests(
        500, topic="t", topic_id=UUID(int=7), group="g", only=ApiKey.DELETE_RECORDS
    )
    answer = answer_to(request.frame[: 4 + size], request.api_key, request.version)
    assert answer is None or error_of(answer) == ErrorCode.POLICY_VIOLATION  # type: ignore[arg-type]


def test_a_produce_request_that_is_too_large_is_refused_and_the_connection_goes_on(
    tmp_path: Path,
) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        before = stage.produce(1, batch_of(b"before"))
        large = stage.produce(2, batch_of(bytes(FRAME_MAX)), index=3)
        after = stage.produce(3, batch_of(b"after"))
        stage.feed(before + large + after)
        answers = dict(await stage.answers(3))
        assert outcome(answers[1]) == (ErrorCode.NONE, 0)
        refused = answers[2]
        assert isinstance(refused, produce_fetch.ProduceResponse)
        (topic,) = refused.responses
        (partition,) = topic.partition_responses
        assert (topic.name, partition.index) == (TOPIC, 3)
        assert partition.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert partition.base_offset == -1
        assert outcome(answers[3]) == (ErrorCode.NONE, 1)
        assert stage.node.broker.statistics.closed_by_limit == {"frame_bytes": 1}

    on_stage(tmp_path, act, frame_bytes_max=FRAME_MAX)


def test_answers_stay_in_order_and_no_memory_is_taken(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        listing = stage.request(1, ApiKey.LIST_GROUPS, groups.ListGroupsRequest())
        stage.feed(listing)
        large = stage.produce(2, batch_of(bytes(FRAME_MAX)))
        for start in range(0, len(large), 1_000):
            stage.feed(large[start : start + 1_000])
            assert stage.node.broker.budget.used_bytes < 100_000
        stage.feed(listing)
        assert [number for number, _ in await stage.answers(3)] == [1, 2, 1]

    on_stage(tmp_path, act, frame_bytes_max=FRAME_MAX)


def produced(stage: Stage, acks: int, partitions: int) -> bytes:
    data = [
        produce_fetch.PartitionProduceData(index=index, records=bytes(FRAME_MAX // partitions))
        for index in range(partitions)
    ]
    topic = produce_fetch.TopicProduceData(name=TOPIC, partition_data=data)
    request = produce_fetch.ProduceRequest(acks=acks, timeout_ms=1, topic_data=[topic])
    return stage.request(1, ApiKey.PRODUCE, request, 9)


@pytest.mark.parametrize(("acks", "partitions"), [(0, 1), (-1, 2)])
def test_where_no_answer_is_right_the_connection_ends(
    acks: int, partitions: int, tmp_path: Path
) -> None:
    """Without acks a client reads no answer, and an answer for one of two batches would leave the
    other without."""

    async def act(stage: Stage) -> None:
        stage.feed(produced(stage, acks, partitions)[: FRAME_MAX // 2])
        assert stage.transport.is_closed
        assert not stage.transport.written
        assert stage.node.broker.statistics.closed_by_limit == {"frame_bytes": 1}

    on_stage(tmp_path, act, frame_bytes_max=FRAME_MAX * 9 // 10)


@pytest.mark.parametrize("length", [-1, 0, 7, int.from_bytes(b"GET ", "big")])
def test_what_is_no_request_ends_the_connection_at_once(length: int, tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        stage.feed(length.to_bytes(4, "big", signed=True))
        assert stage.transport.is_closed

    on_stage(tmp_path, act)


def test_one_log_line_per_address_and_kind_in_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 100.0
    statistics = BrokerStatistics()
    log = LimitLog("kafka", statistics.limit_hit, lambda: now_s)
    with caplog.at_level(logging.WARNING, "firnmq.kafka"):
        for _ in range(5):
            log.hit("frame_bytes", "10.0.0.1")
        log.hit("frame_bytes", "10.0.0.2")
        log.hit("request_bytes", "10.0.0.1")
        now_s += LOG_S
        log.hit("frame_bytes", "10.0.0.1")
    seen = [
        (each.fields["kind"], each.fields["peer"], each.fields["count"]) for each in caplog.records
    ]  # type: ignore[attr-defined]
    assert seen == [
        ("frame_bytes", "10.0.0.1", 1),
        ("frame_bytes", "10.0.0.2", 1),
        ("request_bytes", "10.0.0.1", 1),
        ("frame_bytes", "10.0.0.1", 5),
    ]
    assert statistics.closed_by_limit == {"frame_bytes": 7, "request_bytes": 1}


def test_many_addresses_take_no_more_memory(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitLog("kafka", BrokerStatistics().limit_hit, lambda: 0.0)
    for number in range(5_000):
        log.hit("frame_bytes", f"address {number}")
    assert len(log._logged) <= 1_000
    assert len(caplog.records) == 5_000


def test_garbage_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(stage: Stage) -> None:
        for _ in range(20):
            other = Stage(stage.node)
            other.feed((20).to_bytes(4, "big") + b"\x00\x03\x00\x09" + b"\xff" * 16)
            assert other.connection.task is not None
            await asyncio.wait_for(other.connection.task, 60)
            assert other.transport.is_closed
            other.connection.connection_lost(None)

    with caplog.at_level(logging.INFO, "firnmq.kafka"):
        on_stage(tmp_path, act)
    closed = [each for each in caplog.records if "MalformedRequest" in each.getMessage()]
    assert len(closed) == 1
