"""Upkeep of a table: small files into large ones, old snapshots and unreferenced files removed."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from firnmq.errors import InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.lake.tables.catalogs.catalog import warehouse_store
from firnmq.lake.tables.files.footers import iceberg_files
from firnmq.lake.tables.files.names import DATA, DELETIONS, below, deletions_path, parse_converted
from firnmq.lake.tables.files.pyiceberg_internals import replacing
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten
from firnmq.lake.tables.paired_commit import PENDING
from firnmq.lake.tables.table import (
    COMMIT,
    METADATA,
    Advanced,
    TopicTable,
    shard_deletions,
    shard_pending,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table, Transaction

    from firnmq.tiering.stores import ObjectInfo

TARGET_BYTES: Final = 256 * 1024 * 1024
SMALL_PART: Final = 0.75
"""A file below this part of the target is small."""
METADATA_FILE: Final = ".metadata.json"
SNAPSHOT_AGE_MS: Final = 7 * 24 * 3600 * 1000
GRACE_MS: Final = 24 * 3600 * 1000
"""What a writer may take from writing a file to committing it, and more."""
_DELETE_AT_ONCE: Final = 500

_log = EventLogger("lake.maintain")

RunRewrites = Callable[[Sequence[Rewrite]], list[Rewritten]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did, or would do."""

    groups: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What an expiry did, or would do."""

    snapshots: int = 0
    snapshots_left: int = 0
    files: int = 0
    file_bytes: int = 0
    young_files: int = 0
    """No snapshot refers to them, but a commit may be about to."""


# Compaction ---------------------------------------------------------------------------------------


def compact(
    table: TopicTable,
    run: RunRewrites,
    *,
    target_bytes: int = TARGET_BYTES,
    is_dry: bool = False,
) -> Compacted:
    """Puts small files of the same shard and partition together, in the order of offsets.

    Syncs may go on: the files they add are not touched. If another process replaced one
    of the files first, its group stays as it is. Files of other columns are not mixed.
    """
    if target_bytes < 1:
        raise InvalidArgument("target_bytes", f"{target_bytes} is less than 1")
    groups = list(_small_groups(table.reload().iceberg, target_bytes))
    found = Compacted(
        groups=len(groups),
        files_before=sum(map(len, groups)),
        bytes_before=sum(file.file_size_in_bytes for group in groups for file in group),
        rows=sum(file.record_count for group in groups for file in group),
    )
    if is_dry or not groups:
        return found
    name = secrets.token_hex(8)
    rewrites = [
        Rewrite(
            number=number,
            run=name,
            location=table.location,
            partition=table.partition,
            shard=_shard_of(group[0]),
            paths=tuple(_path_in(table.iceberg, file) or "" for file in group),
            sizes=tuple(file.file_size_in_bytes for file in group),
            options=table.catalog.options,
        )
        for number, group in enumerate(groups)
    ]
    done = [(groups[each.number], each) for each in run(rewrites) if each.files]
    kept = _replace_files(table, done)
    return Compacted(
        groups=len(kept),
        files_before=sum(len(group) for group, _ in kept),
        files_after=sum(len(each.files) for _, each in kept),
        bytes_before=sum(file.file_size_in_bytes for group, _ in kept for file in group),
        bytes_after=sum(file.size for _, each in kept for file in each.files),
        rows=sum(file.row_count for _, each in kept for file in each.files),
    )


def _replace_files(
    table: TopicTable, done: Sequence[tuple[list[IcebergFile], Rewritten]]
) -> list[tuple[list[IcebergFile], Rewritten]]:
    kept: list[tuple[list[IcebergFile], Rewritten]] = []

    def attempt(transaction: Transaction, token: str) -> Advanced:
        # A file must not come back without the deletions that were committed during the rewrite.
        current = {
            task.file.file_path
            for task in table.iceberg.scan().plan_files()
            if not task.delete_files
        }
        kept[:] = [
            (group, each)
            for group, each in done
            if all(file.file_path in current for file in group)
        ]
        if not kept:
            return Advanced()
        with replacing(transaction, {COMMIT: token, "firn.compaction": "true"}) as update:
            for group, each in kept:
                for old in group:
                    update.delete_data_file(old)
                for new in iceberg_files(table.iceberg, each.files):
                    update.append_data_file(new)
        return Advanced(snapshot_id=update.snapshot_id)

    table.commit(attempt, Advanced())
    _log.info("table_compacted", table=table.name, groups=len(kept))
    return kept


def _small_groups(table: Table, target_bytes: int) -> Iterator[list[IcebergFile]]:
    """Neighbours by offset that are small, and together not too large."""
    by_place: dict[tuple[Any, int], list[IcebergFile]] = defaultdict(list)
    for task in table.scan().plan_files():
        is_ours = task.file.spec_id == table.spec().spec_id and _path_in(table, task.file)
        if is_ours and not task.delete_files:
            by_place[task.file.partition[0], _shard_of(task.file)].append(task.file)
    for _, files in sorted(by_place.items()):
        group: list[IcebergFile] = []
        size = 0
        for file in sorted(files, key=_first_offset):
            is_small = file.file_size_in_bytes < target_bytes * SMALL_PART
            if not is_small or size + file.file_size_in_bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            if is_small:
                group.append(file)
                size += file.file_size_in_bytes
        if len(group) > 1:
            yield group


def _path_in(table: Table, file: IcebergFile) -> str | None:
    """Below the table's location; None for a file that another program put elsewhere."""
    return below(table.location(), file.file_path)


def _shard_of(file: IcebergFile) -> int:
    return int.from_bytes(file.lower_bounds[1], "little", signed=True)


def _first_offset(file: IcebergFile) -> int:
    return int.from_bytes(file.lower_bounds[2], "little", signed=True)


# Expiry -------------------------------------------------------------------------------------------


def expire(
    table: TopicTable,
    *,
    older_than_ms: int = SNAPSHOT_AGE_MS,
    keep_last: int = 1,
    grace_ms: int = GRACE_MS,
    is_dry: bool = False,
    now_ms: int | None = None,
) -> Expired:
    """Forgets old snapshots and removes files that no snapshot has.

    The newest `keep_last` snapshots stay, and those that a branch or tag names.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    table.reload()
    gone = _old_snapshots(table.iceberg, now - older_than_ms, keep_last)
    if gone and not is_dry:
        _forget(table, gone)
    store = warehouse_store(table.location, table.catalog.options)
    try:
        # Listed first: a file that is committed while we look is then among those in use.
        folders = (DATA, METADATA, PENDING, DELETIONS)
        listed = [info for folder in folders for info in store.list(folder)]
        table.reload()
        used = set(_paths_used(table, without=gone if is_dry else frozenset()))
        for shard in table.ends():
            used.add(shard_pending(table.properties, shard) or "")
            used.add(deletions_path(shard, shard_deletions(table.properties, shard) or ""))
        unused = [info for info in listed if info.key not in used and not _is_kept(table, info)]
        dead = [info for info in unused if _is_dead(info, table.ends(), now - grace_ms)]
        if not is_dry:
            keys = [info.key for info in dead]
            for start in range(0, len(keys), _DELETE_AT_ONCE):
                store.delete(keys[start : start + _DELETE_AT_ONCE])
            store.sweep("", before_ms=now - grace_ms)
    finally:
        store.close()
    _log.info("table_expired", table=table.name, snapshots=len(gone), files=len(dead))
    return Expired(
        snapshots=len(gone),
        snapshots_left=len(table.iceberg.metadata.snapshots) - (len(gone) if is_dry else 0),
        files=len(dead),
        file_bytes=sum(info.size for info in dead),
        young_files=len(unused) - len(dead),
    )


def _is_kept(table: TopicTable, info: ObjectInfo) -> bool:
    """The documents that a REST catalog writes are the catalog's to remove: it may know of more
    than it tells, and none is much."""
    return table.catalog.is_rest and METADATA_FILE in info.key.rpartition("/")[2]


def _is_dead(info: ObjectInfo, ends: dict[int, int], before_ms: int) -> bool:
    """Whether no commit can add it any more.

    A conversion's file is out of the running once the table goes beyond where its split begins;
    until then it waits, however old it is. Others are by their age.
    """
    if info.modified_ms >= before_ms:
        return False
    named = parse_converted(info.key)
    return named is None or named.start_offset < ends.get(named.shard, 0)


def _old_snapshots(table: Table, before_ms: int, keep_last: int) -> frozenset[int]:
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    newest = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms, reverse=True)
    kept |= {snapshot.snapshot_id for snapshot in newest[: max(1, keep_last)]}
    return frozenset(
        snapshot.snapshot_id
        for snapshot in newest
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in kept
    )


def _forget(table: TopicTable, gone: frozenset[int]) -> None:
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    def attempt(transaction: Transaction, token: str) -> Advanced:
        known = {snapshot.snapshot_id for snapshot in table.iceberg.metadata.snapshots}
        left = sorted(gone & known)
        if not left:
            return Advanced()
        ExpireSnapshots(transaction).by_ids(left).commit()
        return Advanced(snapshot_id=left[0])

    table.commit(attempt, Advanced())


def _paths_used(table: TopicTable, *, without: frozenset[int]) -> Iterator[str]:
    """Every file that a snapshot or the newest metadata refers to, below the table's location."""
    for location in _locations_used(table.iceberg, without):
        path = below(table.location, location)
        if path is not None:
            yield path


def _locations_used(table: Table, without: frozenset[int]) -> Iterable[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (each.statistics_path for each in metadata.statistics)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id in without:
            continue
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


def age_ms(text: str) -> int:
    """`7d`, `12h`, `30m`, `90s`, `0`: how long ago, in milliseconds."""
    units = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
    number, unit = (text[:-1], text[-1:]) if text[-1:] in units else (text, "s")
    if not number.isascii() or not number.isdigit():
        raise InvalidArgument("age", f"{text!r} is not like 7d, 12h, 30m or 90s")
    return int(number) * units[unit]
