"""The hand-written paths give what the tables give, or leave it to them."""

from typing import Any

import pytest

from firnmq.brokers.kafka.protocol import FileRange, RequestHeader, decode_request, encode_response
from firnmq.brokers.kafka.protocol.compiler import decode, encode
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.protocol.header import (
    RequestHeader as Header,
)
from firnmq.brokers.kafka.protocol.header import (
    read_request_header,
    response_header_version,
    write_request_header,
    write_response_header,
)
from firnmq.brokers.kafka.protocol.hot import (
    BUILDERS,
    PARSERS,
    build_fetch_response,
    build_produce_response,
    parse_produce,
    parse_request_header,
)
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.versions import ApiKey
from firnmq.brokers.kafka.protocol.writer import Writer
from firnmq.errors import InvalidArgument
from tests.unit.brokers.kafka.protocol.samples import CASES, Case, Samples, encoded, joined

PARSED = [c for c in CASES if c.key in PARSERS and c.message.__name__.endswith("Request")]
BUILT = [c for c in CASES if c.key in BUILDERS and c.message.__name__.endswith("Response")]


def table_frame(message: Any, case: Case, correlation_id: int) -> list[Any]:
    writer = Writer(is_framed=True)
    write_response_header(writer, correlation_id, response_header_version(case.key, case.version))
    encode(message, writer, case.version, flexible=case.flexible)
    return list(writer.parts())


@pytest.mark.parametrize("case", PARSED, ids=str)
def test_a_parser_gives_the_message_that_the_table_gives(case: Case) -> None:
    # Shorter ones of Fetch, whose partitions may all have tagged fields.
    samples = Samples(1, length_max=1 if case.key == ApiKey.FETCH else 3)
    parsed_count = 0
    for _ in range(100):
        data = b"head" + encoded(samples.message(case), case)
        expected = decode(case.message, Reader(data, 4), case.version, flexible=case.flexible)
        parsed = PARSERS[case.key](memoryview(data), 4, case.version)
        if parsed is not None:
            parsed_count += 1
            assert parsed == expected
    # Only Fetch leaves something valid to the table: forgotten topics and tagged fields.
    is_old_produce = case.key == ApiKey.PRODUCE and case.version < 3
    assert parsed_count >= (0 if is_old_produce else 5 if case.key == ApiKey.FETCH else 100)


@pytest.mark.parametrize("case", PARSED, ids=str)
def test_a_parser_never_accepts_what_the_table_refuses(case: Case) -> None:
    samples = Samples(2, length_max=2)
    for _ in range(3):
        data = encoded(samples.message(case), case)
        for position in range(len(data)):
            for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
                damaged = data[:position] + bytes((value,)) + data[position + 1 :]
                parsed = PARSERS[case.key](memoryview(damaged), 0, case.version)
                if parsed is not None:
                    reader = Reader(damaged)
                    table = decode(case.message, reader, case.version, flexible=case.flexible)
                    assert parsed == table


@pytest.mark.parametrize("case", BUILT, ids=str)
def test_a_builder_gives_the_bytes_that_the_table_gives(case: Case) -> None:
    samples = Samples(3)
    built_count = 0
    for seed in range(100):
        message = samples.message(case)
        built = BUILDERS[case.key](message, seed - 50, case.version)
        if built is not None:
            built_count += 1
            assert joined(built) == joined(table_frame(message, case, seed - 50))
    is_plain = not (case.key == ApiKey.PRODUCE and case.version >= 8) and not case.flexible
    assert built_count >= (100 if is_plain else 5)


def test_errors_of_produce_in_words_are_left_to_the_table() -> None:
    partition = PartitionProduceResponse(index=0, base_offset=-1, error_message="too large")
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=[partition])]
    )
    assert build_produce_response(response, 1, 8) is None
    assert build_produce_response(response, 1, 9) is None
    assert build_produce_response(response, 1, 7) is not None
    header = RequestHeader(api_key=ApiKey.PRODUCE, api_version=9, correlation_id=1)
    assert b"too large" in joined(encode_response(header, response))


def test_tagged_fields_of_fetch_are_left_to_the_table() -> None:
    leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    partition = PartitionData(partition_index=0, high_watermark=0, current_leader=leader)
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    assert build_fetch_response(response, 1, 12) is None
    assert build_fetch_response(response, 1, 11) is not None


@pytest.mark.parametrize("version", range(4, 13))
def test_records_of_fetch_are_passed_on_and_not_copied(version: int) -> None:
    large, larger = memoryview(b"a" * 1000), b"b" * 2000
    on_disk = FileRange(fd=9, position=100, size_bytes=7)
    partitions = [
        PartitionData(partition_index=0, high_watermark=9, records=[large, b"tiny", larger]),
        PartitionData(partition_index=1, high_watermark=9, records=on_disk),
        PartitionData(partition_index=2, high_watermark=9, records=None),
        PartitionData(
            partition_index=3,
            high_watermark=9,
            aborted_transactions=[AbortedTransaction(producer_id=5, first_offset=6)],
            records=[],
        ),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    case = Case(ApiKey.FETCH, version, FetchResponse)
    parts = build_fetch_response(response, 77, version)
    assert parts is not None
    by_reference = [part for part in parts if not isinstance(part, bytearray)]
    assert [id(part) for part in by_reference] == [id(large), id(larger), id(on_disk)]
    assert parts == table_frame(response, case, 77)
    size = sum(map(len, parts)) - 4
    assert bytes(parts[0][:4]) == size.to_bytes(4, "big")  # type: ignore[index]


def test_records_of_produce_are_views_of_the_frame() -> None:
    case = Case(ApiKey.PRODUCE, 9, ProduceRequest)
    data = PartitionProduceData(index=0, records=b"some records")
    message = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    frame = bytearray(encoded(message, case))
    request = parse_produce(memoryview(frame), 0, 9)
    assert request is not None
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    assert records == b"some records"


def test_a_value_that_does_not_fit_is_refused_by_the_table() -> None:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="t",
                partition_responses=[PartitionProduceResponse(index=2**31, base_offset=0)],
            )
        ]
    )
    assert build_produce_response(response, 1, 7) is None
    header = RequestHeader(api_key=ApiKey.PRODUCE, api_version=7, correlation_id=1)
    with pytest.raises(InvalidArgument, match=r"PartitionProduceResponse\.index"):
        encode_response(header, response)


def test_error_codes_can_be_written_as_members_of_the_enumeration() -> None:
    partition = PartitionProduceResponse(
        index=0, base_offset=-1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    response = ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=[partition])]
    )
    case = Case(ApiKey.PRODUCE, 7, ProduceResponse)
    built = build_produce_response(response, 1, 7)
    assert built is not None
    assert joined(built) == joined(table_frame(response, case, 1))


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, 999])
@pytest.mark.parametrize("version", [0, 9])
@pytest.mark.parametrize("client_id", [None, "", "client ä"])
def test_the_header_is_read_as_the_slow_way_reads_it(
    key: int, version: int, client_id: str | None
) -> None:
    header = Header(api_key=key, api_version=version, correlation_id=-1, client_id=client_id)
    writer = Writer()
    write_request_header(writer, header)
    data = joined(writer.parts())
    fast, slow = Reader(data), Reader(data)
    assert parse_request_header(fast) == read_request_header(slow) == header
    assert fast.position == slow.position == len(data)
    for size in range(len(data)):
        reader = Reader(data[:size])
        assert parse_request_header(reader) is None
        assert reader.position == 0


def test_a_header_with_tagged_fields_is_left_to_the_slow_way() -> None:
    data = b"\0\x0c\0\4" + b"\0\0\0\1" + b"\xff\xff" + b"\1\5\2ab"
    assert parse_request_header(Reader(data)) is None
    header, _ = decode_request(data + b"\2g" + b"\0\0\0\1" + b"\2m" + b"\0" + b"\0")
    assert header == Header(api_key=12, api_version=4, correlation_id=1)
