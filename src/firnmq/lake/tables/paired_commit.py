"""One commit to two tables: a typed topic's rows, and the table of records that do not fit.

No catalog of ours commits to two tables at once. So the dead letters are first, and their commit
names a document with what the other table has to get: from then on it will get exactly that, from
the next process that commits. A shard's next commit waits until both tables go equally far.
"""

from __future__ import annotations

import secrets

import msgspec

from firnmq.errors import ObjectNotFound
from firnmq.eventlog import EventLogger
from firnmq.lake.tables.catalogs.catalog import warehouse_store
from firnmq.lake.tables.files.parquet import DataFile
from firnmq.lake.tables.table import Advance, Advanced, TopicTable, shard_pending

PENDING = "pending"
"""Folder of the documents, below the dead-letter table's location."""

_log = EventLogger("lake.paired_commit")


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    base: dict[int, int]
    ends: dict[int, int]
    files: tuple[DataFile, ...]
    summary: dict[str, str]
    applied: dict[int, tuple[str | None, str]] = {}
    marks: dict[int, str] = {}


def commit_both(
    table: TopicTable, dead: TopicTable, advance: Advance, letters: Advance
) -> tuple[Advanced, int]:
    """Commits what a round made; what came of it, and how many dead letters there were."""
    path = f"{PENDING}/{secrets.token_hex(16)}"
    store = warehouse_store(dead.location, dead.catalog.options)
    try:
        document = _Document(
            base=dict(advance.base),
            ends=dict(advance.ends),
            files=tuple(advance.files),
            summary=dict(advance.summary),
            applied=dict(advance.applied),
            marks=dict(advance.marks),
        )
        store.put(path, msgspec.msgpack.encode(document))
        first = dead.advance(letters, other_ends=lambda: table.reload().ends(), pending=path)
        if first.shards:
            advanced = table.advance(advance.only(first.shards))
            if advanced.shards != first.shards:
                # Another process that found the document was quicker; the files are the same.
                advanced = _counted(advance.only(first.shards), first.shards)
        else:
            advanced = Advanced()
        store.delete([path])
        return advanced, first.row_count
    finally:
        store.close()


def finish_pending(table: TopicTable, dead: TopicTable) -> None:
    """Gives the table what the dead letters' commits promised it, after a crash in between."""
    ends, dead_ends = table.ends(), dead.ends()
    behind = {shard for shard, end in dead_ends.items() if ends.get(shard, 0) < end}
    if not behind:
        return
    store = warehouse_store(dead.location, dead.catalog.options)
    try:
        for shard in sorted(behind):
            path = shard_pending(dead.properties, shard)
            assert path is not None
            try:
                size = store.head(path).size
                raw = bytes(store.get_range(path, 0, size))
            except ObjectNotFound:
                # Another process has finished it, or the table would still be behind.
                if table.reload().ends().get(shard, 0) < dead_ends[shard]:
                    raise
                continue
            document = msgspec.msgpack.decode(raw, type=_Document)
            advance = Advance(
                base=document.base,
                ends=document.ends,
                files=document.files,
                summary=document.summary,
                applied=document.applied,
                marks=document.marks,
            )
            done = table.advance(advance.only((shard,)))
            _log.info("pending_finished", table=table.name, shard=shard, rows=done.row_count)
    finally:
        store.close()


def _counted(advance: Advance, shards: tuple[int, ...]) -> Advanced:
    return Advanced(
        shards=shards,
        row_count=sum(file.row_count for file in advance.files),
        file_count=len(advance.files),
        file_bytes=sum(file.size for file in advance.files),
    )
