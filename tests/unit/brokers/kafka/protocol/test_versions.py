import pytest
from kafka.protocol.metadata import ApiVersionsResponse as TheirResponse
from kio.schema.errors import ErrorCode as KioErrorCode

from firnmq.brokers.kafka.protocol import (
    ADVERTISED,
    ApiKey,
    ErrorCode,
    RequestHeader,
    api_versions_response,
    decode_response,
    encode_request,
    encode_response,
    is_supported,
    refuse_api_versions,
)
from firnmq.brokers.kafka.protocol.catalog import REQUESTS, RESPONSES
from firnmq.brokers.kafka.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from firnmq.errors import InvalidArgument
from tests.unit.brokers.kafka.protocol.samples import joined


def test_every_api_has_versions_and_messages() -> None:
    assert set(ADVERTISED) == set(REQUESTS) == set(RESPONSES) == set(ApiKey)
    for key, versions in ADVERTISED.items():
        assert 0 <= versions.first <= versions.last
        stem = REQUESTS[key].__name__.removesuffix("Request")
        assert RESPONSES[key].__name__ == f"{stem}Response"


@pytest.mark.parametrize(
    ("key", "version"),
    [
        # Old versions by which librdkafka decides what a broker can do.
        (ApiKey.FIND_COORDINATOR, 0),
        (ApiKey.JOIN_GROUP, 0),
        (ApiKey.SYNC_GROUP, 0),
        (ApiKey.HEARTBEAT, 0),
        (ApiKey.LEAVE_GROUP, 0),
        (ApiKey.OFFSET_FETCH, 1),
        (ApiKey.OFFSET_COMMIT, 2),
        (ApiKey.LIST_OFFSETS, 1),
        (ApiKey.INIT_PRODUCER_ID, 0),
        (ApiKey.SASL_HANDSHAKE, 0),
        (ApiKey.SASL_HANDSHAKE, 1),
        (ApiKey.FETCH, 4),
        (ApiKey.FETCH, 10),
        (ApiKey.PRODUCE, 0),
        (ApiKey.PRODUCE, 3),
        (ApiKey.PRODUCE, 7),
        # kafka-python needs this one to describe a cluster.
        (ApiKey.DESCRIBE_CLUSTER, 1),
    ],
)
def test_versions_that_clients_look_for(key: ApiKey, version: int) -> None:
    assert is_supported(key, version)


@pytest.mark.parametrize("key", [71, 72, 76, 38])
def test_apis_that_clients_must_not_find(key: int) -> None:
    assert not is_supported(key, 0)


@pytest.mark.parametrize("version", range(4))
def test_kafka_python_reads_our_api_versions(version: int) -> None:
    header = RequestHeader(api_key=18, api_version=version, correlation_id=3)
    frame = joined(encode_response(header, api_versions_response(throttle_time_ms=0)))
    theirs = TheirResponse.decode(frame, version=version, header=True, framed=True)
    assert theirs.header.correlation_id == 3
    assert {key.api_key: (key.min_version, key.max_version) for key in theirs.api_keys} == {
        key: (versions.first, versions.last) for key, versions in ADVERTISED.items()
    }


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    frame = joined(refuse_api_versions(9))
    correlation_id, response = decode_response(ApiKey.API_VERSIONS, 0, frame[4:])
    assert correlation_id == 9
    assert response == api_versions_response(ErrorCode.UNSUPPORTED_VERSION)
    # What a client that asked in version 4 makes of it.
    theirs = TheirResponse.decode(frame, version=4, header=True, framed=True)
    assert theirs.error_code == 35
    assert len(theirs.api_keys) == len(ADVERTISED)


def test_messages_go_only_with_their_own_api() -> None:
    header = RequestHeader(api_key=ApiKey.FETCH, api_version=4, correlation_id=1)
    with pytest.raises(InvalidArgument):
        encode_response(header, HeartbeatResponse())
    with pytest.raises(InvalidArgument):
        encode_request(header, HeartbeatRequest(group_id="", generation_id=0, member_id=""))
    newer = RequestHeader(api_key=ApiKey.HEARTBEAT, api_version=5, correlation_id=1)
    with pytest.raises(InvalidArgument):
        encode_response(newer, HeartbeatResponse())
    with pytest.raises(InvalidArgument):
        decode_response(ApiKey.HEARTBEAT, 5, b"")


def test_error_codes_have_the_numbers_of_the_protocol() -> None:
    theirs = {code.name.upper(): code.value for code in KioErrorCode}
    assert {code.name: code.value for code in ErrorCode}.items() <= theirs.items()
    assert sorted(ErrorCode) == list(range(-1, 134))
