"""A store under test with an object store behind it: a directory, which can be made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from firnmq.config import StoreConfig, TieringConfig, TopicConfig
from firnmq.disk import run_blocking
from firnmq.disk.files import Buffer
from firnmq.errors import StoreUnavailable
from firnmq.meta.records import NODES
from firnmq.server import LocalStore
from firnmq.server.tier import open_object_store
from firnmq.tiering.move.mover import TierMover
from firnmq.tiering.stores import ObjectInfo, ObjectStore
from firnmq.tiering.stores.api import every_key
from tests.conformance.lab import Lab, Shard


class FailingStore:
    """An ObjectStore that fails, from some call on, until it is told otherwise."""

    def __init__(self, inner: ObjectStore, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self.url = inner.url

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> ObjectInfo:
        self._plan.count(self.url)
        return self._inner.put(key, data, if_absent=if_absent)

    def upload(self, key: str, chunks: Iterable[Buffer], *, size: int) -> ObjectInfo:
        self._plan.count(self.url)
        return self._inner.upload(key, chunks, size=size)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        self._plan.count(self.url)
        return self._inner.get_range(key, start, size)

    def head(self, key: str) -> ObjectInfo:
        self._plan.count(self.url)
        return self._inner.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._plan.count(self.url)
        return self._inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._plan.count(self.url)
        self._inner.delete(keys)

    def sweep(
        self, prefix: str, *, before_ms: int, is_meant: Callable[[str], bool] = every_key
    ) -> int:
        self._plan.count(self.url)
        return self._inner.sweep(prefix, before_ms=before_ms)

    def close(self) -> None:
        self._inner.close()


class FaultPlan:
    """When a store begins to fail."""

    def __init__(self) -> None:
        self.calls_left: int | None = None
        """None: it does not."""
        self.has_failed = False

    def count(self, url: str) -> None:
        if self.calls_left is None:
            return
        if self.calls_left == 0:
            self.has_failed = True
            raise StoreUnavailable(url, "told to fail")
        self.calls_left -= 1


class TierLab(Lab):
    """A Lab whose shards are those of topics with `tiering=on`."""

    def __init__(self, path: Path, storage_type: str, *, config: StoreConfig | None = None) -> None:
        self.objects = path.with_name("objects")
        self.faults = FaultPlan()
        self._tiering = TieringConfig(
            url=f"file://{self.objects}",
            cluster="lab",
            cache_directory=path.with_name("cache"),
            cache_bytes=200_000,
        )
        super().__init__(path, storage_type, config=config)

    def _opened(self) -> LocalStore:
        return LocalStore(
            self.path,
            config=self.config,
            clock=self.clock,
            background=False,
            tiering=self._tiering,
            open_objects=lambda config: FailingStore(open_object_store(config), self.faults),
        )

    def shard(self, options: Mapping[str, object] | None = None) -> Shard:
        """The one shard of a new topic."""
        config = TopicConfig.from_options({**self.options, "tiering": "on", **(options or {})})
        name = f"topic-{next(self._names)}"
        topic = run_blocking(self.store.manager.create_topic(name, 1, config))
        return Shard(self, topic.shard_name(0))

    @property
    def mover(self) -> TierMover:
        tier = self.store.tier
        assert tier is not None
        return tier.mover

    def move(self) -> None:
        """One round of the mover, with all it has heard of by now."""
        self.settle()
        self.mover.request_upload()
        self.mover.work()
        self.settle()

    def settle(self) -> None:
        """Waits until the mover's ledger knows what the metadata says."""
        self.store.cache.wait_for_revision(self.store.meta.range(NODES).revision, 30)

    def reconfigure(self, shard: Shard, options: Mapping[str, object]) -> None:
        (topic,) = (
            each for each in self.store.catalog.topics() if shard.name in each.shard_names()
        )
        config = topic.config.with_options(options)
        run_blocking(self.store.manager.reconfigure_topic(topic.name, config))
