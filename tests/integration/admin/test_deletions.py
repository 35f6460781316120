"""Deleting records of a running node: gone for every reader, and still gone after a crash."""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import firnmq
from firnmq.errors import KeyNotFound
from tests.integration.admin.serving import TIMEOUT_S, Answer, Served, firn

COUNT = 40
KEYS = 4
_names = (f"deleting-{number}" for number in itertools.count())


def delete(node: Served, topic: str, **wanted: Any) -> Answer:
    return node.call("POST", f"/v1/topics/{topic}/deletions", wanted)


def filled(node: Served, shards: int = 1, **options: object) -> str:
    """A topic whose shard 0 has forty records of four keys and two tags, a second apart."""
    name = next(_names)
    dotted = {each.replace("_", "."): value for each, value in options.items()}
    chosen = {"index.key": True, "index.tag": True, "segment.bytes": 1024, **dotted}
    body = {"topic": name, "shard_count": shards, "options": chosen}
    assert node.call("POST", "/v1/topics", body).status == 200
    for number in range(COUNT):
        record = {
            "key": f"k{number % KEYS}",
            "value": f"value {number}",
            "tags": ["all", f"t{number % 2}"],
            "timestamp_ms": 1_000_000 + number * 1000,
        }
        path = f"/v1/topics/{name}/records"
        assert node.call("POST", path, {"records": [record], "shard": 0}).status == 200
    return name


def consumed(node: Served, topic: str, shard: int = 0, isolation: str = "read_committed") -> Any:
    """The offsets that a Kafka consumer gets from the beginning to the end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
        }
    )
    try:
        start = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, shard, start)])
        found = []
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.offset())
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(message.error())
        raise AssertionError("the end did not come")
    finally:
        consumer.close()


def timed(node: Served, topic: str, number: int) -> int:
    """The offset that Kafka gives for the timestamp of a record."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.kafka, "group.id": "reader"})
    try:
        where = confluent_kafka.TopicPartition(topic, 0, 1_000_000 + number * 1000)
        return int(consumer.offsets_for_times([where], timeout=TIMEOUT_S)[0].offset)
    finally:
        consumer.close()


def listed(node: Served, topic: str, shard: int = 0) -> list[int]:
    """The offsets that the HTTP listener shows."""
    return [each["offset"] for each in node.lines(f"/v1/topics/{topic}/records?shard={shard}")]


def check(node: Served, topic: str, live: list[int]) -> None:
    """By clients of the node: everything, and from each timestamp on."""
    assert consumed(node, topic) == live
    assert listed(node, topic) == live
    for number in (0, 7, 20):
        after = [offset for offset in live if offset >= number]
        assert timed(node, topic, number) == after[0]


def check_in(data: Path, topic: str, live: list[int], url: str | None = None) -> None:
    """By every kind of read, in a data directory that no node has open."""
    with firnmq.open(data, tiering=url) as store:
        handle = store.topic(topic)
        assert [each.offset for each in handle.records()] == live
        for tag in range(2):
            found = [each.offset for each in handle.read_by_tag(f"t{tag}", live[0])]
            assert found == [offset for offset in live if offset % 2 == tag]
        for key in range(KEYS):
            mine = [offset for offset in live if offset % KEYS == key]
            if mine:
                assert handle.read_by_key(f"k{key}").offset == mine[-1]
            else:
                with pytest.raises(KeyNotFound):
                    handle.read_by_key(f"k{key}")
        for number in range(COUNT):
            after = [offset for offset in live if offset >= number]
            expected = after[0] if after else handle.status().end_offset
            assert handle.offset_at(1_000_000 + number * 1000) == expected


WAYS: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
    "key": ({"key": "k1"}, lambda offset: offset % KEYS != 1),
    "offsets": ({"offsets": [0, 7, 8, 39], "shard": 0}, lambda at: at not in (0, 7, 8, 39)),
    "before": ({"before": 13, "shard": 0}, lambda offset: offset >= 13),
}


@pytest.mark.parametrize("storage_type", ["EngineSegment", "EngineRocksDB"])
def test_what_is_deleted_stays_so_when_the_node_is_killed(
    tmp_path: Path, storage_type: str
) -> None:
    """1. Records are deleted in three topics, one way each, and the node is killed as soon as it
    has answered. 2. The next node does not show them. 3. Nor does the data directory itself, by
    any kind of read, and nothing is wrong with it."""
    data = tmp_path / "data"
    live: dict[str, list[int]] = {}
    node = Served(data)
    for way, (wanted, is_live) in WAYS.items():
        topic = filled(node, storage_type=storage_type)
        live[topic] = [offset for offset in range(COUNT) if is_live(offset)]
        answer = delete(node, topic, **wanted)
        node.process.kill()
        assert (answer.status, answer.document[0]["deleted"]) == (200, True), (way, answer)
        assert node.stop() == -9
        node = Served(data)
    try:
        for topic, left in live.items():
            check(node, topic, left)
    finally:
        assert node.stop() == 0
    for topic, left in live.items():
        check_in(data, topic, left)
    verified = firn("verify", "--data", str(data))
    assert verified.returncode == 0, verified.stdout


def test_each_way_and_what_it_tells(node: Served) -> None:
    topic = filled(node)
    # A consumer that has read all of it before: nothing it was given is kept for the next one.
    assert consumed(node, topic) == list(range(COUNT))
    place = {"topic": topic, "shard": 0}
    nothing = {"offsets": None, "key_below": None, "start_before": None}
    by_key = delete(node, topic, key="k1").document
    told = {"start_offset": 0, "deleted": True, "key_below": COUNT, "end_offset": COUNT + 1}
    assert by_key == [{**place, **nothing, **told}]
    by_offset = delete(node, topic, offsets=[1, 2, 3], shard=0).document
    told = {"start_offset": 0, "deleted": True, "offsets": [1, 2, 3], "end_offset": COUNT + 2}
    assert by_offset == [{**place, **nothing, **told}]
    before = delete(node, topic, before=20, shard=0).document
    told = {"start_offset": 20, "deleted": True, "start_before": 0, "end_offset": COUNT + 2}
    assert before == [{**place, **nothing, **told}]
    live = [offset for offset in range(20, COUNT) if offset % KEYS != 1]
    check(node, topic, live)
    node.wait_for_log(lambda line: f"records_deleted topic={topic} shard=0 by=before" in line)
    node.wait_for_log(lambda line: f"path=/v1/topics/{topic}/deletions" in line)
    # What comes later is not meant.
    path = f"/v1/topics/{topic}/records"
    node.call("POST", path, {"records": [{"key": "k1", "value": "new"}]})
    assert consumed(node, topic) == [*live, COUNT + 2]


def test_a_key_is_found_where_other_clients_put_it(node: Served) -> None:
    """Java's clients choose a partition by murmur2, ours by CRC-32, and anybody may name one."""
    topic = next(_names)
    node.call("POST", "/v1/topics", {"topic": topic, "shard_count": 4})
    places: dict[bytes, set[int]] = {}

    def note(error: object, message: Any) -> None:
        assert error is None
        places.setdefault(message.key(), set()).add(message.partition())

    for partitioner in ("murmur2_random", "consistent_random"):
        settings = {"bootstrap.servers": node.kafka, "partitioner": partitioner}
        producer = confluent_kafka.Producer(settings)
        for number in range(20):
            producer.produce(topic, b"v", key=b"user-%d" % number, on_delivery=note)
        assert producer.flush(TIMEOUT_S) == 0
    key, found = next((key, found) for key, found in places.items() if len(found) == 2)
    assert zlib.crc32(key) % 4 in found
    before = [len(consumed(node, topic, shard)) for shard in range(4)]
    done = delete(node, topic, key=key.decode()).document
    assert [each["shard"] for each in done] == [0, 1, 2, 3]
    after = [len(consumed(node, topic, shard)) for shard in range(4)]
    gone = [count - left for count, left in zip(before, after, strict=True)]
    assert gone == [int(shard in found) for shard in range(4)]


def test_a_transaction_that_has_not_ended_keeps_its_records(node: Served) -> None:
    """1. A key has a record, then one in an open transaction. 2. The key is deleted: the answer
    says up to where. 3. The transaction is committed, and its record is there."""
    topic = filled(node)
    settings = {"bootstrap.servers": node.kafka, "transactional.id": topic}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"later", key=b"k1", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    (done,) = delete(node, topic, key="k1").document
    assert (done["key_below"], done["end_offset"]) == (COUNT, COUNT + 2)
    producer.commit_transaction(TIMEOUT_S)
    live = [offset for offset in range(COUNT) if offset % KEYS != 1]
    assert consumed(node, topic) == [*live, COUNT]


@pytest.mark.parametrize(
    ("wanted", "status", "error"),
    [
        ({}, 400, "InvalidArgument"),
        ({"key": "a", "offsets": [1]}, 400, "InvalidArgument"),
        ({"key": "a", "key_base64": "YQ=="}, 400, "InvalidRecord"),
        ({"key": 5}, 400, "InvalidArgument"),
        ({"keys": ["a"]}, 400, "InvalidArgument"),
        ({"offsets": [0]}, 400, "InvalidArgument"),
        ({"offsets": 0, "shard": 0}, 400, "InvalidArgument"),
        ({"offsets": [-1], "shard": 0}, 400, "InvalidArgument"),
        ({"offsets": [40], "shard": 0}, 416, "OffsetOutOfRange"),
        ({"before": 41, "shard": 0}, 416, "OffsetOutOfRange"),
        ({"before": 1, "shard": 2}, 404, "ShardNotFound"),
    ],
)
def test_what_is_refused(
    node: Served, untouched: str, wanted: dict[str, Any], status: int, error: str
) -> None:
    answer = delete(node, untouched, **wanted)
    assert (answer.status, answer.document["error"]) == (status, error), answer
    if error == "OffsetOutOfRange":
        assert f"of shard 0 of topic '{untouched}' is outside" in answer.document["message"]
    assert listed(node, untouched) == list(range(COUNT))


@pytest.fixture(scope="module")
def untouched(node: Served) -> str:
    return filled(node, shards=2)


def test_a_topic_that_is_not_there(node: Served) -> None:
    answer = delete(node, "nowhere", key="a")
    assert (answer.status, answer.document["error"]) == (404, "TopicNotFound")


def test_a_compacted_topic_is_not_cut(node: Served) -> None:
    topic = filled(node, cleanup_policy="compact")
    answer = delete(node, topic, before=3, shard=0)
    assert (answer.status, answer.document["error"]) == (400, "InvalidArgument")
    assert "cleanup.policy" in answer.document["message"]
    assert delete(node, topic, key="k2").document[0]["deleted"]
    assert all(offset % KEYS != 2 for offset in consumed(node, topic))


def test_it_is_guarded_like_every_change(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame\n")
    allowed = {"Authorization": "Bearer sesame"}
    served = Served(tmp_path / "data", settings={"FIRN_ADMIN_TOKEN_FILE": str(token)})
    try:
        served.call("POST", "/v1/topics", {"topic": "t"}, allowed)
        served.call("POST", "/v1/topics/t/records", {"records": [{"value": "x"}]}, allowed)
        path, body = "/v1/topics/t/deletions", {"offsets": [0]}
        none = {"Authorization": ""}
        assert served.call("POST", path, body, none).status == 401
        form = {**allowed, "Content-Type": "application/x-www-form-urlencoded"}
        assert served.call("POST", path, body, form).status == 415
        away = {**allowed, "Host": "evil.example"}
        assert served.call("POST", path, body, away).status == 421
        assert consumed(served, "t") == [0]
        refused = firn("--node", served.url, "delete", "t", "--offset", "0", "--yes")
        assert (refused.returncode, "token" in refused.stderr) == (1, True)
        assert served.call("POST", path, body, allowed).document[0]["offsets"] == [0]
        assert consumed(served, "t") == []
    finally:
        assert served.stop() == 0


def test_the_openapi_document_describes_it(node: Served) -> None:
    document = node.get("/openapi.json")
    call = document["paths"]["/v1/topics/{topic}/deletions"]["post"]
    taken = call["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    wanted = document["components"]["schemas"][taken.rpartition("/")[2]]
    assert set(wanted["properties"]) == {"key", "key_base64", "offsets", "before", "shard"}
    assert wanted["additionalProperties"] is False


# The command -----------------------------------------------------------------------------------


def test_the_command_through_a_node(node: Served, run, documents) -> None:
    topic = filled(node, shards=2)
    asked = run("delete", topic, "--key", "k1", stdin="n\n")
    assert asked.exit_code == 1
    assert f"Delete all records of key k1 from topic {topic}, all 2 shards? [y/N]" in asked.stdout
    assert listed(node, topic) == list(range(COUNT))
    done = run("delete", topic, "--key", "k1", stdin="y\n")
    assert f"{topic} shard 0: deleted the records of key k1 below offset 40\n" in done.stdout
    assert "shard 1" not in done.stdout.split("\n", 1)[1]
    shown = run("delete", topic, "--offset", "2", "--offset", "1", "--shard", "0", "--yes")
    assert shown.stdout == f"{topic} shard 0: deleted 2 records at offsets 1, 2\n"
    (moved,) = documents("delete", topic, "--before", "10", "--shard", "0", "--yes")
    assert (moved["start_before"], moved["start_offset"], moved["deleted"]) == (0, 10, True)
    assert listed(node, topic) == [at for at in range(10, COUNT) if at % KEYS != 1]
    refused = run("delete", topic, "--offset", "42", "--shard", "0", "--yes")
    assert (refused.exit_code, "outside [10, 42)" in refused.stderr) == (1, True)
    missing = run("delete", "nowhere", "--key", "k", "--yes")
    assert (missing.exit_code, "firn topic list" in missing.stderr) == (1, True)


def test_node_and_directory_tell_the_same(node: Served, tmp_path: Path, documents) -> None:
    """And the directory of a node that runs is left alone."""
    topic = filled(node)
    data = str(tmp_path / "data")
    assert firn("topic", "create", topic, "--data", data).returncode == 0
    values = "".join(f"value {number}\n" for number in range(COUNT))
    assert firn("produce", topic, "--file", "-", "--data", data, stdin=values).returncode == 0
    for args in (["--offset", "3"], ["--before", "2"], ["--key", "nobody"]):
        (through,) = documents("delete", topic, *args, "--yes")
        local = firn("delete", topic, *args, "--yes", "--json", "--data", data)
        assert json.loads(local.stdout) == through
    in_use = node.get("/v1/node")["data"]
    through_its_node = firn("delete", topic, "--offset", "5", "--yes", "--data", in_use)
    assert through_its_node.returncode == 0, through_its_node.stderr
    assert 5 not in listed(node, topic)


# Tiered ----------------------------------------------------------------------------------------


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Served]:
    settings = {
        "FIRN_TIERING_URL": f"file://{tmp_path}/objects",
        "FIRN_TIERING_INTERVAL_MS": "50",
    }
    served = Served(tmp_path / "data", settings=settings)
    yield served
    if served.process.poll() is None:
        assert served.stop() == 0


def test_records_that_are_only_in_the_object_store(tiered: Served, tmp_path: Path) -> None:
    """1. All but the active segment is cold. 2. A key, some offsets and a start are deleted there.
    3. The node is killed. 4. No read finds them any more."""
    topic = filled(tiered, tiering="on", local_retention_ms=0)

    def cold_end() -> int:
        rows = tiered.get(f"/v1/topics/{topic}/segments")
        cold = [row["end_offset"] for row in rows if not row["is_local"]]
        return max(cold, default=0)

    deadline = time.monotonic() + TIMEOUT_S
    while cold_end() < 30:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert consumed(tiered, topic) == list(range(COUNT))
    assert delete(tiered, topic, key="k1").document[0]["deleted"]
    assert delete(tiered, topic, offsets=[20, 22], shard=0).document[0]["offsets"] == [20, 22]
    assert delete(tiered, topic, before=10, shard=0).document[0]["start_offset"] == 10
    tiered.process.kill()
    assert tiered.stop() == -9
    live = [at for at in range(10, COUNT) if at % KEYS != 1 and at not in (20, 22)]
    url = f"file://{tmp_path}/objects"
    again = Served(tmp_path / "data", settings={"FIRN_TIERING_URL": url})
    try:
        rows = again.get(f"/v1/topics/{topic}/segments")
        assert not all(row["is_local"] for row in rows)
        check(again, topic, live)
    finally:
        assert again.stop() == 0
    check_in(tmp_path / "data", topic, live, url)
