"""Records of the meta store as messages of the service."""

from __future__ import annotations

from urllib.parse import quote, unquote

import msgspec

from firnmq.config import TopicConfig
from firnmq.errors import InvalidArgument
from firnmq.meta.api import Changes, Entry, Event
from firnmq.meta.records import (
    OFFSETS,
    NodeRecord,
    OffsetRecord,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    decode,
    segment_seq_of,
)
from firnmq.meta.service import meta_service_pb2 as pb

GROUP_BYTES_MAX = 255
"""Of a group's name in UTF-8: escaped, it must fit a key beside the shard's name."""


def topic_of(request: pb.CreateTopicRequest, created_ms: int) -> TopicRecord:
    """The record of a topic that a client asks for; InvalidArgument if it cannot be made."""
    config = TopicConfig.from_options(dict(request.options))
    config.check_new()
    return TopicRecord(
        name=request.name,
        topic_id=request.topic_id,
        shard_count=request.shard_count,
        options=config.options(),
        created_ms=created_ms,
        state=TopicState.CREATING,
        is_placed=True,
    )


def topic_message(entry: Entry) -> pb.Topic:
    topic = decode(entry, TopicRecord)
    return pb.Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        shard_count=topic.shard_count,
        options={name: value for name, value in topic.options.items() if value is not None},
        options_without_limit=[name for name, value in topic.options.items() if value is None],
        state=topic.state.value,
        created_ms=topic.created_ms,
        revision=entry.mod_revision,
    )


def node_message(entry: Entry) -> pb.Node:
    node = decode(entry, NodeRecord)
    return pb.Node(node=node.node, incarnation=node.incarnation, registered_ms=node.registered_ms)


def shard_message(shard: ShardRecord, leader: int) -> pb.Shard:
    return pb.Shard(
        name=shard.name,
        uid=shard.uid,
        active=shard.active,
        epoch=shard.epoch,
        start=shard.start,
        leader=leader,
    )


def segment_message(entry: Entry) -> pb.Segment:
    segment = decode(entry, SegmentRecord)
    return pb.Segment(
        seq=segment_seq_of(entry.key),
        state=segment.state.value,
        epoch=segment.epoch,
        leader=segment.leader,
        replicas=segment.replicas,
        start=segment.start,
        end=segment.end,
        length=segment.length,
    )


# Offsets: a group may have any name, a key only printable ASCII


def offsets_prefix(group: str) -> str:
    raw = group.encode()
    if not 0 < len(raw) <= GROUP_BYTES_MAX:
        raise InvalidArgument("group", f"must have 1 to {GROUP_BYTES_MAX} bytes, not {len(raw)}")
    return f"{OFFSETS}{quote(group, safe='')}/"


def offset_key(group: str, shard: str) -> str:
    return offsets_prefix(group) + quote(shard, safe="")


def shard_of_offset(entry: Entry) -> str:
    return unquote(entry.key.rpartition("/")[2])


def offset_message(entry: Entry) -> pb.Offset:
    offset = decode(entry, OffsetRecord)
    return pb.Offset(
        offset=offset.offset, metadata=offset.metadata, committed_ms=offset.committed_ms
    )


# Following


def entry_message(entry: Entry) -> pb.Entry:
    return pb.Entry(
        key=entry.key,
        value=entry.value,
        create_revision=entry.create_revision,
        mod_revision=entry.mod_revision,
    )


def entry_of(message: pb.Entry) -> Entry:
    return Entry(
        key=message.key,
        value=message.value,
        create_revision=message.create_revision,
        mod_revision=message.mod_revision,
    )


def changes_message(changes: Changes) -> pb.Changes:
    return pb.Changes(
        revision=changes.revision,
        changes=[
            pb.Change(
                key=event.key,
                revision=event.revision,
                entry=None if event.entry is None else entry_message(event.entry),
            )
            for event in changes.events
        ],
    )


def changes_of(message: pb.Changes) -> Changes:
    return Changes(
        revision=message.revision,
        events=tuple(
            Event(
                key=each.key,
                revision=each.revision,
                entry=entry_of(each.entry) if each.HasField("entry") else None,
            )
            for each in message.changes
        ),
    )


def encoded_offset(message: pb.Offset) -> bytes:
    return msgspec.msgpack.encode(
        OffsetRecord(
            offset=message.offset, metadata=message.metadata, committed_ms=message.committed_ms
        )
    )
