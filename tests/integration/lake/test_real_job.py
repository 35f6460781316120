"""A month of events, from a Kafka client to the object store and the lake, read back by every way.

`REAL_JOB_EVENTS` says how many events; `make test-real-job` runs it with a million.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.integration.admin.serving import Served

COUNT = int(os.environ.get("REAL_JOB_EVENTS", "100000"))
LATER = 1_000
"""Events that come after the sync: the tail, which only the log has."""
KEYS = 1_000
TAG_EVERY = 50
DAYS = 30
DAY_MS = 86_400_000
FIRST_MS = 1_900_000_000_000 // DAY_MS * DAY_MS
SHARDS = 4
TIMEOUT_S = 600


@pytest.fixture
def node(tmp_path: Path, seaweed: SeaweedServer) -> Iterator[Served]:
    settings = {
        "FIRN_TIERING_URL": f"{seaweed.url}/{secrets.token_hex(8)}",
        "FIRN_TIERING_ENDPOINT": seaweed.endpoint,
        "FIRN_TIERING_ACCESS_KEY": ACCESS_KEY,
        "FIRN_TIERING_SECRET_KEY": SECRET_KEY,
        "FIRN_TIERING_ALLOW_HTTP": "true",
        "FIRN_TIERING_INTERVAL_MS": "50",
        "FIRN_LAKE_CATALOG": f"sqlite:///{tmp_path}/catalog.db",
        "FIRN_LAKE_WAREHOUSE": f"{tmp_path.as_uri()}/tables",
    }
    served = Served(tmp_path / "data", settings=settings)
    try:
        yield served
    finally:
        assert served.stop() == 0


def time_of(number: int) -> int:
    """Spread evenly over the days, in an order that is not that of time."""
    return FIRST_MS + (number * 7919 % COUNT) * (DAYS * DAY_MS // COUNT)


def produce(node: Served, numbers: range) -> None:
    failures: list[object] = []

    def note(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    settings = {"bootstrap.servers": node.kafka, "partitioner": "murmur2_random", "linger.ms": 20}
    producer = confluent_kafka.Producer(settings)
    for number in numbers:
        headers = [("tag", b"rare")] if number % TAG_EVERY == 0 else None
        while True:
            try:
                producer.produce(
                    "events",
                    b'{"number": %d}' % number,
                    key=b"user-%d" % (number % KEYS),
                    headers=headers,
                    timestamp=time_of(number),
                    on_delivery=note,
                )
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures


def test_a_month_of_events(node: Served, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))

    def firn(*args: str) -> str:
        command = [sys.executable, "-m", "firnmq", *args, *data]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(*args: str) -> list[Any]:
        return [json.loads(line) for line in firn("read", "events", *args, "--json").splitlines()]

    # 1. Events by a Kafka client.
    options = ("tiering=on", "local.retention.ms=0", "index.key=true", "index.tag=true")
    chosen = [part for each in (*options, "segment.bytes=1048576") for part in ("-o", each)]
    firn("topic", "create", "events", "--shards", str(SHARDS), *chosen)
    produce(node, range(COUNT))
    # 2. All of them are in the object store, and no local copy is left.
    firn("tier", "upload", "--roll")
    deadline = time.monotonic() + TIMEOUT_S
    while json.loads(firn("tier", "status", "--json"))["local_bytes"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # 3. By key, tag and time through the node.
    assert len(rows("--key", "user-7", "--all")) == COUNT // KEYS
    assert json.loads(rows("--key", "user-7")[0]["value"])["number"] % KEYS == 7
    assert len(rows("--tag", "rare")) == COUNT // TAG_EVERY
    week = ("--since", str(FIRST_MS + 7 * DAY_MS), "--until", str(FIRST_MS + 14 * DAY_MS))
    expected = [each for each in range(COUNT) if 7 <= (time_of(each) - FIRST_MS) / DAY_MS < 14]
    found = rows(*week)
    assert sorted(json.loads(each["value"])["number"] for each in found) == expected
    assert len(rows(*week, "--tag", "rare")) == sum(each % TAG_EVERY == 0 for each in expected)
    # 4. In the lake, and what came since from the log.
    synced = json.loads(firn("lake", "sync", "events", "--json").splitlines()[-1])
    assert synced["row_count"] == COUNT
    produce(node, range(COUNT, COUNT + LATER))
    query = "SELECT count(*) AS n, count(DISTINCT value) AS d FROM events"
    assert json.loads(firn("lake", "sql", query, "--json")) == {
        "n": COUNT + LATER,
        "d": COUNT + LATER,
    }
