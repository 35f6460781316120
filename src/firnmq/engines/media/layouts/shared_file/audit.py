"""Compares shared files with what their rows say, for `firn verify`. Nothing is repaired."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firnmq.disk import Family, FileCache, KeyValueStore
from firnmq.engines.media.layouts.shared_file.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from firnmq.engines.media.layouts.shared_file.rows import (
    ALL_LOCATIONS,
    LOCATION_KEY,
    unpack_location,
)
from firnmq.engines.media.layouts.shared_file.table import FileTable

_ROWS_PER_PASS = 4_096


class SharedFileFault(NamedTuple):
    """What is wrong with a file."""

    path: str
    reason: str
    is_missing: bool = False
    """Whether frames that segments have are not there."""


def audit(table: FileTable, files: FileCache, kv: KeyValueStore) -> Iterator[SharedFileFault]:
    """Goes through all locations once."""
    live = dict.fromkeys(table.extents, 0)
    lost: set[int] = set()
    lower, upper = ALL_LOCATIONS
    while rows := kv.items(Family.LOCATIONS, lower, upper, _ROWS_PER_PASS):
        for key, packed in rows:
            number, position, length = unpack_location(packed)
            extent = table.extents.get(number)
            if extent is None or position + length > extent.written:
                if number not in lost:
                    uid, place, _ = LOCATION_KEY.unpack(key)
                    reason = f"has no bytes at {position:,}, where shard {uid} segment {place} is"
                    yield SharedFileFault(table.path(number), reason, is_missing=True)
                lost.add(number)
                continue
            live[number] += FRAME_HEADER_BYTES + length
        lower = rows[-1][0] + b"\0"
    for number, extent in list(table.extents.items()):
        path = table.path(number)
        length = files.length(path) or 0
        if length < extent.written:
            reason = f"has {length:,} bytes, {extent.written:,} were written"
            yield SharedFileFault(path, reason, is_missing=True)
        counted = live[number] + table.dead_bytes(number) + FILE_HEADER_BYTES
        if extent.written and counted != extent.written and number not in lost:
            reason = (
                f"{live[number]:,} bytes are of segments and {table.dead_bytes(number):,} of none, "
                f"of {extent.written - FILE_HEADER_BYTES:,} written"
            )
            yield SharedFileFault(path, reason)
    for number in set(table.numbers_on_disk()) - set(table.extents):
        yield SharedFileFault(table.path(number), "no row knows the file")
