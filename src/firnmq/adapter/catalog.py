"""Which topics there are: kept in the key-value store, held in memory for routing.

A topic is registered as CREATING before its shards are made and marked DELETING before they are
removed, so that after a crash the next open knows what to clean up and guesses nothing.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from enum import Enum

import msgspec

from firnmq.config import TopicConfig
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import AlreadyExists, Corruption, TopicNotFound

_TOPIC = b"T"
_AFTER_TOPICS = b"U"


class TopicState(Enum):
    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: its name, what it is called on disk, and how it is kept."""

    name: str
    topic_id: str
    shard_count: int
    config: TopicConfig
    created_ms: int
    state: TopicState = TopicState.CREATING

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
        if topic is None or topic.state is not TopicState.READY:
            raise TopicNotFound(name)
        return topic

    def topics(self) -> list[Topic]:
        ready = [topic for topic in self._topics.values() if topic.state is TopicState.READY]
        return sorted(ready, key=lambda topic: topic.name)

    def unfinished(self) -> list[Topic]:
        """Topics whose creation or deletion has begun and not ended."""
        return [topic for topic in self._topics.values() if topic.state is not TopicState.READY]

    def begin_creation(self, topic: Topic) -> None:
        """Registers a topic whose shards are about to be made; the name is taken from now on."""
        with self._lock:
            if topic.name in self._topics:
                raise AlreadyExists("topic", topic.name)
            self._save(topic)

    def become_ready(self, topic: Topic) -> Topic:
        with self._lock:
            ready = dataclasses.replace(topic, state=TopicState.READY)
            self._save(ready)
            return ready

    def update(self, topic: Topic) -> None:
        """Replaces a topic by one with other options or more shards."""
        with self._lock:
            self.get(topic.name)
            self._save(topic)

    def begin_deletion(self, name: str) -> Topic:
        """Hides a topic whose shards are about to be removed."""
        with self._lock:
            topic = dataclasses.replace(self.get(name), state=TopicState.DELETING)
            self._save(topic)
            return topic

    def forget(self, topic: Topic) -> None:
        """Ends a deletion, or a creation that failed: the name is free again."""
        with self._lock:
            with self._kv.batch() as batch:
                batch.delete(Family.STATE, _TOPIC + topic.name.encode())
            self._kv.sync()
            self._topics.pop(topic.name, None)

    def _save(self, topic: Topic) -> None:
        with self._kv.batch() as batch:
            batch.put(Family.STATE, _TOPIC + topic.name.encode(), msgspec.msgpack.encode(topic))
        self._kv.sync()
        self._topics[topic.name] = topic
