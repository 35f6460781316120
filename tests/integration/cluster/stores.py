"""Nodes of a cluster in this process, without listeners for clients: their stores and what joins
them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from firnmq.adapter.forwarding import ClusterDriver
from firnmq.cluster.config import ClusterConfig
from firnmq.config import MetaConfig, TieringConfig, TopicConfig
from firnmq.disk import run_blocking
from firnmq.engines.engine import LogEngine
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.server.member import ClusterMember

TOPIC = "t"


class Stores:
    """Numbered from 1 on."""

    def __init__(self, path: Path, count: int = 2, tiering: TieringConfig | None = None) -> None:
        self.path = path
        self._tiering = tiering
        self._opened: dict[int, ExitStack] = {}
        self.stores: dict[int, LocalStore] = {}
        for number in range(1, count + 1):
            self.open(number)

    def __getitem__(self, number: int) -> LocalStore:
        return self.stores[number]

    def open(self, number: int) -> LocalStore:
        config = ClusterConfig(enabled=True, meta_file=self.path / "cluster.db")
        member = ClusterMember(config, MetaConfig(), number)
        stack = ExitStack()
        store = LocalStore(
            self.path / f"node{number}", member=member, background=False, tiering=self._tiering
        )
        stack.callback(store.close)
        member.register(store.clock, store.health, "127.0.0.1:1", "", lambda: None)
        stack.callback(member.unregister)
        self._opened[number], self.stores[number] = stack, store
        for other in self.stores.values():
            assert other.member is not None
            other.member.cluster.catch_up()
        return store

    def close(self, *numbers: int) -> None:
        for number in numbers or list(self.stores):
            del self.stores[number]
            self._opened.pop(number).close()

    # What tests do ------------------------------------------------------------------------------

    def create(self, shards: int = 1, options: Mapping[str, object] | None = None) -> None:
        config = TopicConfig.from_options(
            {"segment.bytes": 1_000_000, "index.key": "true", **(options or {})}
        )
        run_blocking(self.any.manager.create_topic(TOPIC, shards, config))
        self.catch_up()

    def catch_up(self) -> None:
        for store in self.stores.values():
            assert store.member is not None
            store.member.cluster.catch_up()

    @property
    def any(self) -> LocalStore:
        return next(iter(self.stores.values()))

    def shard(self, seq: int = 0) -> str:
        return self.any.catalog.get(TOPIC).shard_name(seq)

    def driver(self, number: int) -> ClusterDriver:
        driver = self[number].manager.driver_of(TOPIC)
        assert isinstance(driver, ClusterDriver)
        return driver

    def engine(self, number: int) -> LogEngine:
        return self[number]._log_engines["EngineSegment"]

    def leader(self, shard: str) -> int:
        member = self.any.member
        assert member is not None
        self.catch_up()
        led = member.cluster.leaders.get(shard)
        assert led is not None
        return led.leader

    def write(self, number: int, shard: str, *records: NewRecord) -> int:
        return run_blocking(self.driver(number).batch_write(shard, records)).base_offset

    def move(self, number: int, shard: str, to: int) -> None:
        """Asks one node to move a shard."""
        run_blocking(self.driver(number).move(shard, to))

    def values(self, number: int, shard: str, start: int = 0) -> list[bytes]:
        """All records from an offset on, read through a node."""
        found: list[bytes] = []
        while True:
            page = run_blocking(
                self.driver(number).read_by_offset(
                    shard, start, max_records=10_000, max_bytes=2**30
                )
            )
            found += [bytes(record.value or b"") for record in page.records()]
            if page.next_offset >= page.end_offset:
                return found
            start = page.next_offset
