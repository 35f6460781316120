"""Which topics there are: kept in the meta store, held in memory for routing.

A topic is registered as CREATING before its shards are made and marked DELETING before they are
removed, so that after a crash the next open knows what to clean up and guesses nothing. What is
held in memory follows the node's cache. A caller that changes a topic waits until the cache has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from firnmq.config import TopicConfig
from firnmq.errors import AlreadyExists, FirnError, KeyNotFound, ShardError, TopicNotFound
from firnmq.meta import Compare, Entry, Event, MetaCache, MetaStore, TxnConflict
from firnmq.meta.records import TOPICS, TopicRecord, TopicState, decode, encode, topic_key

__all__ = ["TOPIC_WAIT_S", "Topic", "TopicCatalog", "TopicState"]

_READY = TopicState.READY
TOPIC_WAIT_S = 30.0
"""How long a change of a topic may take to come up in the node's cache."""
_ABOUT_SHARDS = (ShardError, KeyNotFound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: its name, what it is called on disk, and how it is kept."""

    name: str
    topic_id: str
    shard_count: int
    config: TopicConfig
    created_ms: int
    state: TopicState = TopicState.CREATING
    is_placed: bool = False
    """The meta service's controller makes and removes its shards, not the node."""
    was_ready: bool = False
    revision: int = field(default=0, compare=False)
    """Of the stored record. A change names the revision that it was made from."""

    def shard_name(self, seq: int) -> str:
        """`{topic_id}_{seq}`."""
        return f"{self.topic_id}_{seq}"

    def shard_names(self) -> list[str]:
        return [self.shard_name(seq) for seq in range(self.shard_count)]

    def name_shard(self, error: FirnError) -> None:
        """Has an error about one of the topic's shards call it by what users know it by."""
        if isinstance(error, _ABOUT_SHARDS):
            name = error.within if isinstance(error, KeyNotFound) else error.shard
            topic_id, _, seq = name.rpartition("_")
            if topic_id == self.topic_id:
                error.call(shown_shard(self.name, seq))


def shown_shard(topic: str, seq: int | str) -> str:
    """What users know a shard by."""
    return f"shard {seq} of topic {topic!r}"


class TopicCatalog:
    """Topics by name. Reads come from memory; changes are durable first. Safe with threads."""

    def __init__(self, store: MetaStore, cache: MetaCache, *, wait_s: float = TOPIC_WAIT_S) -> None:
        self._store = store
        self._cache = cache
        self.wait_s = wait_s
        self._topics: dict[str, Topic] = {}
        """Changed by the cache's thread alone, once it is filled."""
        self._names: dict[str, str] = {}
        """Topic id to name, changed together with the topics."""
        self._shard_counts = {False: 0, True: 0}
        """By whether they share files, the shards of all topics."""
        self.change_count = 0
        """Goes up with every change of a topic that comes up here."""
        cache.listen(TOPICS, self._follow)

    def shard_count(self, *, shares_files: bool) -> int:
        """The shards of all topics, whatever their state, that share files or do not."""
        return self._shard_counts[shares_files]

    def get(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None or topic.state is not TopicState.READY:
            raise TopicNotFound(name)
        return topic

    def with_id(self, topic_id: str) -> Topic | None:
        """The topic that has this id, if it is ready."""
        topic = self._topics.get(self._names.get(topic_id, ""))
        is_there = topic is not None and topic.topic_id == topic_id and topic.state is _READY
        return topic if is_there else None

    def registered(self, topic_id: str) -> Topic | None:
        """The topic that has this id, whatever its state."""
        topic = self._topics.get(self._names.get(topic_id, ""))
        return topic if topic is not None and topic.topic_id == topic_id else None

    @property
    def by_name(self) -> Mapping[str, Topic]:
        """All topics, whatever their state, as they are whenever one looks."""
        return self._topics

    @property
    def cache_revision(self) -> int:
        """How new the node's cache of the metadata is."""
        return self._cache.revision

    def explain(self, error: FirnError) -> None:
        """Has an error say what its reader needs: the topic's own name of a shard, or the topic
        whose name is closest to one that no topic has."""
        if isinstance(error, TopicNotFound):
            error.suggest(topic.name for topic in self._all() if topic.state is _READY)
        else:
            self.name_shard(error)

    def name_shard(self, error: FirnError) -> None:
        """Has an error call a shard by what users know it by, whichever topic's it is."""
        if isinstance(error, _ABOUT_SHARDS):
            shard = error.within if isinstance(error, KeyNotFound) else error.shard
            topic = self._topics.get(self._names.get(shard.rpartition("_")[0], ""))
            if topic is not None:
                topic.name_shard(error)

    def shown(self, shard: str) -> str:
        """What users know a shard by, whichever topic's it is."""
        topic_id, _, seq = shard.rpartition("_")
        for topic in self._all():
            if topic.topic_id == topic_id:
                return shown_shard(topic.name, seq)
        return shard

    def topics(self) -> list[Topic]:
        ready = [topic for topic in self._all() if topic.state is TopicState.READY]
        return sorted(ready, key=lambda topic: topic.name)

    def unfinished(self) -> list[Topic]:
        """Topics whose creation or deletion has begun and not ended, and is a node's work."""
        return [
            topic
            for topic in self._all()
            if topic.state is not TopicState.READY and not topic.is_placed
        ]

    def stored(self, name: str) -> Topic | None:
        """The topic as the store has it, in whatever state and whatever the cache knows."""
        entry = self._store.get(topic_key(name))
        return None if entry is None else _topic(entry)

    def begin_creation(self, topic: Topic) -> None:
        """Registers a topic whose shards are about to be made; the name is taken from now on.

        CacheBehind if it does not come up in the node's cache; it is registered nevertheless.
        """
        try:
            revision = self._put(topic, Compare.absent(topic_key(topic.name)))
        except TxnConflict:
            raise AlreadyExists("topic", topic.name) from None
        self._cache.wait_for_revision(revision, self.wait_s)

    def become_ready(self, topic: Topic) -> Topic:
        return self._replace(topic, lambda stored: dataclasses.replace(topic, state=_READY))

    def stored_ready(self, name: str) -> Topic:
        """The ready topic as the store has it; TopicNotFound if there is none."""
        topic = self.stored(name)
        if topic is None or topic.state is not _READY:
            raise TopicNotFound(name)
        return topic

    def swap(self, before: Topic, after: Topic) -> Topic | None:
        """Stores `after` in place of `before`; None if another change came first.

        Does not wait for the cache.
        """
        compare = Compare(key=topic_key(before.name), revision=before.revision)
        try:
            revision = self._put(after, compare)
        except TxnConflict:
            return None
        return dataclasses.replace(after, revision=revision)

    def wait_for(self, topic: Topic) -> None:
        """Returns once the node's cache has the topic; CacheBehind if it does not in time."""
        self._cache.wait_for_revision(topic.revision, self.wait_s)

    def wait_for_change(self, timeout_s: float) -> None:
        """Returns with the next change of the metadata that the node learns of, or in time."""
        self._cache.wait_for_change(self._cache.revision, timeout_s)

    def begin_deletion(self, name: str) -> Topic:
        """Hides a topic whose shards are about to be removed."""
        return self._replace(
            self.get(name), lambda stored: dataclasses.replace(stored, state=TopicState.DELETING)
        )

    def begin_removal(self, topic: Topic, *, unless_ready: bool = False) -> Topic | None:
        """Marks a topic as being deleted whatever became of its creation. Does not wait for the
        cache, which may be what the creation has failed for.

        `unless_ready`: a topic that has become ready stays, and is returned.
        """
        going = dataclasses.replace(topic, state=TopicState.DELETING)
        while True:
            entry = self._store.get(topic_key(topic.name))
            if entry is None:
                return None
            stored = _topic(entry)
            if stored.topic_id != topic.topic_id:
                return None
            if unless_ready and stored.state is _READY:
                return stored
            try:
                self._put(going, Compare.unchanged(entry))
            except TxnConflict:
                continue  # It has changed since it was read.
            return None

    def forget(self, topic: Topic, *, waits: bool = True) -> None:
        """Ends a deletion, or a creation that failed: the name is free again."""
        entry = self._store.get(topic_key(topic.name))
        if entry is not None and _topic(entry).topic_id == topic.topic_id:
            revision = self._store.txn([Compare.unchanged(entry)], {}, [entry.key])
            if waits:
                self._cache.wait_for_revision(revision, self.wait_s)

    def _all(self) -> list[Topic]:
        return list(self._topics.values())

    def _replace(self, before: Topic, change: Callable[[Topic], Topic]) -> Topic:
        """Changes a topic that must still be the one that was read, in the same state."""
        while True:
            stored = self.stored(before.name)
            if stored is None or _life(stored) != _life(before):
                raise TopicNotFound(before.name)
            after = self.swap(stored, change(stored))
            if after is not None:
                self.wait_for(after)
                return after

    def _put(self, topic: Topic, compare: Compare) -> int:
        record = TopicRecord(
            name=topic.name,
            topic_id=topic.topic_id,
            shard_count=topic.shard_count,
            options=topic.config.options(),
            created_ms=topic.created_ms,
            state=topic.state,
            is_placed=topic.is_placed,
            was_ready=topic.was_ready,
        )
        return self._store.txn([compare], {topic_key(topic.name): encode(record)})

    def _follow(self, events: list[Event]) -> None:
        try:
            self._take(events)
        finally:
            self.change_count += 1  # Last: who reads it first, and the topics then, has them all.

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if event.entry is None:
                gone = self._topics.pop(event.key.removeprefix(TOPICS), None)
                if gone is not None:
                    self._count(gone, -1)
                    self._names.pop(gone.topic_id, None)
            else:
                topic = _topic(event.entry)
                before = self._topics.get(topic.name)
                self._count(topic, 1)
                if before is not None:
                    self._count(before, -1)
                if before is not None and before.topic_id != topic.topic_id:
                    self._names.pop(before.topic_id, None)
                self._topics[topic.name] = topic
                self._names[topic.topic_id] = topic.name

    def _count(self, topic: Topic, sign: int) -> None:
        self._shard_counts[topic.config.shares_files] += sign * topic.shard_count


def _life(topic: Topic) -> tuple[str, TopicState]:
    return topic.topic_id, topic.state


def _topic(entry: Entry) -> Topic:
    record = decode(entry, TopicRecord)
    return Topic(
        name=record.name,
        topic_id=record.topic_id,
        shard_count=record.shard_count,
        config=record.config(),
        created_ms=record.created_ms,
        state=record.state,
        is_placed=record.is_placed,
        was_ready=record.was_ready,
        revision=entry.mod_revision,
    )
