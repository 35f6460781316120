"""Addresses, logins and retries of the small Kafka client."""

import itertools

import pytest

from firnmq.errors import FirnError, InvalidArgument
from firnmq.lake.plans.wire import (
    NodeRefused,
    NodeUnreachable,
    Security,
    split_address,
    with_retries,
)

LEADER_NOT_AVAILABLE, TOPIC_AUTHORIZATION_FAILED = 5, 29


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("host:9093", ("host", 9093)),
        ("host", ("host", 9092)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:9093", ("::1", 9093)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_addresses(address: str, found: tuple[str, int]) -> None:
    assert split_address(address) == found


@pytest.mark.parametrize("address", ["host:", ":9092", "host:x", "host:0", "host:65536", "[]:1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidArgument):
        split_address(address)


def test_a_login_needs_all_its_parts() -> None:
    assert not Security.from_options({}).has_tls
    given = {
        "kafka.security.protocol": "sasl_ssl",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "ann",
        "kafka.sasl.password": "secret",
    }
    security = Security.from_options(given)
    assert security.has_tls
    assert security.has_login
    assert "secret" not in repr(security)
    for name in given:
        if name != "kafka.security.protocol":
            with pytest.raises(InvalidArgument):
                Security.from_options({key: text for key, text in given.items() if key != name})


def test_patience_is_for_what_may_pass() -> None:
    calls = itertools.count()

    def recovers() -> int:
        number = next(calls)
        if number == 0:
            raise NodeUnreachable("host:1", "away")
        if number == 1:
            raise NodeRefused("shard 0", LEADER_NOT_AVAILABLE)
        return number

    assert with_retries(recovers) == 2

    def refuses() -> FirnError:
        next(calls)
        raise NodeRefused("topic", TOPIC_AUTHORIZATION_FAILED)

    before = next(calls)
    with pytest.raises(NodeRefused, match="TopicAuthorization"):
        with_retries(refuses)
    assert next(calls) == before + 2

    def stays_away() -> None:
        raise NodeUnreachable("host:1", "away")

    with pytest.raises(NodeUnreachable):
        with_retries(stays_away, timeout_s=0.01)
