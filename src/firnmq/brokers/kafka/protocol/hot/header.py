"""The request header, which every call has."""

from __future__ import annotations

import struct
from typing import Final

from firnmq.brokers.kafka.protocol.header import RequestHeader
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.versions import ADVERTISED

_HEAD: Final = struct.Struct(
    ">"
    "h"  # 0  api_key.
    "h"  # 2  api_version.
    "i"  # 4  correlation_id.
    "h"  # 8  length of client_id, -1 for null.
)
_unpack_head: Final = _HEAD.unpack_from
_HEAD_BYTES: Final = 10
assert _HEAD.size == _HEAD_BYTES


def parse_request_header(reader: Reader) -> RequestHeader | None:
    """The header, with `reader` moved behind it; or None, with `reader` where it was."""
    view = reader.view
    try:
        api_key, api_version, correlation_id, length = _unpack_head(view, reader.position)
        position = reader.position + _HEAD_BYTES
        client_id = None
        if length != -1:
            end = position + length
            if length < 0 or end > len(view):
                return None
            client_id = str(view[position:end], "utf-8")
            position = end
        versions = ADVERTISED.get(api_key)
        if versions is not None and api_version >= versions.flexible_first:
            if view[position] != 0:
                return None
            position += 1
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    reader.position = position
    return RequestHeader(
        api_key=api_key,
        api_version=api_version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
