"""Every version, in both directions, against two implementations that others wrote."""

from collections.abc import Iterator

import pytest

from firnmq.brokers.kafka.protocol.compiler import decode
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.schema import ArrayOf, Message
from firnmq.brokers.kafka.protocol.versions import ApiKey
from tests.unit.brokers.kafka.protocol.oracles import KafkaPython, Kio, in_version, plain
from tests.unit.brokers.kafka.protocol.samples import CASES, Case, Samples, encoded

SAMPLE_COUNT = 8
RENAMED = {
    # Ours are the names of Kafka 3.0; later descriptions made room for newer versions.
    "generation_id": {"generation_id_or_member_epoch"},
    "transactional_id": {"v3_and_below_transactional_id"},
    "producer_id": {"v3_and_below_producer_id"},
    "producer_epoch": {"v3_and_below_producer_epoch"},
    "topics": {"v3_and_below_topics"},
    "results": {"results_by_topic_v3_and_below", "results_by_partition"},
    "error_code": {"partition_error_code"},
    # kafka-python's own shorter names.
    "cluster_authorized_operations": {"authorized_operations"},
    "topic_authorized_operations": {"authorized_operations"},
}

kafka_python = KafkaPython()
kio = Kio()
KNOWN = [case for case in CASES if kafka_python.knows(case)]


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_kafka_python_agrees(case: Case) -> None:
    samples = Samples(case.version)
    for _ in range(SAMPLE_COUNT):
        message = samples.message(case)
        data = encoded(message, case)
        assert kafka_python.encode(message, case) == data
        assert kafka_python.decode(data, case) == plain(message, case.version)


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_names_and_nulls_are_those_of_the_protocol_description(case: Case) -> None:
    theirs = list(kafka_python.rows(case))
    ours = list(rows(case.message, case.version))
    assert len(ours) == len(theirs)
    for (our_name, our_null), (their_name, their_null) in zip(ours, theirs, strict=True):
        assert their_name in {our_name, *RENAMED.get(our_name, ())}
        assert our_null == their_null


def rows(message: type[Message], version: int) -> Iterator[tuple[str, bool]]:
    """Name and nullability of every field, inner structures included, in wire order."""
    for field in in_version(message, version):
        yield field.name, field.is_nullable_in(version)
        inner = field.type.element if isinstance(field.type, ArrayOf) else field.type
        if isinstance(inner, type):
            yield from rows(inner, version)


@pytest.mark.parametrize("case", [case for case in CASES if kio.class_of(case)], ids=str)
def test_kio_agrees(case: Case) -> None:
    samples = Samples(case.version, tame=True)
    for _ in range(SAMPLE_COUNT):
        message = samples.message(case)
        data = encoded(message, case)
        decoded, again = kio.decode(data, case)
        assert decoded == plain(message, case.version)
        assert again == data
        ours = decode(case.message, Reader(again), case.version, flexible=case.flexible)
        assert plain(ours, case.version) == plain(message, case.version)


def test_kafka_python_lacks_only_what_kio_knows() -> None:
    missing = {case.key for case in CASES if not kafka_python.knows(case)}
    assert missing == {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE}


def test_kio_lacks_only_what_kafka_4_removed() -> None:
    missing = {str(case) for case in CASES if kio.class_of(case) is None}
    assert missing == {
        f"Produce{direction}-v{version}"
        for direction in ("Request", "Response")
        for version in (0, 1, 2)
    }
