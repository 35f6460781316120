"""Heartbeat and OffsetCommit, which every consumer repeats."""

from __future__ import annotations

import struct
from typing import Final

from firnmq.brokers.kafka.protocol.hot.scan import (
    ELEMENT_COUNT_MAX,
    GIVE_UP,
    compact_count,
    compact_nullable_string,
    compact_string,
    nullable_string,
    string,
    uuid,
)
from firnmq.brokers.kafka.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from firnmq.brokers.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from firnmq.brokers.kafka.protocol.primitives import (
    STRING_BYTES_MAX,
    ZERO_UUID,
    Part,
    varint_bytes,
)

_TOPIC_IDS_SINCE: Final = 10
"""From this version of OffsetCommit on topics have ids in place of names."""

_unpack_int32: Final = struct.Struct(">i").unpack_from

# Heartbeat.


def parse_heartbeat(view: memoryview, position: int, version: int) -> HeartbeatRequest | None:
    group_instance_id = None
    try:
        if version >= 4:
            group_id, position = compact_string(view, position)
            (generation_id,) = _unpack_int32(view, position)
            member_id, position = compact_string(view, position + 4)
            group_instance_id, position = compact_nullable_string(view, position)
            if view[position]:
                return None
        else:
            group_id, position = string(view, position)
            (generation_id,) = _unpack_int32(view, position)
            member_id, position = string(view, position + 4)
            if version == 3:
                group_instance_id, position = nullable_string(view, position)
    except GIVE_UP:
        return None
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
    )


# The whole frame: size, correlation_id, then throttle_time_ms (not in version 0) and error_code;
# version 4 has counts of tagged fields behind the header and at the end.
_pack_heartbeat_v0: Final = struct.Struct(">iih").pack
_pack_heartbeat_v1: Final = struct.Struct(">iiih").pack
_pack_heartbeat_v4: Final = struct.Struct(">iibihb").pack


def build_heartbeat_response(
    response: HeartbeatResponse, correlation_id: int, version: int
) -> list[Part] | None:
    throttle_ms, error_code = response.throttle_time_ms, response.error_code
    try:
        if version >= 4:
            return [_pack_heartbeat_v4(12, correlation_id, 0, throttle_ms, error_code, 0)]
        if version >= 1:
            return [_pack_heartbeat_v1(10, correlation_id, throttle_ms, error_code)]
        return [_pack_heartbeat_v0(6, correlation_id, error_code)]
    except struct.error:
        return None


# OffsetCommit.

_unpack_position: Final = struct.Struct(">iq").unpack_from  # partition_index, committed_offset.
_unpack_position_epoch: Final = struct.Struct(">iqi").unpack_from  # And committed_leader_epoch.


def parse_offset_commit(
    view: memoryview, position: int, version: int
) -> OffsetCommitRequest | None:
    try:
        if version >= 8:
            return _parse_compact(view, position, version)
        return _parse_classic(view, position, version)
    except GIVE_UP:
        return None


def _parse_classic(view: memoryview, position: int, version: int) -> OffsetCommitRequest | None:
    group_instance_id, retention_ms = None, -1
    group_id, position = string(view, position)
    (generation_id,) = _unpack_int32(view, position)
    member_id, position = string(view, position + 4)
    if version >= 7:
        group_instance_id, position = nullable_string(view, position)
    elif version <= 4:
        (retention_ms,) = _unpack_int64(view, position)
        position += 8
    (topic_count,) = _unpack_int32(view, position)
    position += 4
    if topic_count < 0:
        return None
    elements = topic_count
    topics = []
    for _ in range(topic_count):
        name, position = string(view, position)
        (count,) = _unpack_int32(view, position)
        position += 4
        elements += count
        if count < 0 or elements > ELEMENT_COUNT_MAX:
            return None
        partitions = []
        for _ in range(count):
            epoch = -1
            if version >= 6:
                index, offset, epoch = _unpack_position_epoch(view, position)
                position += 16
            else:
                index, offset = _unpack_position(view, position)
                position += 12
            metadata, position = nullable_string(view, position)
            partitions.append(_commit(index, offset, epoch, metadata))
        topics.append(OffsetCommitRequestTopic(name=name, partitions=tuple(partitions)))
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        retention_time_ms=retention_ms,
        topics=tuple(topics),
    )


def _parse_compact(view: memoryview, position: int, version: int) -> OffsetCommitRequest | None:
    group_id, position = compact_string(view, position)
    (generation_id,) = _unpack_int32(view, position)
    member_id, position = compact_string(view, position + 4)
    group_instance_id, position = compact_nullable_string(view, position)
    topic_count, position = compact_count(view, position)
    elements = topic_count
    topics = []
    for _ in range(topic_count):
        name, topic_id = "", ZERO_UUID
        if version >= _TOPIC_IDS_SINCE:
            topic_id, position = uuid(view, position)
        else:
            name, position = compact_string(view, position)
        count, position = compact_count(view, position)
        elements += count
        if elements > ELEMENT_COUNT_MAX:
            return None
        partitions = []
        for _ in range(count):
            index, offset, epoch = _unpack_position_epoch(view, position)
            metadata, position = compact_nullable_string(view, position + 16)
            if view[position]:
                return None
            position += 1
            partitions.append(_commit(index, offset, epoch, metadata))
        if view[position]:
            return None
        position += 1
        topics.append(
            OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=tuple(partitions))
        )
    if view[position]:
        return None
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=tuple(topics),
    )


def _commit(
    index: int, offset: int, epoch: int, metadata: str | None
) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        committed_metadata=metadata,
    )


_unpack_int64: Final = struct.Struct(">q").unpack_from
_pack_int16: Final = struct.Struct(">h").pack
_pack_int32: Final = struct.Struct(">i").pack
_pack_head_v2: Final = struct.Struct(">ii").pack  # frame size, correlation_id.
_pack_head_v3: Final = struct.Struct(">iii").pack  # And throttle_time_ms.
_pack_head_v8: Final = struct.Struct(">iibi").pack  # The same behind (no) tagged fields.
_pack_result: Final = struct.Struct(">ih").pack  # partition_index, error_code.


def build_offset_commit_response(
    response: OffsetCommitResponse, correlation_id: int, version: int
) -> list[Part] | None:
    try:
        if version >= 8:
            body = _compact_body(response, version)
            if body is None:
                return None
            head = _pack_head_v8(len(body) + 9, correlation_id, 0, response.throttle_time_ms)
            return [head + body]
        body = _classic_body(response)
        if version >= 3:
            head = _pack_head_v3(len(body) + 8, correlation_id, response.throttle_time_ms)
        else:
            head = _pack_head_v2(len(body) + 4, correlation_id)
        return [head + body]
    except (struct.error, UnicodeEncodeError, TypeError, AttributeError):
        return None


def _classic_body(response: OffsetCommitResponse) -> bytes:
    pieces = [_pack_int32(len(response.topics))]
    for topic in response.topics:
        name = topic.name.encode()
        pieces += (_pack_int16(len(name)), name, _pack_int32(len(topic.partitions)))
        pieces += [
            _pack_result(partition.partition_index, partition.error_code)
            for partition in topic.partitions
        ]
    return b"".join(pieces)


def _compact_body(response: OffsetCommitResponse, version: int) -> bytes | None:
    pieces = [varint_bytes(len(response.topics) + 1)]
    for topic in response.topics:
        if version >= _TOPIC_IDS_SINCE:
            pieces.append(topic.topic_id.bytes)
        else:
            name = topic.name.encode()
            if len(name) > STRING_BYTES_MAX:
                return None
            pieces += (varint_bytes(len(name) + 1), name)
        pieces.append(varint_bytes(len(topic.partitions) + 1))
        pieces += [
            _pack_result(partition.partition_index, partition.error_code) + b"\0"
            for partition in topic.partitions
        ]
        pieces.append(b"\0")
    pieces.append(b"\0")
    return b"".join(pieces)
