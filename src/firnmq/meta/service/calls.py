"""What each call of the service does. Blocking, for threads; the server calls it from a pool."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from firnmq.clock import Clock
from firnmq.config import check_topic_name
from firnmq.errors import (
    AlreadyExists,
    CreationTimedOut,
    InvalidArgument,
    ShardNotFound,
    StaleIncarnation,
    TopicNotFound,
)
from firnmq.meta.api import Compare, Entry, MetaStore, TxnConflict
from firnmq.meta.cache import MetaCache
from firnmq.meta.nodes import register_node
from firnmq.meta.records import (
    NODES,
    SHARDS,
    TOPICS,
    Incarnation,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    decode,
    encode,
    incarnation_key,
    segment_key,
    segments_prefix,
    shard_key,
    topic_key,
)
from firnmq.meta.service import answers
from firnmq.meta.service import meta_service_pb2 as pb
from firnmq.meta.service.controller import CREATION_S
from firnmq.meta.service.election import CONTROLLER_KEY

SHARDS_MAX = 100_000
_TTL_MS_MAX = 3_600_000
_OFFSETS_MAX = 10_000
_TOPIC_ID = re.compile(r"[0-9a-f]{32}")
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Call:
    """A call with one answer: what it does, and its request's type."""

    request: Any
    does: Callable[[Any], Any]


class MetaCalls:
    """Safe with threads. It has no state of its own: any process in front of the store does."""

    def __init__(self, store: MetaStore, cache: MetaCache, clock: Clock) -> None:
        self._store = store
        self._cache = cache
        self._clock = clock

    def table(self) -> Mapping[str, Call]:
        return {
            "RegisterNode": Call(pb.RegisterNodeRequest, self.register_node),
            "Heartbeat": Call(pb.HeartbeatRequest, self.heartbeat),
            "LeaveNode": Call(pb.HeartbeatRequest, self.leave_node),
            "ListNodes": Call(pb.ListRequest, self.list_nodes),
            "CreateTopic": Call(pb.CreateTopicRequest, self.create_topic),
            "AwaitTopic": Call(pb.AwaitTopicRequest, self.await_topic),
            "AbandonTopic": Call(pb.AwaitTopicRequest, self.abandon_topic),
            "DeleteTopic": Call(pb.TopicRequest, self.delete_topic),
            "DescribeTopic": Call(pb.TopicRequest, self.describe_topic),
            "ListTopics": Call(pb.ListRequest, self.list_topics),
            "ListShards": Call(pb.TopicRequest, self.list_shards),
            "ListSegments": Call(pb.SegmentsRequest, self.list_segments),
            "CommitOffsets": Call(pb.CommitOffsetsRequest, self.commit_offsets),
            "GetOffsets": Call(pb.GetOffsetsRequest, self.get_offsets),
            "GetController": Call(pb.ListRequest, self.get_controller),
        }

    # Nodes

    def register_node(self, request: pb.RegisterNodeRequest) -> pb.RegisteredNode:
        if not 0 < request.ttl_ms <= _TTL_MS_MAX:
            raise InvalidArgument("ttl_ms", f"must be 1 to {_TTL_MS_MAX:,}, not {request.ttl_ms}")
        session = self._store.session(request.ttl_ms / 1000)
        made = register_node(self._store, request.node, self._clock, session)
        return pb.RegisteredNode(
            node=made.node,
            incarnation=made.incarnation,
            session_id=session.session_id,
            revision=made.guard.revision,
        )

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        self._check_incarnation(request)
        self._store.resume_session(request.session_id).keep_alive()
        return pb.HeartbeatResponse(revision=self._cache.revision)

    def leave_node(self, request: pb.HeartbeatRequest) -> pb.Done:
        self._check_incarnation(request)
        self._store.resume_session(request.session_id).close()
        return pb.Done(revision=self._store.txn())

    def _check_incarnation(self, request: pb.HeartbeatRequest) -> None:
        entry = self._store.get(incarnation_key(request.node))
        current = 0 if entry is None else decode(entry, Incarnation).incarnation
        if current != request.incarnation:
            raise StaleIncarnation(request.node, request.incarnation, current)

    def list_nodes(self, _: pb.ListRequest) -> pb.NodeList:
        return pb.NodeList(nodes=map(answers.node_message, self._store.range(NODES).entries))

    # Topics

    def create_topic(self, request: pb.CreateTopicRequest) -> pb.Topic:
        """Registers a topic; its shards are the controller's work. Asked again with the same id, it
        answers as the first time."""
        check_topic_name(request.name)
        if not 1 <= request.shard_count <= SHARDS_MAX:
            text = f"must be 1 to {SHARDS_MAX:,}, not {request.shard_count}"
            raise InvalidArgument("shard_count", text)
        if not _TOPIC_ID.fullmatch(request.topic_id):
            raise InvalidArgument("topic_id", "must have 32 hexadecimal digits")
        key = topic_key(request.name)
        record = answers.topic_of(request, self._clock.now_ms())
        try:
            self._store.txn([Compare.absent(key)], {key: encode(record)})
        except TxnConflict:
            pass  # It may be this very topic, made by a call whose answer was lost.
        entry = self._topic(request.name)
        if decode(entry, TopicRecord).topic_id != request.topic_id:
            raise AlreadyExists("topic", request.name)
        return answers.topic_message(entry)

    def await_topic(self, request: pb.AwaitTopicRequest) -> pb.Topic:
        """Waits until the topic is ready."""
        timeout_s = min(request.timeout_ms / 1000, CREATION_S)
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self._cache.revision
            entry = self._topic(request.name)
            topic = decode(entry, TopicRecord)
            if topic.topic_id != request.topic_id or topic.state is TopicState.DELETING:
                raise TopicNotFound(request.name)
            if topic.state is TopicState.READY:
                return answers.topic_message(entry)
            left = deadline - time.monotonic()
            if left <= 0:
                raise CreationTimedOut(request.name, "it", timeout_s)
            self._cache.wait_for_change(seen, min(left, _LOOK_S))

    def abandon_topic(self, request: pb.AwaitTopicRequest) -> pb.Done:
        """Has the controller remove a topic that its creator does not wait for any more."""
        while True:
            entry = self._store.get(topic_key(request.name))
            topic = None if entry is None else decode(entry, TopicRecord)
            if entry is None or topic is None or topic.topic_id != request.topic_id:
                return pb.Done(revision=self._store.txn())
            if topic.state is TopicState.DELETING:
                return pb.Done(revision=entry.mod_revision)
            try:
                return pb.Done(revision=self._begin_removal(entry, topic))
            except TxnConflict:
                continue

    def delete_topic(self, request: pb.TopicRequest) -> pb.Done:
        while True:
            entry = self._topic(request.name)
            topic = decode(entry, TopicRecord)
            if not topic.is_placed:
                text = f"{request.name!r} was made by a node, which also deletes it"
                raise InvalidArgument("name", text)
            if topic.state is not TopicState.READY:
                raise TopicNotFound(request.name)
            try:
                return pb.Done(revision=self._begin_removal(entry, topic))
            except TxnConflict:
                continue

    def _begin_removal(self, entry: Entry, topic: TopicRecord) -> int:
        going = msgspec.structs.replace(topic, state=TopicState.DELETING)
        return self._store.txn([Compare.unchanged(entry)], {entry.key: encode(going)})

    def describe_topic(self, request: pb.TopicRequest) -> pb.Topic:
        return answers.topic_message(self._topic(request.name))

    def list_topics(self, _: pb.ListRequest) -> pb.TopicList:
        return pb.TopicList(topics=map(answers.topic_message, self._store.range(TOPICS).entries))

    def _topic(self, name: str) -> Entry:
        check_topic_name(name)
        entry = self._store.get(topic_key(name))
        if entry is None:
            raise TopicNotFound(name)
        return entry

    # Shards and segments

    def list_shards(self, request: pb.TopicRequest) -> pb.ShardList:
        topic = decode(self._topic(request.name), TopicRecord)
        shards = [
            decode(entry, ShardRecord)
            for entry in self._store.range(f"{SHARDS}{topic.topic_id}_").entries
        ]
        shards.sort(key=lambda shard: int(shard.name.rpartition("_")[2]))
        return pb.ShardList(
            shards=[answers.shard_message(shard, self._leader(shard)) for shard in shards]
        )

    def _leader(self, shard: ShardRecord) -> int:
        entry = self._cache.get(segment_key(shard.name, shard.active))
        return 0 if entry is None else decode(entry, SegmentRecord).leader

    def list_segments(self, request: pb.SegmentsRequest) -> pb.SegmentList:
        if self._store.get(shard_key(request.shard)) is None:
            raise ShardNotFound(request.shard)
        found = self._store.range(segments_prefix(request.shard)).entries
        return pb.SegmentList(segments=map(answers.segment_message, found))

    # Offsets of groups

    def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.Done:
        """Each shard's offset is stored or not; together only as far as one transaction goes."""
        if not 0 < len(request.offsets) <= _OFFSETS_MAX:
            text = f"must be of 1 to {_OFFSETS_MAX:,} shards, not {len(request.offsets)}"
            raise InvalidArgument("offsets", text)
        puts = {
            answers.offset_key(request.group, shard): answers.encoded_offset(offset)
            for shard, offset in request.offsets.items()
        }
        revision = 0
        keys = list(puts)
        for at in range(0, len(keys), self._store.txn_ops_max):
            part = keys[at : at + self._store.txn_ops_max]
            revision = self._store.txn(puts={key: puts[key] for key in part})
        return pb.Done(revision=revision)

    def get_offsets(self, request: pb.GetOffsetsRequest) -> pb.Offsets:
        found = self._store.range(answers.offsets_prefix(request.group)).entries
        return pb.Offsets(
            offsets={answers.shard_of_offset(each): answers.offset_message(each) for each in found}
        )

    # The controller

    def get_controller(self, _: pb.ListRequest) -> pb.Controller:
        entry = self._store.get(CONTROLLER_KEY)
        if entry is None:
            return pb.Controller()
        return pb.Controller(name=entry.value.decode(), create_revision=entry.create_revision)
