"""Plans and records from a node that wants to know who asks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from firnmq.errors import InvalidArgument
from firnmq.lake.plans.places import make_plan
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.plans.wire import NodeRefused, NodeUnreachable
from firnmq.lake.reading.reader import read_split
from tests.integration.admin.serving import Served
from tests.integration.security.conftest import PASSWORD, USER, Authority

TIMEOUT_S = 60


def options(secured: Served, authority: Authority, **changes: str) -> dict[str, str]:
    return {
        "bootstrap": secured.kafka,
        "topic": "lake",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": PASSWORD,
        "kafka.ssl.cafile": str(authority.certificate),
        **{f"kafka.{name.replace('_', '.')}": text for name, text in changes.items()},
    }


@pytest.fixture
def filled(secured: Served, authority: Authority) -> Served:
    producer = Producer(
        {
            "bootstrap.servers": secured.kafka,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(authority.certificate),
            "log_level": 0,
        }
    )
    for number in range(10):
        producer.produce("lake", b"%d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return secured


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_reading_with_tls_and_a_login(filled: Served, authority: Authority, mechanism: str) -> None:
    given = options(filled, authority, sasl_mechanism=mechanism)
    assert filled.token is not None
    given |= {"admin": filled.url, "admin.token": filled.token}
    (split,) = split_plan(make_plan(given))
    for each in (split, msgspec.structs.replace(split, machine="another")):
        rows = sum(batch.num_rows for batch in read_split(each, options=given))
        assert rows >= 10


def test_strangers_are_told_why(filled: Served, authority: Authority, tmp_path: Path) -> None:
    stranger = str(Authority(tmp_path, "stranger").certificate)
    with pytest.raises(NodeRefused, match=USER):
        make_plan(options(filled, authority, sasl_password="wrong"))
    with pytest.raises(NodeRefused, match="it takes"):
        make_plan(options(filled, authority, sasl_mechanism="GSSAPI"))
    with pytest.raises(NodeUnreachable, match="certificate"):
        make_plan({**options(filled, authority), "kafka.ssl.cafile": stranger})
    with pytest.raises(NodeUnreachable):
        make_plan(options(filled, authority, security_protocol="PLAINTEXT"))
    with pytest.raises(InvalidArgument, match="none of"):
        make_plan(options(filled, authority, security_protocol="TLS"))
    without = options(filled, authority)
    del without["kafka.sasl.password"]
    with pytest.raises(InvalidArgument, match=r"kafka\.sasl\.password"):
        make_plan(without)
    with pytest.raises(InvalidArgument, match="nowhere"):
        make_plan({**options(filled, authority), "kafka.ssl.cafile": "/nowhere.pem"})
