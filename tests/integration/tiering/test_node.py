"""A whole node with a real S3 server: Kafka clients, the command line, metrics, and its loss."""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from firnmq.config import TieringConfig
from firnmq.testing.fault_proxy import Fault, FaultProxy
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.integration.admin.serving import Served, firn

TIMEOUT_S = 60
COUNT = 400


def variables(config: TieringConfig, **more: object) -> dict[str, str]:
    """The settings as a node gets them from its environment."""
    fields = {
        "url": config.url,
        "endpoint": config.endpoint,
        "region": config.region,
        "access_key": config.access_key,
        "secret_key": config.secret_key,
        "allow_http": "true",
        "interval_ms": "50",
        "retry_ms": "10",
        "retry_ms_max": "100",
        **more,
    }
    return {
        f"FIRN_TIERING_{name.upper()}": str(value)
        for name, value in fields.items()
        if value is not None
    }


@pytest.fixture
def settings(s3_tiering: TieringConfig) -> dict[str, str]:
    return variables(s3_tiering)


@pytest.fixture
def node(tmp_path: Path, settings: dict[str, str]) -> Iterator[Served]:
    served = Served(tmp_path / "data", settings=settings)
    yield served
    if served.process.poll() is None:
        assert served.stop() == 0


def make_topic(node: Served, **options: object) -> None:
    dotted = {name.replace("_", "."): value for name, value in options.items()}
    body = {
        "topic": "history",
        "options": {"tiering": "on", "segment.bytes": 4096, "local.retention.ms": 0, **dotted},
    }
    answer = node.call("POST", "/v1/topics", body)
    assert answer.status == 200, answer


def produce(node: Served, first: int, count: int) -> None:
    failed: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.kafka, "enable.idempotence": True, "linger.ms": 0}
    )

    def note(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(first, first + count):
        producer.produce("history", b"value-%d" % number + b"x" * 40, partition=0, on_delivery=note)
        if number % 10 == 0:
            producer.flush()  # Many small batches make many segments.
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def consume(node: Served, count: int) -> list[bytes]:
    """Everything from the beginning on, by one consumer in one go."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition("history", 0, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(values) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(values), timeout=1):
                assert message.error() is None, message.error()
                values.append(message.value())
        return values
    finally:
        consumer.close()


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wanted(count: int) -> list[bytes]:
    return [b"value-%d" % number + b"x" * 40 for number in range(count)]


def test_from_the_first_cold_segment_to_the_live_tail(
    node: Served, settings: dict[str, str], tmp_path: Path
) -> None:
    """1. A client writes; what is sealed goes to S3 and is dropped. 2. A client reads all of it,
    cold and hot, in one go. 3. Operators see it. 4. The machine is lost. 5. The history is not."""
    make_topic(node)
    produce(node, 0, COUNT)

    def is_moved() -> bool:
        here = [row["state"] for row in node.get("/v1/topics/history/segments") if row["is_local"]]
        found = node.get("/v1/tier")  # It learns of segments a little later.
        return here == ["active"] and found["waiting_segments"] == found["local_segments"] == 0

    wait_until(is_moved)
    assert len(node.get("/v1/topics/history/segments")) > 5
    assert consume(node, COUNT) == wanted(COUNT)

    assert node.get("/v1/node")["tiering"] == "ok"
    assert node.metric("firn_tier_up") == 1
    assert node.metric("firn_tier_uploads_total") > 4
    assert node.metric("firn_tier_waiting_segments") == 0
    assert node.metric("firn_cold_read_bytes_total") > 0
    assert node.metric('firn_tier_failures_total{kind="unavailable"}') == 0
    shown = firn("--node", node.url, "tier", "status")
    assert (shown.returncode, "history" in shown.stdout) == (0, True), shown
    scrubbed = firn("--node", node.url, "tier", "scrub", "--grace-ms", "0", "--json")
    assert json.loads(scrubbed.stdout)["orphan_count"] == 0, scrubbed

    uploaded = firn("--node", node.url, "tier", "upload", "history", "--roll", "--json")
    assert (uploaded.returncode, json.loads(uploaded.stdout)["waiting_segments"]) == (0, 0)
    node.process.kill()
    node.stop()
    shutil.rmtree(tmp_path / "data")
    new = str(tmp_path / "new")
    recovered = firn("recover", "--data", new, "--json", **settings)
    shard = json.loads(recovered.stdout)["topics"][0]["shards"][0]
    assert (shard["start_offset"], shard["end_offset"]) == (0, COUNT), recovered
    again = firn("recover", "--data", new, **settings)
    assert (again.returncode, "not empty" in again.stderr) == (2, True)
    served = Served(tmp_path / "new", settings=settings)
    try:
        assert consume(served, COUNT) == wanted(COUNT)
        produce(served, COUNT, 20)
        assert consume(served, COUNT + 20) == wanted(COUNT + 20)
    finally:
        assert served.stop() == 0


def test_a_store_that_is_down_is_seen_and_bounded(tmp_path: Path) -> None:
    """1. The store is stopped. 2. Clients write on until more waits than is allowed, then they are
    held. 3. The operator sees what waits and why. 4. The store is back, and all is written."""
    server = SeaweedServer(tmp_path / "weed")
    config = TieringConfig(
        url=server.url,
        endpoint=server.endpoint,
        region="us-east-1",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        allow_http=True,
    )
    limits = {"timeout_ms": 500, "connect_timeout_ms": 500, "retries": 0, "backlog_bytes": 30_000}
    node = Served(tmp_path / "data", settings=variables(config, **limits))
    try:
        make_topic(node)
        server.pause()
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": node.kafka, "enable.idempotence": True, "retry.backoff.ms": 20}
        )
        failed: list[object] = []
        number = 0
        while not node.get("/v1/tier")["is_holding_appends"]:
            for _ in range(20):
                producer.produce(
                    "history",
                    b"value-%d" % number + b"x" * 40,
                    partition=0,
                    on_delivery=lambda error, _: error and failed.append(error),
                )
                number += 1
            producer.flush(2)
        wait_until(lambda: node.get("/v1/tier")["state"] == "unavailable")
        shown = firn("--node", node.url, "tier", "status")
        assert "unavailable" in shown.stdout
        assert "appends to tiered topics are refused" in shown.stdout
        assert node.metric("firn_tier_up") == 0
        assert node.metric("firn_tier_appends_held") == 1
        assert node.metric('firn_tier_failures_total{kind="unavailable"}') > 0
        waiting = node.get("/v1/tier")
        assert waiting["waiting_bytes"] > 30_000
        assert waiting["waiting"][0]["why"]
        end_offset = node.get("/v1/topics/history")["shards"][0]["end_offset"]
        for _ in range(200):
            producer.produce("history", b"value-%d" % number + b"x" * 40, partition=0)
            number += 1
        assert producer.flush(2) >= 200
        assert node.get("/v1/topics/history")["shards"][0]["end_offset"] == end_offset
        assert node.get("/v1/tier")["waiting_bytes"] == waiting["waiting_bytes"]
        server.resume()
        assert producer.flush(TIMEOUT_S) == 0
        assert failed == []
        wait_until(lambda: node.get("/v1/tier")["waiting_segments"] == 0)
        assert consume(node, number) == wanted(number)
    finally:
        server.resume()
        assert node.stop() == 0
        server.stop()


def test_a_node_without_a_store_says_so(tmp_path: Path) -> None:
    node = Served(tmp_path / "data")
    try:
        answer = node.call("GET", "/v1/tier")
        assert (answer.status, answer.document["error"]) == (409, "NoTiering")
        assert node.get("/v1/node")["tiering"] is None
        shown = firn("--node", node.url, "tier", "status")
        assert (shown.returncode, "FIRN_TIERING_URL" in shown.stderr) == (1, True)
        make_topic(node)
        node.wait_for_log(lambda line: "without_store topics=1 first=history" in line)
        made = firn("--node", node.url, "topic", "create", "more", "--option", "tiering=on")
        assert made.returncode == 0
        assert "warning: tiering=on, but the node has no object store" in made.stderr
    finally:
        assert node.stop() == 0
    again = Served(tmp_path / "data")
    try:
        again.wait_for_log(lambda line: "without_store topics=2 first=history" in line)
    finally:
        assert again.stop() == 0


def test_consumers_of_what_only_the_missing_store_has(tmp_path: Path) -> None:
    """1. A topic's one segment goes to the object store alone. 2. A node is started without the
    store. 3. A consumer asks and gets nothing: the node says so once, wherever it shows problems.
    """
    data, settings = tmp_path / "data", {"FIRN_TIERING_URL": f"file://{tmp_path}/objects"}
    for command in (
        ("topic", "create", "cold", "-o", "tiering=on", "-o", "local.retention.ms=0"),
        ("produce", "cold", "three"),
        ("tier", "upload", "--roll"),
        ("tier", "upload"),
    ):
        assert firn(*command, "--data", str(data), **settings).returncode == 0
    node = Served(data)
    try:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": node.kafka, "group.id": "g"})
        consumer.assign([confluent_kafka.TopicPartition("cold", 0, 0)])
        node.wait_for_log(lambda line: "object_store_missing" in line)
        consumer.close()
        told = [line for line in node.log if "object_store_missing" in line]
        assert len(told) == 1
        assert "shard 0 of topic 'cold'" in told[0]
        assert "FIRN_TIERING_URL" in told[0]
        assert node.metric("firn_shards_without_object_store") == 1
        readiness = node.call("GET", "/health/ready")
        assert (readiness.status, b"object_store_missing" in readiness.raw) == (503, True)
        [shard] = node.get("/v1/topics/cold")["shards"]
        assert "FIRN_TIERING_URL" in shard["failure"]
    finally:
        assert node.stop() == 0


def test_a_data_directory_without_a_node(tmp_path: Path) -> None:
    data, settings = str(tmp_path / "data"), {"FIRN_TIERING_URL": f"file://{tmp_path}/objects"}

    def run(*args: str, stdin: str | None = None, is_well: bool = True) -> str:
        done = firn(*args, "--data", data, stdin=stdin, **settings)
        assert (done.returncode == 0) is is_well, done
        return done.stdout

    run("topic", "create", "history", "--option", "tiering=on")
    run("produce", "history", "--file", "-", stdin="one\ntwo\n")
    assert json.loads(run("tier", "status", "--json"))["waiting_segments"] == 0
    assert "in the store: 1 segment" in run("tier", "upload", "--roll")
    assert "orphans   0" in run("tier", "scrub", "--dry-run")
    run(
        *("topic", "create", "cold", "--option", "tiering=on"),
        *("--option", "local.retention.ms=0"),
    )
    run("produce", "cold", "three")
    run("tier", "upload", "--roll")
    run("tier", "upload")
    status = json.loads(run("tier", "status", "--json"))
    assert status["state"] == "ok", "the store was asked"
    assert [row["local_segments"] for row in status["topics"]] == [0, 1]
    assert "three" in run("read", "cold")
    assert run("verify").endswith("checked 1 copy in the object store\nnothing is wrong\n")
    settings["FIRN_TIERING_URL"] = f"file://{tmp_path}/typo"
    for looks in (("tier", "status"), ("tier", "scrub"), ("read", "cold"), ("recover",)):
        place = str(tmp_path / "new") if looks == ("recover",) else data
        done = firn(*looks, "--data", place, **settings)
        assert done.returncode == 1
        assert "typo: the directory does not exist; check the URL" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"data", "objects"}
    settings.clear()
    run("tier", "status", is_well=False)
    refused = firn("read", "cold", "--data", data)
    assert refused.returncode == 1
    for way in ("FIRN_TIERING_URL", "[tiering]", "--config", "FIRN_CONFIG"):
        assert way in refused.stderr
    assert "one" in run("read", "history")
    assert run("verify").endswith("in what was checked; NOT checked: 1 cold segment\n")
    file = tmp_path / "firn.toml"
    file.write_text(f'[kafka]\nport = 0\n[tiering]\nurl = "file://{tmp_path}/objects"\n')
    assert "three" in run("read", "cold", "--config", str(file))
    settings["FIRN_CONFIG"] = str(file)
    assert "three" in run("read", "cold")


def test_an_upload_that_is_asked_for_does_not_fail_by_what_was_before(
    tmp_path: Path, s3_tiering: TieringConfig, seaweed: SeaweedServer
) -> None:
    """1. The store is down, and the node waits long. 2. It is back. 3. `firn tier upload` works."""
    proxy = FaultProxy(("127.0.0.1", seaweed.port))
    config = dataclasses.replace(s3_tiering, endpoint=proxy.endpoint)
    settings = variables(config, retries=0, retry_ms=600_000, retry_ms_max=600_000)
    node = Served(tmp_path / "data", settings=settings)
    try:
        make_topic(node)
        with proxy.injected(Fault(status=503)):
            produce(node, 0, COUNT)
            wait_until(lambda: node.metric("firn_tier_up") == 0)
            failed = firn("--node", node.url, "tier", "upload")
            assert (failed.returncode, "503 Service" in failed.stderr) == (1, True), failed
            shown = firn("--node", node.url, "tier", "status").stdout
            assert shown.count("503 Service") == 1, shown  # Times and ids may have a 503, too.
            assert "times in a row, last at" in shown
        uploaded = firn("--node", node.url, "tier", "upload")
        assert (uploaded.returncode, uploaded.stderr) == (0, ""), uploaded
        assert "still waiting: 0 segments" in uploaded.stdout
    finally:
        assert node.stop() == 0
        proxy.stop()
