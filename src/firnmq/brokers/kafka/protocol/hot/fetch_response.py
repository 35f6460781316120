"""Fetch responses of all versions; their records are passed on by reference."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from firnmq.brokers.kafka.protocol.hot.fetch import TOPIC_IDS_SINCE
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    NO_DIVERGING_EPOCH,
    NO_LEADER,
    NO_SNAPSHOT,
    AbortedTransaction,
    FetchResponse,
    PartitionData,
)
from firnmq.brokers.kafka.protocol.primitives import (
    COPY_BYTES_MAX,
    FRAME_BYTES_MAX,
    INT32,
    STRING_BYTES_MAX,
    Part,
    Parts,
    varint_bytes,
)
from firnmq.disk import FileRange

_HEAD_RESPONSE_V4: Final = struct.Struct(
    ">"
    "i"  # 0   frame size.
    "i"  # 4   correlation_id.
    "i"  # 8   throttle_time_ms.
    "i"  # 12  count of topics.
)
_HEAD_RESPONSE_V7: Final = struct.Struct(">iiihii")  # error_code, session_id before the count.
_HEAD_RESPONSE_V12: Final = struct.Struct(">iibihi")  # No tagged fields behind the id; no count.

_pack_partition_v4: Final = struct.Struct(
    ">"
    "i"  # 0   partition_index.
    "h"  # 4   error_code.
    "q"  # 6   high_watermark.
    "q"  # 14  last_stable_offset.
).pack
_pack_partition_v5: Final = struct.Struct(">ihqqq").pack  # And log_start_offset.
# The same for the usual partition, which has no list of aborted transactions (-1, or 0 if compact),
# up to the size of the records; version 11 added preferred_read_replica in front of it.
_pack_usual_v5: Final = struct.Struct(">ihqqqii").pack
_pack_usual_v11: Final = struct.Struct(">ihqqqiii").pack
_pack_usual_v12: Final = struct.Struct(">ihqqqbi").pack
_pack_aborted: Final = struct.Struct(">qq").pack  # producer_id, first_offset.
_pack_int16: Final = struct.Struct(">h").pack
_pack_int32: Final = INT32.pack


def build_fetch_response(
    response: FetchResponse, correlation_id: int, version: int
) -> list[Part] | None:
    """The frame in parts; record data of some size are the very objects that were handed in.

    None for tagged fields, which only replicas look at, or if a value does not fit its field.
    """
    gather = _Gather()
    try:
        if version >= 12:
            done = _write_compact(gather, response, correlation_id, version)
        else:
            _write_classic(gather, response, correlation_id, version)
            done = True
        return gather.frame() if done else None
    except (struct.error, UnicodeEncodeError, TypeError, AttributeError):
        return None


def _write_classic(
    gather: _Gather, response: FetchResponse, correlation_id: int, version: int
) -> None:
    throttle_ms, count = response.throttle_time_ms, len(response.responses)
    if version >= 7:
        gather.tail += _HEAD_RESPONSE_V7.pack(
            0, correlation_id, throttle_ms, response.error_code, response.session_id, count
        )
    else:
        gather.tail += _HEAD_RESPONSE_V4.pack(0, correlation_id, throttle_ms, count)
    for topic in response.responses:
        name = topic.topic.encode()
        gather.tail += _pack_int16(len(name)) + name + _pack_int32(len(topic.partitions))
        for partition in topic.partitions:
            records = partition.records
            aborted = partition.aborted_transactions
            if aborted is None and records is not None and version >= 5:
                gather.add(_usual_fields(partition, version, _size(records)), records)
                continue
            gather.tail += _fixed_fields(partition, version)
            gather.tail += b"\xff\xff\xff\xff" if aborted is None else _aborted(aborted)
            if version >= 11:
                gather.tail += _pack_int32(partition.preferred_read_replica)
            if records is None:
                gather.tail += b"\xff\xff\xff\xff"
            else:
                gather.add(_pack_int32(_size(records)), records)


def _usual_fields(partition: PartitionData, version: int, size: int) -> bytes:
    if version >= 11:
        return _pack_usual_v11(
            partition.partition_index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            -1,
            partition.preferred_read_replica,
            size,
        )
    return _pack_usual_v5(
        partition.partition_index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        -1,
        size,
    )


def _fixed_fields(partition: PartitionData, version: int) -> bytes:
    if version < 5:
        return _pack_partition_v4(
            partition.partition_index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
        )
    return _pack_partition_v5(
        partition.partition_index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
    )


def _aborted(aborted: Sequence[AbortedTransaction]) -> bytes:
    packed = [_pack_aborted(entry.producer_id, entry.first_offset) for entry in aborted]
    return _pack_int32(len(packed)) + b"".join(packed)


def _compact_aborted(aborted: Sequence[AbortedTransaction]) -> bytes:
    packed = [_pack_aborted(entry.producer_id, entry.first_offset) + b"\0" for entry in aborted]
    return varint_bytes(len(packed) + 1) + b"".join(packed)


def _write_compact(
    gather: _Gather, response: FetchResponse, correlation_id: int, version: int
) -> bool:
    if response.node_endpoints:
        return False
    gather.tail += _HEAD_RESPONSE_V12.pack(
        0, correlation_id, 0, response.throttle_time_ms, response.error_code, response.session_id
    )
    gather.tail += varint_bytes(len(response.responses) + 1)
    for topic in response.responses:
        if version >= TOPIC_IDS_SINCE:
            gather.tail += topic.topic_id.bytes
        else:
            name = topic.topic.encode()
            if len(name) > STRING_BYTES_MAX:
                return False
            gather.tail += varint_bytes(len(name) + 1) + name
        gather.tail += varint_bytes(len(topic.partitions) + 1)
        for partition in topic.partitions:
            if (
                partition.diverging_epoch is not NO_DIVERGING_EPOCH
                or partition.current_leader is not NO_LEADER
                or partition.snapshot_id is not NO_SNAPSHOT
            ):
                return False
            aborted = partition.aborted_transactions
            if aborted is None:
                gather.tail += _pack_usual_v12(
                    partition.partition_index,
                    partition.error_code,
                    partition.high_watermark,
                    partition.last_stable_offset,
                    partition.log_start_offset,
                    0,
                    partition.preferred_read_replica,
                )
            else:
                gather.tail += _fixed_fields(partition, 12)
                gather.tail += _compact_aborted(aborted)
                gather.tail += _pack_int32(partition.preferred_read_replica)
            records = partition.records
            if records is None:
                gather.tail += b"\0"
            else:
                gather.add(varint_bytes(_size(records) + 1), records)
            gather.tail += b"\0"
        gather.tail += b"\0"
    gather.tail += b"\0"
    return True


def _size(records: Parts) -> int:
    if isinstance(records, (bytes, bytearray, memoryview, FileRange)):
        return len(records)
    return sum(map(len, records))


class _Gather:
    """The parts of a frame, of which the last one is still being written."""

    __slots__ = ("parts", "tail")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.tail = bytearray()

    def add(self, fields: bytes, records: Parts) -> None:
        """The fields up to the size of the records, and the records."""
        tail = self.tail
        tail += fields
        if isinstance(records, (bytes, bytearray, memoryview, FileRange)):
            records = (records,)
        for piece in records:
            size = len(piece)
            if not isinstance(piece, FileRange) and size <= COPY_BYTES_MAX:
                tail += piece
            elif size:
                if tail:
                    self.parts.append(tail)
                    tail = self.tail = bytearray()
                self.parts.append(piece)

    def frame(self) -> list[Part] | None:
        parts = self.parts
        if self.tail:
            parts.append(self.tail)
        size = sum(map(len, parts)) - 4
        head = parts[0]
        if size > FRAME_BYTES_MAX or not isinstance(head, bytearray):
            return None
        _pack_size_into(head, 0, size)
        return parts


_pack_size_into: Final = INT32.pack_into
