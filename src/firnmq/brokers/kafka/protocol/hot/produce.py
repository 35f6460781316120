"""Produce: requests from version 3 on, responses of every version."""

from __future__ import annotations

import struct
from typing import Final

from firnmq.brokers.kafka.protocol.hot.scan import (
    ELEMENT_COUNT_MAX,
    GIVE_UP,
    compact_count,
    compact_nullable_string,
    compact_string,
    string,
    uuid,
    varint,
)
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    NO_LEADER,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from firnmq.brokers.kafka.protocol.primitives import (
    STRING_BYTES_MAX,
    ZERO_UUID,
    Part,
    varint_bytes,
)

TOPIC_IDS_SINCE: Final = 13
"""From this version on topics have ids in place of names."""

_unpack_null_head: Final = struct.Struct(
    ">"
    "h"  # 0  length of transactional_id, -1 for null.
    "h"  # 2  acks, if transactional_id is null.
    "i"  # 4  timeout_ms.
    "i"  # 8  count of topics.
).unpack_from
_unpack_head: Final = struct.Struct(">hii").unpack_from  # The same behind a transactional_id.
_unpack_compact_head: Final = struct.Struct(">hi").unpack_from  # acks, timeout_ms.
_unpack_length: Final = struct.Struct(">h").unpack_from
_unpack_count: Final = struct.Struct(">i").unpack_from
_unpack_partition: Final = struct.Struct(">ii").unpack_from  # index, size of the records.
_unpack_index: Final = struct.Struct(">i").unpack_from


def parse_produce(view: memoryview, position: int, version: int) -> ProduceRequest | None:
    if version < 3:
        return None
    try:
        if version >= 9:
            return _parse_compact(view, position, version)
        return _parse_classic(view, position)
    except GIVE_UP:
        return None


def _parse_classic(view: memoryview, position: int) -> ProduceRequest | None:
    end = len(view)
    length, acks, timeout_ms, topic_count = _unpack_null_head(view, position)
    transactional_id = None
    position += 12
    if length != -1:
        transactional_id, position = string(view, position - 12)
        acks, timeout_ms, topic_count = _unpack_head(view, position)
        position += 10
    if topic_count < 0:
        return None
    elements = topic_count
    topics = []
    for _ in range(topic_count):
        (length,) = _unpack_length(view, position)
        start = position + 2
        position = start + length
        # Unpacking the count from behind the name also proves that the name was all there.
        (count,) = _unpack_count(view, position)
        name = str(view[start:position], "utf-8")
        position += 4
        elements += count
        if length < 0 or count < 0 or elements > ELEMENT_COUNT_MAX:
            return None
        partitions = []
        for _ in range(count):
            index, size = _unpack_partition(view, position)
            start = position + 8
            if size >= 0:
                position = start + size
                if position > end:
                    return None
                records = view[start:position]
            elif size == -1:
                position = start
                records = None
            else:
                return None
            partitions.append(PartitionProduceData(index=index, records=records))
        topics.append(TopicProduceData(name=name, partition_data=tuple(partitions)))
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(topics),
    )


def _parse_compact(view: memoryview, position: int, version: int) -> ProduceRequest | None:
    end = len(view)
    transactional_id, position = compact_nullable_string(view, position)
    acks, timeout_ms = _unpack_compact_head(view, position)
    topic_count, position = compact_count(view, position + 6)
    elements = topic_count
    topics = []
    for _ in range(topic_count):
        name, topic_id = "", ZERO_UUID
        if version >= TOPIC_IDS_SINCE:
            topic_id, position = uuid(view, position)
        else:
            name, position = compact_string(view, position)
        count, position = compact_count(view, position)
        elements += count
        if elements > ELEMENT_COUNT_MAX:
            return None
        partitions = []
        for _ in range(count):
            (index,) = _unpack_index(view, position)
            size, start = varint(view, position + 4)
            records = None
            position = start
            if size:
                position = start + size - 1
                records = view[start:position]
            # Reading the count of tagged fields also proves that the records were all there.
            if position >= end or view[position]:
                return None
            position += 1
            partitions.append(PartitionProduceData(index=index, records=records))
        if view[position]:
            return None
        position += 1
        topics.append(
            TopicProduceData(name=name, topic_id=topic_id, partition_data=tuple(partitions))
        )
    if view[position]:
        return None
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(topics),
    )


_pack_size_id_count: Final = struct.Struct(">iii").pack  # frame size, correlation_id, count.
_pack_size_id: Final = struct.Struct(">iib").pack  # The same with the header's (no) tagged fields.
_pack_int16: Final = struct.Struct(">h").pack
_pack_int32: Final = struct.Struct(">i").pack
_pack_v0: Final = struct.Struct(">ihq").pack  # index, error_code, base_offset.
_pack_v2: Final = struct.Struct(">ihqq").pack  # And log_append_time_ms.
_pack_v5: Final = struct.Struct(">ihqqq").pack  # And log_start_offset.


def build_produce_response(
    response: ProduceResponse, correlation_id: int, version: int
) -> list[Part] | None:
    """None if a partition explains its error in words, or if a value does not fit its field."""
    try:
        if version >= 9:
            body = _compact_body(response, version)
            if body is None:
                return None
            return [_pack_size_id(len(body) + 5, correlation_id, 0) + body]
        body = _classic_body(response, version)
        if body is None:
            return None
        head = _pack_size_id_count(len(body) + 8, correlation_id, len(response.responses))
        return [head + body]
    except (struct.error, UnicodeEncodeError, TypeError, AttributeError):
        return None


def _classic_body(response: ProduceResponse, version: int) -> bytes | None:
    pieces: list[bytes] = []
    for topic in response.responses:
        name = topic.name.encode()
        pieces += (_pack_int16(len(name)), name, _pack_int32(len(topic.partition_responses)))
        for partition in topic.partition_responses:
            if version >= 8 and (partition.record_errors or partition.error_message is not None):
                return None
            pieces.append(_classic_partition(partition, version))
    if version >= 1:
        pieces.append(_pack_int32(response.throttle_time_ms))
    return b"".join(pieces)


def _classic_partition(partition: PartitionProduceResponse, version: int) -> bytes:
    if version < 2:
        return _pack_v0(partition.index, partition.error_code, partition.base_offset)
    if version < 5:
        return _pack_v2(
            partition.index,
            partition.error_code,
            partition.base_offset,
            partition.log_append_time_ms,
        )
    packed = _pack_v5(
        partition.index,
        partition.error_code,
        partition.base_offset,
        partition.log_append_time_ms,
        partition.log_start_offset,
    )
    # No record_errors, a null error_message.
    return packed if version < 8 else packed + b"\0\0\0\0\xff\xff"


def _compact_body(response: ProduceResponse, version: int) -> bytes | None:
    if response.node_endpoints:
        return None
    pieces = [varint_bytes(len(response.responses) + 1)]
    for topic in response.responses:
        if version >= TOPIC_IDS_SINCE:
            pieces.append(topic.topic_id.bytes)
        else:
            name = topic.name.encode()
            if len(name) > STRING_BYTES_MAX:
                return None
            pieces += (varint_bytes(len(name) + 1), name)
        pieces.append(varint_bytes(len(topic.partition_responses) + 1))
        for partition in topic.partition_responses:
            if (
                partition.record_errors
                or partition.error_message is not None
                or partition.current_leader is not NO_LEADER
            ):
                return None
            pieces += (
                _pack_v5(
                    partition.index,
                    partition.error_code,
                    partition.base_offset,
                    partition.log_append_time_ms,
                    partition.log_start_offset,
                ),
                b"\1\0\0",  # No record_errors, a null error_message, no tagged fields.
            )
        pieces.append(b"\0")
    pieces += (_pack_int32(response.throttle_time_ms), b"\0")
    return b"".join(pieces)
