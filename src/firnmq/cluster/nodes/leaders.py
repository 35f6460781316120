"""Which node leads each shard, as this node's cache knows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from firnmq.clock import Clock, SystemClock
from firnmq.meta import Event, MetaCache
from firnmq.meta.records import SHARDS, ShardRecord, decode

_JUST_MS = 60_000


class Led(NamedTuple):
    """A shard and the node of its active segment."""

    uid: int
    leader: int
    epoch: int


class Leaders:
    """Safe with threads: changed by the cache's thread alone."""

    def __init__(self, cache: MetaCache, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._moved_ms: dict[str, int] = {}
        """Shards that have got another leader of late, and when this node learned of it."""
        self._by_shard: dict[str, Led] = {}
        self._counts: Counter[int] = Counter()
        self._shards_of: dict[str, dict[str, None]] = {}
        """By topic id; a dictionary, because copying its keys is safe while it changes."""
        cache.listen(SHARDS, self._follow)

    def __len__(self) -> int:
        return len(self._by_shard)

    def get(self, shard: str) -> Led | None:
        return self._by_shard.get(shard)

    def has_just_moved(self, shard: str) -> bool:
        """Whether the shard has got another leader within the last minute."""
        moved_ms = self._moved_ms.get(shard)
        if moved_ms is None:
            return False
        if self._clock.steady_ms() - moved_ms < _JUST_MS:
            return True
        self._moved_ms.pop(shard, None)
        return False

    def count_of(self, node: int) -> int:
        """Shards that a node leads."""
        return self._counts[node]

    def shards_of(self, topic_id: str) -> list[str]:
        """All shards of a topic, those included that it does not count yet."""
        return sorted(self._shards_of.get(topic_id, ()))

    def led_by(self, node: int) -> Iterator[tuple[str, Led]]:
        return ((name, led) for name, led in list(self._by_shard.items()) if led.leader == node)

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            name = event.key.removeprefix(SHARDS)
            topic_id = name.rpartition("_")[0]
            before = self._by_shard.get(name)
            if before is not None:
                self._counts[before.leader] -= 1
            if event.entry is None:
                self._by_shard.pop(name, None)
                self._moved_ms.pop(name, None)
                shards = self._shards_of.get(topic_id, {})
                shards.pop(name, None)
                if not shards:
                    self._shards_of.pop(topic_id, None)
                continue
            record = decode(event.entry, ShardRecord)
            if before is not None and (before.uid, before.epoch) != (record.uid, record.epoch):
                self._moved_ms[name] = self._clock.steady_ms()
            self._by_shard[name] = Led(record.uid, record.leader, record.epoch)
            self._counts[record.leader] += 1
            if before is None:
                self._shards_of.setdefault(topic_id, {})[name] = None
