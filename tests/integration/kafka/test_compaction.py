"""Compacted topics and expired records, seen by clients that know nothing of FirnMQ."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest

from tests.integration.kafka.clients import Client
from tests.integration.kafka.conftest import MakeTopic, running
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import BASE_MS, Row, Seen

ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")
INVALID_RECORD = 87
PATIENCE_S = 60
FAR_FUTURE_MS = b"9999999999999"
KEYS = 5


@pytest.fixture(scope="module")
def tidy_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that rolls and compacts all the time."""
    often = {"FIRN_HOUSEKEEPING_MS": "50", "FIRN_STATE_SYNC_MS": "50"}
    yield from running(NodeProcess(tmp_path_factory.mktemp("tidy") / "data", often))


@pytest.fixture(params=ENGINES)
def compacted(request: pytest.FixtureRequest, tidy_node: NodeProcess, make_topic: MakeTopic) -> str:
    return make_topic(
        tidy_node,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
        segment_ms=100,
        storage_type=request.param,
    )


def eventually(
    read: Callable[[], list[Seen]], is_right: Callable[[list[Seen]], bool]
) -> list[Seen]:
    """Reads until it is as it must become; what was read last."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = read()
        if is_right(found) or time.monotonic() > deadline:
            return found


def versions(count: int) -> list[Row]:
    """Rows of a few keys, the later the newer."""
    return [
        Row(
            key=b"key-%d" % (number % KEYS),
            value=b"version-%d" % number,
            headers=(("number", b"%d" % number),),
            timestamp_ms=BASE_MS + number,
        )
        for number in range(count)
    ]


def read_all(client: Client, node: NodeProcess, topic: str, start: int = 0) -> list[Seen]:
    """Everything there is up to the end, in one go."""
    return client.read_to_end(node.address, topic, start=start)


def test_a_reader_gets_exactly_the_newest_values(
    client: Client, tidy_node: NodeProcess, compacted: str
) -> None:
    rows = versions(60)
    with client.writer(tidy_node.address, codec="gzip") as writer:
        for first in range(0, 60, 20):
            writer.write(compacted, rows[first : first + 20])
    wanted = [Seen(row=row, offset=55 + at) for at, row in enumerate(rows[-KEYS:])]
    found = eventually(
        lambda: read_all(client, tidy_node, compacted), lambda seen: len(seen) == KEYS
    )
    assert found == wanted
    assert client.bounds(tidy_node.address, compacted) == (0, 60)
    for start in (1, 30, 55, 57):
        expected = [each for each in wanted if each.offset >= start]
        assert read_all(client, tidy_node, compacted, start) == expected
    assert client.offset_at(tidy_node.address, compacted, BASE_MS + 3) == 55
    assert client.offset_at(tidy_node.address, compacted, BASE_MS + 57) == 57


def test_a_tombstone_goes_in_the_end_and_readers_still_reach_the_end(
    client: Client, tidy_node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(
        tidy_node,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
        segment_ms=100,
        delete_retention_ms=0,
    )
    with client.writer(tidy_node.address) as writer:
        writer.write(topic, [Row(key=b"a", value=b"1"), Row(key=b"b", value=b"1")])
        writer.write(topic, [Row(key=b"b", value=None)])
    found = eventually(lambda: read_all(client, tidy_node, topic), lambda seen: len(seen) == 1)
    assert [(each.offset, each.row.value) for each in found] == [(0, b"1")]
    assert read_all(client, tidy_node, topic, start=1) == []


def test_a_record_without_a_key_is_refused(
    client: Client, tidy_node: NodeProcess, compacted: str
) -> None:
    errors = (
        confluent_kafka.KafkaException,
        kafka.errors.KafkaError,
        aiokafka.errors.KafkaError,
    )
    with client.writer(tidy_node.address) as writer:
        with pytest.raises(errors) as caught:
            writer.write(compacted, [Row(value=b"v")])
        # aiokafka does not know the number.
        is_known = client.name != "aiokafka"
        assert _code(caught.value) == (INVALID_RECORD if is_known else -1)
        writer.write(compacted, [Row(key=b"k", value=b"v")])
    assert [each.row.key for each in read_all(client, tidy_node, compacted)] == [b"k"]


def _code(error: BaseException) -> int:
    if isinstance(error, confluent_kafka.KafkaException):
        return int(error.args[0].code())
    return int(getattr(error, "errno", 0))


def test_committed_transactions_survive_and_aborted_ones_do_not(
    tidy_node: NodeProcess, compacted: str, client: Client
) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": tidy_node.address, "transactional.id": f"of-{compacted}"}
    )
    producer.init_transactions(60)
    for value, is_commit in ((b"1", True), (b"never", False), (b"2", True)):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(compacted, key=b"key-%d" % number, value=value)
        producer.flush(60)
        if is_commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    found = eventually(lambda: read_all(client, tidy_node, compacted), lambda seen: len(seen) == 3)
    assert [(each.offset, each.row.key, each.row.value) for each in found] == [
        (8 + number, b"key-%d" % number, b"2") for number in range(3)
    ]


@pytest.mark.parametrize("storage_type", ENGINES)
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("indexed", [True, False])
def test_no_client_is_given_an_expired_record(
    client: Client,
    node: NodeProcess,
    make_topic: MakeTopic,
    storage_type: str,
    codec: str,
    indexed: bool,
) -> None:
    flag = str(indexed).lower()
    topic = make_topic(
        node,
        storage_type=storage_type,
        index_key=flag,
        index_tag=flag,
        expire_header="expire-at",
    )
    expiries = [None, b"1000", FAR_FUTURE_MS, b"1000", b"no number", b"1000"]
    rows = [
        Row(
            key=b"k",
            value=b"%d" % number,
            headers=() if expiry is None else (("expire-at", expiry),),
            timestamp_ms=BASE_MS + number,
        )
        for number, expiry in enumerate(expiries)
    ]
    with client.writer(node.address, codec=codec) as writer:
        writer.write(topic, rows)
    wanted = [Seen(row=rows[at], offset=at) for at in (0, 2, 4)]
    assert read_all(client, node, topic) == wanted
    for start in (1, 5):
        expected = [each for each in wanted if each.offset >= start]
        assert read_all(client, node, topic, start) == expected
    assert client.bounds(node.address, topic) == (0, 6)


def test_expiry_has_another_name_or_none(
    client: Client, node: NodeProcess, make_topic: MakeTopic
) -> None:
    rows = [
        Row(key=b"k", value=name.encode(), headers=((name, b"1000"),))
        for name in ("expire-at", "best-before")
    ]
    for option, visible in (
        ("best-before", [b"expire-at"]),
        ("none", [b"expire-at", b"best-before"]),
    ):
        topic = make_topic(node, expire_header=option)
        with client.writer(node.address) as writer:
            writer.write(topic, rows)
        assert [each.row.value for each in read_all(client, node, topic)] == visible
