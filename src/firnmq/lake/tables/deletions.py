"""Deleted records out of the table: files that have some are rewritten without them.

What has been applied to a shard's rows is a property of the table, the digest of a document beside
its files that names the deletions. A commit that replaces files sets it, so a look at the table's
files is needed only for deletions that came since, and a crash in between repeats it.

A note stays true for good. It speaks of offsets below the table's end as it was, rows there are
never added to, and a process that replaces a file makes the new one of rows that are there now.
"""

from __future__ import annotations

import hashlib
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from firnmq.errors import ObjectExists, ObjectNotFound
from firnmq.eventlog import EventLogger
from firnmq.lake.plans.plan import OFFSET_END, ShardPlan
from firnmq.lake.tables.catalogs.catalog import warehouse_store
from firnmq.lake.tables.files.footers import iceberg_files
from firnmq.lake.tables.files.key_filter import key_hash, may_hold_hash
from firnmq.lake.tables.files.names import below, deletions_path
from firnmq.lake.tables.files.pyiceberg_internals import appending, deleted_positions, replacing
from firnmq.lake.tables.files.rewrite import Removal, Rewrite, Rewritten
from firnmq.lake.tables.maintain import RunRewrites
from firnmq.lake.tables.table import (
    COMMIT,
    Advanced,
    TopicTable,
    deletions_property,
    shard_deletions,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import FileScanTask, Transaction

_LOOKS_MAX: Final = 5
"""Attempts at files that concurrent commits replace; after these the next sync does it."""
_AT_ONCE: Final = 8
"""Files whose filters are read at the same time."""

_log = EventLogger("lake.deletions")


class Deletions(msgspec.Struct, frozen=True, kw_only=True):
    """What is deleted of a shard, as far as it is about the table."""

    holes: tuple[int, ...] = ()
    dead_keys: tuple[tuple[bytes, int], ...] = ()
    """Rows with the key and an offset below the number."""

    @property
    def digest(self) -> str:
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).hexdigest()

    def beyond(self, shard: int, known: Deletions) -> Removal | None:
        """What is deleted here and was not there."""
        before = dict(known.dead_keys)
        holes = tuple(sorted(set(self.holes) - set(known.holes)))
        keys = tuple(
            (key, before.get(key, 0), below)
            for key, below in self.dead_keys
            if below > before.get(key, 0)
        )
        return Removal(shard=shard, holes=holes, keys=keys) if holes or keys else None


NOTHING: Final = Deletions()


def deletions_below(plan: ShardPlan, end: int) -> Deletions:
    """Those of the plan's deletions, and that part of them, that concern offsets below the end."""
    return Deletions(
        holes=tuple(sorted(hole for hole in plan.holes if hole < end)),
        dead_keys=tuple(sorted((key, min(below, end)) for key, below in plan.dead_keys if end > 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one application did."""

    row_count: int = 0
    files_before: int = 0
    files_after: int = 0

    def __add__(self, other: Applied) -> Applied:
        return Applied(
            row_count=self.row_count + other.row_count,
            files_before=self.files_before + other.files_before,
            files_after=self.files_after + other.files_after,
        )


@dataclass(slots=True, kw_only=True)
class _Look:
    """The results of checking the table's files."""

    removals: dict[int, Removal]
    goals: dict[int, Deletions]
    """Shard → what is applied once the rows of `removals` are gone."""
    seen: dict[int, str | None]
    """Shard → what the table noted."""
    clean: set[str] = field(default_factory=set)
    """Files that have none of the rows, though their bounds do not say so."""
    files: list[IcebergFile] = field(default_factory=list)
    work: list[Rewrite] = field(default_factory=list)
    """To be done to these files, in the same order."""
    deletes: dict[str, set[str]] = field(default_factory=dict)
    """File → what other engines have noted as deleted in it, which is then left out as well."""
    is_stuck: bool = False
    """A file has such rows and cannot be rewritten by us."""


class Deleter:
    """Applies deletions of plans to one table. One thread uses it."""

    def __init__(self, table: TopicTable, run: RunRewrites | None = None) -> None:
        """`run` has executors do the work; without it nothing can be applied."""
        self._table = table
        self._run = run
        self._documents: dict[str, Deletions] = {}
        """By their digests; those that are noted now."""

    def has_outstanding(self, shards: Sequence[ShardPlan]) -> bool:
        """Whether a deletion of the plan is not applied to the table as it was loaded."""
        return any(self._outstanding(each) is not None for each in shards)

    def outstanding_count(self, shards: Sequence[ShardPlan]) -> int:
        """How many are not, as far as they concern what the table has."""
        found = (self._outstanding(each) for each in shards)
        return sum(len(each.holes) + len(each.keys) for each in found if each is not None)

    def is_applied(self, shard: ShardPlan) -> bool:
        """Whether all deletions of the plan are that concern what the table has."""
        return self._outstanding(shard) is None

    def apply(self, shards: Sequence[ShardPlan]) -> Applied:
        """Removes the rows that the plan's deletions are about from the table's newest state."""
        done, is_stuck = Applied(), False
        for _ in range(_LOOKS_MAX):
            self._table.reload()
            self._forget_documents()
            look = self._look(shards)
            if look is None:
                return done
            assert self._run is not None
            rewritten = self._run(look.work) if look.work else []
            done += self._commit(look, rewritten)
            is_stuck = look.is_stuck
            if is_stuck:
                break
        if self.has_outstanding(shards):
            _log.warning(
                "deletions_wait",
                table=self._table.name,
                hint="other programs' files, by place or kind: rewrite them with those programs"
                if is_stuck
                else "others replace files all the time; the next sync tries again",
            )
        return done

    def noted(
        self, shards: Sequence[ShardPlan], ends: Mapping[int, int]
    ) -> dict[int, tuple[str | None, str]]:
        """What a commit may note that moves the table's ends there, with rows that the plan's
        deletions leave, for shards to which they are applied now. For `Advance.applied`."""
        found = {}
        for each in shards:
            goal = deletions_below(each, ends.get(each.shard, 0))
            before = shard_deletions(self._table.properties, each.shard)
            if goal != NOTHING and goal.digest != before and self.is_applied(each):
                self._keep(each.shard, goal)
                found[each.shard] = (before, goal.digest)
        return found

    def _outstanding(self, shard: ShardPlan) -> Removal | None:
        end = self._table.ends().get(shard.shard, 0)
        goal = deletions_below(shard, end)
        return None if goal == NOTHING else goal.beyond(shard.shard, self._known(shard.shard))

    # Looking ------------------------------------------------------------------------------------

    def _look(self, shards: Sequence[ShardPlan]) -> _Look | None:
        """Which files have rows that must go; None if nothing is outstanding."""
        table = self._table
        removals = {each.shard: found for each in shards if (found := self._outstanding(each))}
        if not removals:
            return None
        ends, properties = table.ends(), table.properties
        look = _Look(
            removals=removals,
            goals={
                each.shard: deletions_below(each, ends[each.shard])
                for each in shards
                if each.shard in removals
            },
            seen={shard: shard_deletions(properties, shard) for shard in removals},
        )
        columns = _Columns.of(table)
        tasks = [
            (task, parts)
            for task in table.iceberg.scan().plan_files()
            if (parts := columns.parts(task.file, removals.values()))
        ]
        self._plan_work(look, self._filtered(tasks, look.clean))
        return look

    def _plan_work(self, look: _Look, tasks: Sequence[tuple[FileScanTask, list[Removal]]]) -> None:
        """What is to be done to files that may have the rows."""
        table, run = self._table, secrets.token_hex(8)
        spec_id = table.iceberg.spec().spec_id
        positions = deleted_positions(table.iceberg, [task for task, _ in tasks])
        for task, parts in tasks:
            file = task.file
            path = below(table.location, file.file_path)
            if path is None or file.spec_id != spec_id:
                look.is_stuck = True
                continue
            look.deletes[file.file_path] = _deletes(task)
            look.work.append(
                Rewrite(
                    number=len(look.files),
                    run=run,
                    location=table.location,
                    partition=table.partition,
                    shard=parts[0].shard,
                    paths=(path,),
                    sizes=(file.file_size_in_bytes,),
                    options=table.catalog.options,
                    removals=tuple(parts),
                    positions=positions.get(file.file_path, ()),
                )
            )
            look.files.append(file)

    def _filtered(
        self, tasks: Sequence[tuple[FileScanTask, list[Removal]]], clean: set[str]
    ) -> list[tuple[FileScanTask, list[Removal]]]:
        """Those files that may have the rows, as their Bloom filters say; others are clean."""
        table = self._table
        keys = {key for _, parts in tasks for part in parts for key, _, _ in part.keys}
        hashes = {key: key_hash(key) for key in keys}
        store = warehouse_store(table.location, table.catalog.options)

        def may_have(found: tuple[FileScanTask, list[Removal]]) -> bool:
            task, parts = found
            file, wanted = task.file, {key for part in parts for key, _, _ in part.keys}
            path = below(table.location, file.file_path)
            if path is None or any(part.holes for part in parts):
                return True
            return may_hold_hash(
                store, path, file.file_size_in_bytes, [hashes[key] for key in wanted]
            )

        try:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="firn-filters") as threads:
                answers = list(threads.map(may_have, tasks))
        finally:
            store.close()
        kept = []
        for found, answer in zip(tasks, answers, strict=True):
            if answer:
                kept.append(found)
            else:
                clean.add(found[0].file.file_path)
        return kept

    # Committing ---------------------------------------------------------------------------------

    def _commit(self, look: _Look, rewritten: Sequence[Rewritten]) -> Applied:
        table = self._table
        columns = _Columns.of(table)
        changed = [(look.files[each.number], each) for each in rewritten if each.removed_count]
        look.clean |= {
            look.files[each.number].file_path for each in rewritten if not each.removed_count
        }
        for shard, goal in look.goals.items():
            self._keep(shard, goal)
        kept: list[tuple[IcebergFile, Rewritten]] = []

        def attempt(transaction: Transaction, token: str) -> Advanced:
            tasks = {task.file.file_path: task for task in table.iceberg.scan().plan_files()}
            # A file must not come back without the deletions of concurrent commits.
            kept[:] = [
                (file, each)
                for file, each in changed
                if (task := tasks.get(file.file_path)) is not None
                and _deletes(task) == look.deletes[file.file_path]
            ]
            done = look.clean | {file.file_path for file, _ in kept}
            left = {
                part.shard
                for path, task in tasks.items()
                if path not in done
                for part in columns.parts(task.file, look.removals.values())
            }
            notes = {
                deletions_property(shard): goal.digest
                for shard, goal in look.goals.items()
                if shard not in left
                and shard_deletions(table.properties, shard) == look.seen[shard]
            }
            if not kept and not notes:
                return Advanced()
            transaction.set_properties(notes)
            count = sum(each.removed_count for _, each in kept)
            begin: Any = replacing if kept else appending
            with begin(transaction, {COMMIT: token, "firn.deleted": str(count)}) as update:
                for file, each in kept:
                    update.delete_data_file(file)
                    for new in iceberg_files(table.iceberg, each.files):
                        update.append_data_file(new)
            return Advanced(snapshot_id=update.snapshot_id)

        table.commit(attempt, Advanced())
        done = Applied(
            row_count=sum(each.removed_count for _, each in kept),
            files_before=len(kept),
            files_after=sum(len(each.files) for _, each in kept),
        )
        _log.info(
            "deletions_applied", table=table.name, rows=done.row_count, files=done.files_before
        )
        return done

    # Documents ----------------------------------------------------------------------------------

    def _known(self, shard: int) -> Deletions:
        """What the table notes as applied. Where the document is gone, nothing: all is looked for
        again."""
        digest = shard_deletions(self._table.properties, shard)
        if digest is None:
            return NOTHING
        if digest not in self._documents:
            self._documents[digest] = self._read(deletions_path(shard, digest))
        return self._documents[digest]

    def _read(self, path: str) -> Deletions:
        store = warehouse_store(self._table.location, self._table.catalog.options)
        try:
            raw = bytes(store.get_range(path, 0, store.head(path).size))
        except ObjectNotFound:
            return NOTHING
        finally:
            store.close()
        return msgspec.msgpack.decode(raw, type=Deletions)

    def _forget_documents(self) -> None:
        """Keeps in memory only what is noted."""
        properties = self._table.properties
        noted = {shard_deletions(properties, shard) for shard in self._table.ends()}
        self._documents = {
            digest: each for digest, each in self._documents.items() if digest in noted
        }

    def _keep(self, shard: int, deletions: Deletions) -> None:
        """Writes the document, which has to be there before it is noted."""
        if self._documents.get(deletions.digest) == deletions:
            return
        store = warehouse_store(self._table.location, self._table.catalog.options)
        try:
            path = deletions_path(shard, deletions.digest)
            with suppress(ObjectExists):  # The same bytes, of an attempt before or of others.
                store.put(path, msgspec.msgpack.encode(deletions))
        finally:
            store.close()
        self._documents[deletions.digest] = deletions


class _Columns(NamedTuple):
    """Field ids of the columns whose bounds tell what a file cannot have."""

    shard: int
    offset: int
    key: int

    @classmethod
    def of(cls, table: TopicTable) -> _Columns:
        schema = table.iceberg.schema()
        return cls(*(schema.find_field(name).field_id for name in cls._fields))

    def parts(self, file: IcebergFile, removals: Any) -> list[Removal]:
        """That of the removals which may concern the file. Missing bounds exclude nothing."""
        lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
        shards = _number(lower, self.shard, 0), _number(upper, self.shard, OFFSET_END)
        first, last = _number(lower, self.offset, 0), _number(upper, self.offset, OFFSET_END)
        key_low, key_high = lower.get(self.key), upper.get(self.key)
        found = []
        for removal in removals:
            if not shards[0] <= removal.shard <= shards[1]:
                continue
            holes = removal.holes
            part = Removal(
                shard=removal.shard,
                holes=holes[bisect_left(holes, first) : bisect_right(holes, last)],
                keys=tuple(
                    (key, begin, end)
                    for key, begin, end in removal.keys
                    if begin <= last
                    and first < end
                    and (key_low is None or key_low <= key)
                    and (key_high is None or key <= key_high)
                ),
            )
            if part.holes or part.keys:
                found.append(part)
        return found


def _number(bounds: Mapping[int, bytes], column: int, default: int) -> int:
    raw = bounds.get(column)
    return default if raw is None else int.from_bytes(raw, "little", signed=True)


def _deletes(task: FileScanTask) -> set[str]:
    return {each.file_path for each in task.delete_files}
