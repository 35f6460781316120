"""Fetch requests of all versions."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from firnmq.brokers.kafka.protocol.hot.scan import (
    ELEMENT_COUNT_MAX,
    GIVE_UP,
    compact_count,
    compact_string,
    string,
    uuid,
)
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from firnmq.brokers.kafka.protocol.primitives import INT32, ZERO_UUID

TOPIC_IDS_SINCE: Final = 13
"""From this version on topics have ids in place of names."""
NO_REPLICA_SINCE: Final = 15
"""From this version on requests do not begin with a replica's id."""

_HEAD_V4: Final = struct.Struct(
    ">"
    "i"  # 0   replica_id.
    "i"  # 4   max_wait_ms.
    "i"  # 8   min_bytes.
    "i"  # 12  max_bytes.
    "b"  # 16  isolation_level.
)
_HEAD_V7: Final = struct.Struct(">iiiibii")  # And session_id, session_epoch.
_HEAD_V15: Final = struct.Struct(">iiibii")  # Without replica_id.

_PARTITION_V4: Final = struct.Struct(">iqi")  # partition, fetch_offset, partition_max_bytes.
_PARTITION_V5: Final = struct.Struct(">iqqi")  # log_start_offset behind fetch_offset.
_PARTITION_V9: Final = struct.Struct(">iiqqi")  # current_leader_epoch behind partition.
_PARTITION_V12: Final = struct.Struct(">iiqiqiB")  # last_fetched_epoch; the count of tagged fields.

_unpack_count: Final = INT32.unpack_from


def parse_fetch(view: memoryview, position: int, version: int) -> FetchRequest | None:
    """None for a request that forgets topics of a session: we never create sessions."""
    try:
        if version >= 12:
            return _parse_compact(view, position, version)
        return _parse_classic(view, position, version)
    except GIVE_UP:
        return None


def _parse_classic(view: memoryview, position: int, version: int) -> FetchRequest | None:
    session_id, session_epoch, rack_id = 0, -1, ""
    if version >= 7:
        replica, wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = (
            _HEAD_V7.unpack_from(view, position)
        )
        position += 25
    else:
        replica, wait_ms, min_bytes, max_bytes, isolation = _HEAD_V4.unpack_from(view, position)
        position += 17
    layout = _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
    (topic_count,) = _unpack_count(view, position)
    position += 4
    if topic_count < 0:
        return None
    elements = topic_count
    topics = []
    for _ in range(topic_count):
        name, position = string(view, position)
        (count,) = _unpack_count(view, position)
        position += 4
        elements += count
        end = position + count * layout.size
        if count < 0 or elements > ELEMENT_COUNT_MAX or end > len(view):
            return None
        rows = layout.iter_unpack(view[position:end])
        topics.append(FetchTopic(topic=name, partitions=tuple(_partitions(rows, version))))
        position = end
    if version >= 7:
        if _unpack_count(view, position) != (0,):
            return None
        if version >= 11:
            rack_id, position = string(view, position + 4)
    return FetchRequest(
        replica_id=replica,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=tuple(topics),
        rack_id=rack_id,
    )


def _partitions(rows: Iterable[tuple[int, ...]], version: int) -> list[FetchPartition]:
    if version >= 9:
        return [
            FetchPartition(
                partition=partition,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                log_start_offset=start,
                partition_max_bytes=max_bytes,
            )
            for partition, epoch, offset, start, max_bytes in rows
        ]
    if version >= 5:
        return [
            FetchPartition(
                partition=partition,
                fetch_offset=offset,
                log_start_offset=start,
                partition_max_bytes=max_bytes,
            )
            for partition, offset, start, max_bytes in rows
        ]
    return [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        for partition, offset, max_bytes in rows
    ]


def _parse_compact(view: memoryview, position: int, version: int) -> FetchRequest | None:
    replica = -1
    if version >= NO_REPLICA_SINCE:
        head = _HEAD_V15.unpack_from(view, position)
        position += _HEAD_V15.size
    else:
        replica, *rest = _HEAD_V7.unpack_from(view, position)
        head = tuple(rest)
        position += _HEAD_V7.size
    wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = head
    topic_count, position = compact_count(view, position)
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
        end = position + count * _PARTITION_V12.size
        if elements > ELEMENT_COUNT_MAX or end > len(view):
            return None
        partitions = []
        for index, epoch, offset, fetched, start, limit, tags in _PARTITION_V12.iter_unpack(
            view[position:end]
        ):
            if tags:
                return None
            partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=fetched,
                    log_start_offset=start,
                    partition_max_bytes=limit,
                )
            )
        if view[end]:
            return None
        position = end + 1
        topics.append(FetchTopic(topic=name, topic_id=topic_id, partitions=tuple(partitions)))
    if view[position] != 1:  # An empty array of forgotten topics.
        return None
    rack_id, position = compact_string(view, position + 1)
    if view[position]:
        return None
    return FetchRequest(
        replica_id=replica,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=tuple(topics),
        rack_id=rack_id,
    )
