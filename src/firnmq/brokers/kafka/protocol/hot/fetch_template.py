"""What stays the same in the fetch requests of one client that reads one partition: all but two
numbers. And the one answer that such a client waits for: the batch that was just appended."""

from __future__ import annotations

import struct
from typing import Final

from firnmq.brokers.kafka.protocol.header import RequestHeader
from firnmq.brokers.kafka.protocol.hot.fetch import NO_REPLICA_SINCE, TOPIC_IDS_SINCE
from firnmq.brokers.kafka.protocol.messages.produce_fetch import FetchRequest, FetchTopic
from firnmq.brokers.kafka.protocol.primitives import Buffer, varint_bytes

_CORRELATION_ID: Final = 4
_BODY: Final = 8
"""Where the correlation id is, and where it ends."""
_VERSION_MIN: Final = 4
_COMPACT_FIRST: Final = 12
_OFFSET_BYTES: Final = 8
_unpack_int32: Final = struct.Struct(">i").unpack_from
_unpack_int64: Final = struct.Struct(">q").unpack_from
_pack_size: Final = struct.Struct(">i").pack
_pack_size_and_id: Final = struct.Struct(">ii").pack
_pack_offsets: Final = struct.Struct(">qq").pack
_pack_start: Final = struct.Struct(">q").pack


class FetchTemplate:
    """Requests for one partition of one topic, of one version."""

    __slots__ = (
        *("_before_offset", "_before_records", "_body", "_fields", "_has_start", "_head"),
        *("_is_compact", "_offset_at", "_size", "_tail", "_trailer", "header", "request"),
    )

    def __init__(
        self, frame: bytearray, offset_at: int, header: RequestHeader, request: FetchRequest
    ) -> None:
        self.header = header
        self.request = request
        """The one that the template was made of; the others have another offset."""
        self._offset_at = offset_at
        self._size = len(frame)
        self._head = bytes(frame[:_CORRELATION_ID])
        self._body = bytes(frame[_BODY:offset_at])
        self._tail = bytes(frame[offset_at + _OFFSET_BYTES :])
        version = header.api_version
        self._is_compact = version >= _COMPACT_FIRST
        self._has_start = version >= 5
        self._fields, self._before_records = _response_around(version, request)
        self._trailer = bytes(3) if self._is_compact else b""  # No tagged fields at three levels.

    @classmethod
    def learn(
        cls, frame: bytearray, header: RequestHeader, request: FetchRequest
    ) -> FetchTemplate | None:
        """What the next request may be compared with; None if this one is not of the plain kind."""
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return None
        if header.api_version < _VERSION_MIN or request.max_wait_ms <= 0 or request.min_bytes < 1:
            return None
        if request.session_epoch not in (0, -1):
            return None  # It is judged for each request.
        offset_at = _offset_at(header, request)
        (partition,) = request.topics[0].partitions
        is_there = 0 < offset_at <= len(frame) - _OFFSET_BYTES
        if not is_there or _unpack_int64(frame, offset_at) != (partition.fetch_offset,):
            return None
        return cls(frame, offset_at, header, request)

    def match(self, frame: bytearray) -> tuple[int, int] | None:
        """Correlation id and offset, if everything else is as it was."""
        offset_at = self._offset_at
        if (
            len(frame) != self._size
            or not frame.startswith(self._head)
            or not frame.startswith(self._body, _BODY)
            or not frame.endswith(self._tail)
        ):
            return None
        (correlation_id,) = _unpack_int32(frame, _CORRELATION_ID)
        (offset,) = _unpack_int64(frame, offset_at)
        return correlation_id, offset

    def response(
        self, correlation_id: int, end_offset: int, start_offset: int, records: Buffer
    ) -> bytes:
        """The frame with these records, of a log all of which is certain."""
        size = len(records)
        pieces = (
            self._fields,
            _pack_offsets(end_offset, end_offset),
            _pack_start(start_offset) if self._has_start else b"",
            self._before_records,
            varint_bytes(size + 1) if self._is_compact else _pack_size(size),
            records,
            self._trailer,
        )
        total = 4 + sum(map(len, pieces))
        return b"".join((_pack_size_and_id(total, correlation_id), *pieces))


def _offset_at(header: RequestHeader, request: FetchRequest) -> int:
    """Where the offset is in the frame, if no field is longer than it has to be."""
    version = header.api_version
    position = _BODY + 2 + len((header.client_id or "").encode())
    position += 21 if version >= NO_REPLICA_SINCE else 25 if version >= 7 else 17
    named = len(_named(version, request.topics[0]))
    if version >= _COMPACT_FIRST:
        # No tagged fields of the header, one topic, its name or id, one partition.
        position += 1 + 1 + named + 1
    else:
        position += 4 + named + 4
    return position + (8 if version >= 9 else 4)  # The partition, and the leader's epoch.


def _named(version: int, topic: FetchTopic) -> bytes:
    """The topic's name with its length, or its id."""
    if version >= TOPIC_IDS_SINCE:
        return topic.topic_id.bytes
    name = topic.topic.encode()
    if version >= _COMPACT_FIRST:
        return varint_bytes(len(name) + 1) + name
    return struct.pack(">h", len(name)) + name


def _response_around(version: int, request: FetchRequest) -> tuple[bytes, bytes]:
    """What a response has between the correlation id and the offsets, and then before the size
    of the records."""
    (topic,) = request.topics
    named = _named(version, topic)
    no_throttle, no_error, no_session = bytes(4), bytes(2), bytes(4)
    one = _pack_size(1)
    numbers = struct.pack(">ih", topic.partitions[0].partition, 0)  # index, error_code.
    is_committed = request.isolation_level == 1
    no_replica = _pack_size(-1)
    if version >= _COMPACT_FIRST:
        two = varint_bytes(2)  # Counts are one too high in this encoding.
        fields = b"\0" + no_throttle + no_error + no_session + two + named + two + numbers
        return fields, (b"\1" if is_committed else b"\0") + no_replica
    fields = no_throttle + (no_error + no_session if version >= 7 else b"")
    fields += one + named + one + numbers
    # No list of aborted transactions, or an empty one for clients that read committed only.
    aborted = _pack_size(0 if is_committed else -1)
    return fields, aborted + (no_replica if version >= 11 else b"")
