"""Which topics there are: kept in the key-value store, held in memory for routing."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import msgspec

from firnmq.config import TopicConfig
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import AlreadyExists, Corruption, TopicNotFound

_TOPIC = b"T"
_AFTER_TOPICS = b"U"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: its name, what it is called on disk, and how it is kept."""

    name: str
    topic_id: str
    shard_count: int
    config: TopicConfig
    created_ms: int

    def shard_name(self, seq: int) -> str:
        """`{topic_id}_{seq}`."""
        return f"{self.topic_id}_{seq}"

    def shard_names(self) -> list[str]:
        return [self.shard_name(seq) for seq in range(self.shard_count)]


class TopicCatalog:
    """Topics by name. Reads come from memory; changes are synced first. Safe with threads."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}
        for key, value in kv.items(Family.STATE, _TOPIC, _AFTER_TOPICS):
            try:
                topic = msgspec.msgpack.decode(value, type=Topic)
            except msgspec.MsgspecError as error:
                raise Corruption(str(error), where=f"topic entry {key!r}") from error
            self._topics[topic.name] = topic

    def get(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def list(self) -> list[Topic]:
        return sorted(self._topics.values(), key=lambda topic: topic.name)

    def add(self, topic: Topic) -> None:
        with self._lock:
            if topic.name in self._topics:
                raise AlreadyExists("topic", topic.name)
            with self._kv.batch() as batch:
                batch.put(Family.STATE, _TOPIC + topic.name.encode(), msgspec.msgpack.encode(topic))
            self._kv.sync()
            self._topics[topic.name] = topic

    def remove(self, name: str) -> Topic:
        with self._lock:
            topic = self.get(name)
            with self._kv.batch() as batch:
                batch.delete(Family.STATE, _TOPIC + name.encode())
            self._kv.sync()
            del self._topics[name]
            return topic
