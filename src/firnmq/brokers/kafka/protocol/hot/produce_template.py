"""What stays the same in the produce requests of one client: all but a few numbers and the records.

A client that sends one batch per request repeats its own name, the topic and the options tens of
thousands of times a second. Once such a request has been parsed, the next is compared with it.
"""

from __future__ import annotations

import struct
from typing import Final

from firnmq.brokers.kafka.protocol.header import RequestHeader
from firnmq.brokers.kafka.protocol.hot.produce import TOPIC_IDS_SINCE
from firnmq.brokers.kafka.protocol.hot.scan import GIVE_UP, varint
from firnmq.brokers.kafka.protocol.messages.produce_fetch import ProduceRequest, TopicProduceData
from firnmq.brokers.kafka.protocol.primitives import varint_bytes
from firnmq.brokers.kafka.protocol.versions import PRODUCE_VERSION_SERVED_MIN

_CORRELATION_ID: Final = 4
_BODY: Final = 8
"""Where the correlation id is, and where it ends."""
_COMPACT_FIRST: Final = 9
_COMPACT_END: Final = b"\0\0\0"
"""No tagged fields of the partition, of the topic and of the request."""
_unpack_int32: Final = struct.Struct(">i").unpack_from
_unpack_partition: Final = struct.Struct(">ii").unpack_from  # index, size of the records.
_NO_APPEND_TIME: Final = -1


class ProduceTemplate:
    """Requests for one topic, of one version, with one partition each."""

    __slots__ = (
        *("_body", "_fields", "_frame_size", "_has_start", "_head", "_index_at", "_pack", "_tail"),
        *("acks", "header", "topic"),
    )

    def __init__(
        self,
        frame: bytearray,
        index_at: int,
        header: RequestHeader,
        acks: int,
        topic: TopicProduceData,
    ) -> None:
        self.header = header
        self.acks = acks
        self.topic = topic
        """Its name, or its id in later versions, without data."""
        self._index_at = index_at
        self._head = bytes(frame[:_CORRELATION_ID])
        self._body = bytes(frame[_BODY:index_at])
        self._fields, self._tail = _response_around(header.api_version, topic)
        self._has_start = header.api_version >= 5
        layout = struct.Struct(
            ">ii"  # frame size, correlation_id.
            f"{len(self._fields)}s"  # Up to the partition.
            "ihqq"  # index, error_code, base_offset, log_append_time_ms.
            f"{'q' if self._has_start else ''}"  # log_start_offset.
            f"{len(self._tail)}s"
        )
        self._frame_size = layout.size - 4
        self._pack = layout.pack

    @classmethod
    def learn(
        cls, frame: bytearray, header: RequestHeader, request: ProduceRequest
    ) -> ProduceTemplate | None:
        """What the next request may be compared with; None if this one is not of the plain kind."""
        if len(request.topic_data) != 1 or request.transactional_id is not None:
            return None
        (topic,) = request.topic_data
        if len(topic.partition_data) != 1 or header.api_version < PRODUCE_VERSION_SERVED_MIN:
            return None
        (partition,) = topic.partition_data
        if not partition.records or request.acks not in (-1, 0, 1):
            return None
        size = len(partition.records)
        index_at = len(frame) - size - 8
        if header.api_version >= _COMPACT_FIRST:
            index_at = len(frame) - len(_COMPACT_END) - size - len(varint_bytes(size + 1)) - 4
        known = TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=())
        template = cls(frame, index_at, header, request.acks, known)
        # Unusual requests, such as those with tagged fields, are not what they were taken for.
        matched = template.match(frame)
        wanted = (header.correlation_id, partition.index, size)
        is_plain = matched is not None and (*matched[:2], len(matched[2])) == wanted
        return template if is_plain else None

    def match(self, frame: bytearray) -> tuple[int, int, memoryview] | None:
        """Correlation id, partition and records, if everything else is as it was."""
        if not (frame.startswith(self._head) and frame.startswith(self._body, _BODY)):
            return None
        at = self._index_at
        view = memoryview(frame)
        try:
            if self.header.api_version < _COMPACT_FIRST:
                index, size = _unpack_partition(frame, at)
                start, end = at + 8, len(frame)
                if start + size != end:
                    return None
            else:
                (index,) = _unpack_int32(frame, at)
                size, start = varint(view, at + 4)
                end = start + size - 1
                if size == 0 or end + len(_COMPACT_END) != len(frame):
                    return None
                if not frame.startswith(_COMPACT_END, end):
                    return None
        except GIVE_UP:
            return None
        (correlation_id,) = _unpack_int32(frame, _CORRELATION_ID)
        return correlation_id, index, view[start:end]

    def response(
        self, correlation_id: int, index: int, base_offset: int, start_offset: int
    ) -> bytes:
        """The frame that says where the records are."""
        start = (start_offset,) if self._has_start else ()
        return self._pack(
            *(self._frame_size, correlation_id, self._fields),
            *(index, 0, base_offset, _NO_APPEND_TIME, *start, self._tail),
        )


def _response_around(version: int, topic: TopicProduceData) -> tuple[bytes, bytes]:
    """What a response with one partition has between its header and the numbers, and after."""
    no_throttle, name = bytes(4), topic.name.encode()
    if version >= _COMPACT_FIRST:
        one = varint_bytes(2)  # Counts are one too high in this encoding.
        named = varint_bytes(len(name) + 1) + name
        if version >= TOPIC_IDS_SINCE:
            named = topic.topic_id.bytes
        fields = b"\0" + one + named + one
        # No record_errors, a null error_message, and no tagged fields at three levels.
        return fields, b"\1\0\0" + b"\0" + no_throttle + b"\0"
    one = struct.pack(">i", 1)
    fields = one + struct.pack(">h", len(name)) + name + one
    explanation = b"\0\0\0\0\xff\xff" if version >= 8 else b""
    return fields, explanation + no_throttle
