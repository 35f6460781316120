"""Reads stored batches the way a broker does."""

from __future__ import annotations

import os

from firnmq.disk import FileRange
from firnmq.engines import StoredPage
from tests.conformance.lab import EVERYTHING, Shard


def nowait(
    shard: Shard,
    offset: int,
    *,
    max_bytes: int = EVERYTHING,
    committed: bool = False,
    ranges: bool = True,
) -> StoredPage | None:
    return shard.engine.read_stored_nowait(
        shard.name, offset, max_bytes=max_bytes, committed=committed, ranges=ranges
    )


def checked(
    shard: Shard,
    offset: int,
    *,
    max_bytes: int = EVERYTHING,
    committed: bool = False,
    ranges: bool = True,
) -> StoredPage:
    return shard.engine.read_stored(
        shard.name, offset, max_bytes=max_bytes, committed=committed, ranges=ranges
    )


def stored(
    shard: Shard,
    offset: int,
    *,
    max_bytes: int = EVERYTHING,
    committed: bool = False,
    ranges: bool = True,
) -> StoredPage:
    """As a broker reads: without waiting if possible."""
    page = nowait(shard, offset, max_bytes=max_bytes, committed=committed, ranges=ranges)
    if page is not None:
        return page
    return checked(shard, offset, max_bytes=max_bytes, committed=committed, ranges=ranges)


def content(page: StoredPage) -> bytes:
    return b"".join(
        os.pread(part.fd, part.size_bytes, part.position)
        if isinstance(part, FileRange)
        else bytes(part)
        for part in page.contents
    )
