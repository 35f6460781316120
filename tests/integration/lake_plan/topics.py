"""Topics of a running node, filled by a Kafka client and read by plans."""

from __future__ import annotations

import http.client
import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from firnmq.lake.plans.places import PlanWarning, make_plan
from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.lake.plans.splits import TARGET_BYTES, split_plan
from firnmq.lake.reading.reader import read_split
from firnmq.lake.reading.rows import schema_of
from tests.integration.kafka.nodes import NodeProcess

_numbers = itertools.count()
TIMEOUT_S = 60


class NodeTopic:
    def __init__(
        self, node: NodeProcess, options: Mapping[str, object] | None = None, *, shards: int = 1
    ) -> None:
        self.node = node
        self.name = f"topic.{next(_numbers)}"
        self.options = {"bootstrap": node.address, "topic": self.name}
        config = {"index.key": True, "index.tag": True, "expire.header": "expire-at"}
        document = {
            "topic": self.name,
            "shard_count": shards,
            "options": {**config, **(options or {})},
        }
        self.call("POST", "/v1/topics", document)
        self.producer = producer(node)

    def call(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        host = self.node.admin_url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"}
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert response.status == status, answer
        return answer

    def fill(self, first: int, count: int, shard: int = 0) -> None:
        """Records whose values are their numbers."""
        for number in range(first, first + count):
            self.producer.produce(
                self.name,
                key=b"k%d" % (number % 10),
                value=b"%d:" % number + b"x" * (number % 100),
                headers=[("tag", b"t%d" % (number % 3))],
                timestamp=1_700_000_000_000 + number,
                partition=shard,
            )
        assert self.producer.flush(TIMEOUT_S) == 0

    def plan(self, wanted: Wanted | None = None, **options: str) -> Plan:
        return make_plan({**self.options, **options}, wanted)

    def leader_plan(self, wanted: Wanted | None = None) -> Plan:
        """As it is made where the HTTP listener cannot be reached."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanWarning)
            return self.plan(wanted, admin="127.0.0.1:1")

    def read(
        self,
        wanted: Wanted | None = None,
        columns: Sequence[str] | None = None,
        *,
        plan: Plan | None = None,
        target_bytes: int = TARGET_BYTES,
        options: Mapping[str, str] | None = None,
    ) -> pa.Table:
        plan = plan or self.plan(wanted)
        given = self.options if options is None else options
        batches = [
            batch
            for split in split_plan(plan, wanted, target_bytes)
            for batch in read_split(split, wanted, columns, given)
        ]
        table = pa.Table.from_batches(batches, schema_of(columns))
        table.validate(full=True)
        return table

    def segments(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/v1/topics/{self.name}/segments")
        return found


def producer(node: NodeProcess, **settings: object) -> Producer:
    """One that does not complain when its node is stopped."""
    quiet = {
        "bootstrap.servers": node.address,
        "linger.ms": 5,
        "batch.num.messages": 25,
        "log_level": 0,
    }
    return Producer({**quiet, **{key.replace("_", "."): each for key, each in settings.items()}})


def numbers(table: pa.Table) -> list[int]:
    """The numbers of a table's records, from their values."""
    return [int(value.partition(b":")[0]) for value in table.column("value").to_pylist()]
