"""The shortcut for repeated produce requests gives what the codec gives, or gives up."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from firnmq.brokers.kafka.protocol import RequestHeader, decode_request, encode_response
from firnmq.brokers.kafka.protocol.codec import encode_request
from firnmq.brokers.kafka.protocol.errors import MalformedRequest
from firnmq.brokers.kafka.protocol.hot.produce_template import ProduceTemplate
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

VERSIONS = range(3, 14)
TOPIC_ID = UUID(int=2**127 + 5)


def named(version: int, topic: str = "orders") -> dict[str, Any]:
    """How a version names the topic."""
    return {"topic_id": TOPIC_ID} if version >= 13 else {"name": topic}


def frame_of(
    version: int,
    *,
    correlation_id: int = 7,
    index: int = 3,
    records: bytes | None = b"records",
    topic: str = "orders",
    client_id: str | None = "client",
    acks: int = -1,
    transactional_id: str | None = None,
    more_partitions: int = 0,
) -> tuple[bytearray, RequestHeader, ProduceRequest]:
    header = RequestHeader(
        api_key=0, api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    partitions = [
        PartitionProduceData(index=index + more, records=records)
        for more in range(1 + more_partitions)
    ]
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(**named(version, topic), partition_data=partitions)],
    )
    whole = b"".join(bytes(part) for part in encode_request(header, request))  # type: ignore[arg-type]
    return bytearray(whole[4:]), header, request


@pytest.mark.parametrize("version", VERSIONS)
def test_what_matches_is_what_the_codec_reads(version: int) -> None:
    rng = random.Random(version)
    template = ProduceTemplate.learn(*frame_of(version))
    assert template is not None
    for _ in range(200):
        correlation_id, index = rng.randint(0, 2**31 - 1), rng.randint(0, 50)
        records = rng.randbytes(rng.choice((1, 60, 126, 127, 128, 5_000, 16_400, 70_000)))
        frame, *_ = frame_of(version, correlation_id=correlation_id, index=index, records=records)
        matched = template.match(frame)
        assert matched is not None
        assert (*matched[:2], bytes(matched[2])) == (correlation_id, index, records)


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_the_codecs(version: int) -> None:
    _, header, _ = given = frame_of(version)
    template = ProduceTemplate.learn(*given)
    assert template is not None
    answer = PartitionProduceResponse(index=5, base_offset=2**40, log_start_offset=17)
    response = ProduceResponse(
        responses=[TopicProduceResponse(**named(version), partition_responses=[answer])]
    )
    header = RequestHeader(
        api_key=0, api_version=version, correlation_id=99, client_id=header.client_id
    )
    expected = b"".join(bytes(part) for part in encode_response(header, response))  # type: ignore[arg-type]
    assert template.response(99, 5, 2**40, 17) == expected


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "other",
    [
        {"topic": "orderz"},
        {"topic": "orders2"},
        {"client_id": "someone"},
        {"client_id": None},
        {"acks": 1},
        {"acks": 0},
        {"transactional_id": "t"},
        {"more_partitions": 1},
        {"records": None},
    ],
)
def test_other_requests_do_not_match(version: int, other: dict[str, object]) -> None:
    template = ProduceTemplate.learn(*frame_of(version))
    assert template is not None
    frame, *_ = frame_of(version, **other)  # type: ignore[arg-type]
    is_same = version >= 13 and "topic" in other  # Topics have ids there.
    assert (template.match(frame) is None) is not is_same


@pytest.mark.parametrize("version", VERSIONS)
def test_another_version_does_not_match(version: int) -> None:
    template = ProduceTemplate.learn(*frame_of(version))
    assert template is not None
    for another in VERSIONS:
        if another != version:
            assert template.match(frame_of(another)[0]) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "unusual",
    [{"transactional_id": "t"}, {"more_partitions": 2}, {"records": None}, {"acks": 2}],
)
def test_unusual_requests_are_not_learned(version: int, unusual: dict[str, object]) -> None:
    assert ProduceTemplate.learn(*frame_of(version, **unusual)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_frames_never_match_anything_else(version: int) -> None:
    """Whatever matches, the codec reads the same from it."""
    rng = random.Random(version)
    template = ProduceTemplate.learn(*frame_of(version))
    assert template is not None
    for _ in range(2_000):
        frame, *_ = frame_of(version, records=rng.randbytes(rng.randint(1, 300)))
        if rng.random() < 0.5:
            del frame[rng.randrange(len(frame)) :]
        else:
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        matched = template.match(frame)
        if matched is None:
            continue
        try:
            header, request = decode_request(frame)
        except MalformedRequest:
            pytest.fail("the codec refuses what has matched")
        assert isinstance(request, ProduceRequest)
        assert header.correlation_id == matched[0]
        (partition,) = request.topic_data[0].partition_data
        assert (partition.index, bytes(partition.records or b"")) == (  # type: ignore[arg-type]
            matched[1],
            bytes(matched[2]),
        )
