"""The shortcut for repeated fetch requests gives what the codec gives, or gives up."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from firnmq.brokers.kafka.protocol import RequestHeader, decode_request, encode_response
from firnmq.brokers.kafka.protocol.codec import encode_request
from firnmq.brokers.kafka.protocol.errors import MalformedRequest, UnsupportedVersion
from firnmq.brokers.kafka.protocol.hot.fetch_template import FetchTemplate
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

VERSIONS = range(4, 19)
TOPIC, TOPIC_ID = "aufträge", UUID(int=2**127 + 5)


def named(version: int) -> dict[str, Any]:
    """How a version names the topic."""
    return {"topic_id": TOPIC_ID} if version >= 13 else {"topic": TOPIC}


def frame_of(
    version: int,
    *,
    correlation_id: int = 7,
    offset: int = 12,
    index: int = 3,
    client_id: str | None = "client",
    isolation_level: int = 1,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    more_partitions: int = 0,
    more_topics: int = 0,
) -> tuple[bytearray, RequestHeader, FetchRequest]:
    header = RequestHeader(
        api_key=1, api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    partitions = [
        FetchPartition(partition=index + more, fetch_offset=offset, partition_max_bytes=1 << 20)
        for more in range(1 + more_partitions)
    ]
    topics = [FetchTopic(**named(version), partitions=partitions) for _ in range(1 + more_topics)]
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 24,
        isolation_level=isolation_level,
        topics=topics,
    )
    whole = b"".join(bytes(part) for part in encode_request(header, request))  # type: ignore[arg-type]
    return bytearray(whole[4:]), header, request


@pytest.mark.parametrize("client_id", ["client", "", None])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_matches_is_what_the_codec_reads(version: int, client_id: str | None) -> None:
    rng = random.Random(version)
    template = FetchTemplate.learn(*frame_of(version, client_id=client_id))
    assert template is not None
    for _ in range(100):
        correlation_id, offset = rng.randint(0, 2**31 - 1), rng.randint(0, 2**62)
        frame, *_ = frame_of(
            version, correlation_id=correlation_id, offset=offset, client_id=client_id
        )
        assert template.match(frame) == (correlation_id, offset)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_that_differs_elsewhere_does_not_match(version: int) -> None:
    """Whatever else is changed, either nothing matches or the codec reads the same."""
    frame, header, request = frame_of(version)
    template = FetchTemplate.learn(frame, header, request)
    assert template is not None
    rng = random.Random(version)
    matched_count = 0
    for _ in range(2_000):
        changed = bytearray(frame)
        changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
        matched = template.match(changed)
        if matched is None:
            continue
        matched_count += 1
        try:
            read_header, read = decode_request(changed)
        except (MalformedRequest, UnsupportedVersion):
            pytest.fail("the codec refuses what matched")
        assert isinstance(read, FetchRequest)
        (topic,) = read.topics
        (partition,) = topic.partitions
        assert matched == (read_header.correlation_id, partition.fetch_offset)
        assert {"topic": topic.topic, "topic_id": topic.topic_id}.items() >= named(version).items()
        assert partition.partition == 3
        assert read.max_wait_ms == request.max_wait_ms
    assert matched_count
    assert template.match(frame[:-1]) is None
    assert template.match(frame + b"\0") is None


@pytest.mark.parametrize("version", [12, 18])
@pytest.mark.parametrize(
    "options",
    [
        {"more_partitions": 1},
        {"more_topics": 1},
        {"max_wait_ms": 0},
        {"min_bytes": 0},
    ],
    ids=str,
)
def test_other_requests_are_not_learned(options: dict[str, int], version: int) -> None:
    assert FetchTemplate.learn(*frame_of(version, **options)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_the_codecs(version: int, isolation_level: int) -> None:
    template = FetchTemplate.learn(*frame_of(version, isolation_level=isolation_level))
    assert template is not None
    for records in (b"r", b"records" * 30, bytes(20_000)):
        partition = PartitionData(
            partition_index=3,
            error_code=0,
            high_watermark=2**40,
            last_stable_offset=2**40,
            log_start_offset=17,
            aborted_transactions=[] if isolation_level else None,
            records=[records],
        )
        response = FetchResponse(
            responses=[FetchableTopicResponse(**named(version), partitions=[partition])]
        )
        header = RequestHeader(api_key=1, api_version=version, correlation_id=99, client_id="c")
        expected = b"".join(bytes(part) for part in encode_response(header, response))  # type: ignore[arg-type]
        assert template.response(99, 2**40, 17, memoryview(records)) == expected
