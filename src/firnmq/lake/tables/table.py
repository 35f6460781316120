"""A topic's Iceberg table: what it holds of each shard, and commits that cannot be repeated.

How far a table goes is a property of it per shard, `firn.shard.{n}.end`, set in the commit that
adds the files. A commit of a shard's offsets [base, end) happens only where the property is `base`.
Every commit makes a snapshot, and the catalog refuses one whose parent is not the newest: so what
was compared is still true when the commit takes effect.
"""

from __future__ import annotations

import itertools
import random
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from firnmq.errors import FirnError, NotFound
from firnmq.eventlog import EventLogger
from firnmq.lake.reading.marks import Mark
from firnmq.lake.tables.catalogs.catalog import (
    DEAD_LETTERS,
    TOPICS,
    CatalogFailed,
    OpenCatalog,
    table_name,
    warehouse_store,
)
from firnmq.lake.tables.files.footers import iceberg_files
from firnmq.lake.tables.files.names import normal
from firnmq.lake.tables.files.parquet import PARTITIONS, DataFile
from firnmq.lake.tables.files.pyiceberg_internals import appending

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.sorting import SortOrder

TOPIC: Final = "firn.topic"
TOPIC_ID: Final = "firn.topic_id"
CLUSTER: Final = "firn.cluster"
MODE: Final = "firn.mode"
COMMIT: Final = "firn.commit"
"""In a snapshot's summary: which attempt made it, for one whose answer was lost."""

METADATA: Final = "metadata"
"""Folder for documents beside the data, below a table's location."""
_SHARD_END: Final = re.compile(r"firn\.shard\.(\d+)\.end")
_COMMIT_ATTEMPTS: Final = 20
_COMMIT_WAIT_S: Final = 0.05
_COMMIT_WAIT_S_MAX: Final = 2.0
_COMMIT_S_MAX: Final = 180.0
"""Attempts begin within this time of the first: a catalog may also not answer at all."""
_SHARD_ID, _OFFSET_ID, _TIMESTAMP_ID = 1, 2, 3
"""Field ids: columns are numbered from 1 in their order, and these come first."""

_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
"""PyIceberg would repeat a failed commit without looking at our properties."""
_PROPERTIES: Final = {
    "format-version": "2",
    **_NO_RETRIES,
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
}
_METRICS: Final = {
    "key": "truncate(64)",
    "value": "none",
    "headers.element.key": "none",
    "headers.element.value": "none",
}
"""What statistics there are of columns; for others, the usual ones."""

_log = EventLogger("lake.table")


class OtherTopicsTable(FirnError):
    """The table belongs to another topic: one of the same name that was deleted, or of another
    cluster."""

    def __init__(self, table: str, *, found: str, expected: str) -> None:
        super().__init__(
            f"table {table} belongs to topic {found}, not to {expected}; rename or drop the table, "
            "or choose another catalog"
        )
        self.table = table
        self.found = found
        self.expected = expected


class CommitGivenUp(FirnError):
    """The catalog did not take a commit; nothing is lost, and the next sync begins there again."""

    def __init__(self, table: str, attempts: int, reason: object) -> None:
        super().__init__(
            f"table {table}: no commit in {attempts} attempts, last because: {reason}; try again"
        )
        self.table = table
        self.attempts = attempts


class NoTable(NotFound):
    """The topic has no table yet; a sync makes it."""

    kind = "table"


class NotALakeTable(FirnError):
    """A table of that name was not made by us."""

    def __init__(self, table: str) -> None:
        super().__init__(f"table {table} has no property {TOPIC_ID}; it was not made by a sync")
        self.table = table


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What one round wants to add: offsets [base, end) of some shards, and their files."""

    base: Mapping[int, int]
    """Shard → first offset not in the table, as the round began."""
    ends: Mapping[int, int]
    files: Sequence[DataFile]
    marks: Mapping[int, str] = field(default_factory=dict)
    """Shard → its last record, as text, where there are new ones."""
    summary: Mapping[str, str] = field(default_factory=dict)
    applied: Mapping[int, tuple[str | None, str]] = field(default_factory=dict)
    """Shard → what the table notes of deletions, and what is to be noted in its place, now that
    the files do not have those records either. Where it notes something else that stays."""

    def shards_standing(self, ends: Mapping[int, int]) -> tuple[int, ...]:
        """Shards of which a table with these ends has neither more nor less than expected."""
        return tuple(shard for shard in self.ends if ends.get(shard, 0) == self.base.get(shard, 0))

    def only(self, shards: Collection[int]) -> Advance:
        return replace(
            self,
            ends={shard: end for shard, end in self.ends.items() if shard in shards},
            files=[file for file in self.files if file.shard in shards],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What of it is in the table now by this commit."""

    shards: tuple[int, ...] = ()
    row_count: int = 0
    file_count: int = 0
    file_bytes: int = 0
    snapshot_id: int | None = None


class TopicTable:
    """The table as it was when it was last loaded. One thread uses it."""

    def __init__(self, catalog: OpenCatalog, table: Table) -> None:
        self._catalog = catalog
        self._table = table

    @property
    def name(self) -> str:
        return ".".join(self._table.name())

    @property
    def location(self) -> str:
        """As we write it; the catalog may write it in another way."""
        return normal(self._table.location())

    @property
    def iceberg(self) -> Table:
        return self._table

    @property
    def catalog(self) -> OpenCatalog:
        return self._catalog

    @property
    def properties(self) -> Mapping[str, str]:
        properties: Mapping[str, str] = self._table.properties
        return properties

    @property
    def mode(self) -> str:
        return self.properties.get(MODE, "raw")

    @property
    def partition(self) -> str:
        """`day` or `hour`."""
        return str(self._table.spec().fields[0].transform)

    def reload(self) -> TopicTable:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            with self._catalog.asking():
                self._table = self._catalog.iceberg.load_table(self._table.name())
        except NoSuchTableError:
            raise NoTable(self.name, within=self._catalog.place.catalog) from None
        return self

    def check_topic(self, topic: str, topic_id: str) -> None:
        """OtherTopicsTable unless it is the table of the topic with this id."""
        _check_topic(self._table, topic, topic_id)

    def ends(self) -> dict[int, int]:
        """Shard → first offset that is not in the table; absent if it has no records."""
        return shard_ends(self.properties)

    def marks(self) -> dict[int, Mark]:
        """Shard → the last record that the table has of it, where that is known."""
        found = {
            shard: Mark.of_text(self.properties.get(f"firn.shard.{shard}.last", ""))
            for shard in self.ends()
        }
        return {shard: mark for shard, mark in found.items() if mark is not None}

    def columns(self) -> pa.Schema:
        """The table's columns as they are now, with their ids."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self._table.schema(), include_field_ids=True)

    def numbered(self, wanted: pa.Schema) -> pa.Schema:
        """The columns with the ids that they have in the table, which files must carry."""
        known = self.columns()
        return pa.schema([_with_id(each, known.field(each.name)) for each in wanted])

    def advance(
        self,
        wanted: Advance,
        *,
        other_ends: Callable[[], Mapping[int, int]] | None = None,
        pending: str | None = None,
    ) -> Advanced:
        """Adds the files of the shards whose end has not moved since the round began.

        `other_ends` are the ends of a second table that must not have moved either. `pending` is
        stored for the shards as the next step.
        """

        def attempt(transaction: Transaction, token: str) -> Advanced:
            shards = wanted.shards_standing(self.ends())
            if other_ends is not None and shards:
                standing = wanted.shards_standing(other_ends())
                shards = tuple(shard for shard in shards if shard in standing)
            if not shards:
                return Advanced()
            files = [file for file in wanted.files if file.shard in shards]
            changes = {f"firn.shard.{shard}.end": str(wanted.ends[shard]) for shard in shards}
            changes |= {
                f"firn.shard.{shard}.last": wanted.marks[shard]
                for shard in shards
                if shard in wanted.marks
            }
            if pending is not None:
                changes |= {f"firn.shard.{shard}.pending": pending for shard in shards}
            for shard in shards:
                before, after = wanted.applied.get(shard, (None, None))
                if after is not None and before == shard_deletions(self.properties, shard):
                    changes[deletions_property(shard)] = after
            transaction.set_properties(changes)
            summary = {**wanted.summary, COMMIT: token}
            with appending(transaction, summary) as append:
                for made in iceberg_files(self._table, files):
                    append.append_data_file(made)
            return Advanced(
                shards=shards,
                row_count=sum(file.row_count for file in files),
                file_count=len(files),
                file_bytes=sum(file.size for file in files),
                snapshot_id=append.snapshot_id,
            )

        return self.commit(attempt, Advanced())

    def commit(
        self, attempt: Callable[[Transaction, str], Advanced], nothing: Advanced
    ) -> Advanced:
        """Tries until the catalog takes it, looking at the newest state each time.

        `attempt` stages its changes, with the token in the snapshot's summary, and may find that
        there is nothing left to do, which it says with a result without a snapshot.
        """
        from pyiceberg.exceptions import CommitFailedException

        token, reason, staged = secrets.token_hex(8), "", nothing
        began_s, number = time.monotonic(), 0
        while number < _COMMIT_ATTEMPTS and time.monotonic() - began_s < _COMMIT_S_MAX:
            if number:
                wait_s = min(_COMMIT_WAIT_S * 2**number, _COMMIT_WAIT_S_MAX)
                time.sleep(wait_s * random.uniform(0.5, 1.0))
            number += 1
            try:
                self.reload()
                if number > 1 and self._has_commit(token):
                    return staged
                transaction = _not_repeated(self._table).transaction()
                staged = attempt(transaction, token)
                if staged.snapshot_id is None:
                    return staged
                with self._catalog.asking():
                    transaction.commit_transaction()
            except (CommitFailedException, CatalogFailed) as error:
                if isinstance(error, CatalogFailed) and not error.is_passing:
                    raise
                reason = str(error)
                _log.info("commit_repeated", table=self.name, attempt=number, reason=reason)
                continue
            self.reload()
            return staged
        raise CommitGivenUp(self.name, number, reason)

    def _has_commit(self, token: str) -> bool:
        """Whether an attempt took effect though its answer did not arrive."""
        return any(
            snapshot.summary is not None and snapshot.summary.get(COMMIT) == token
            for snapshot in self._table.metadata.snapshots
        )


def _not_repeated(table: Table) -> Table:
    """The table as one whose commits PyIceberg does not repeat, whatever its properties say by now:
    it would put our files on top of concurrent commits."""
    properties = {**table.metadata.properties, **_NO_RETRIES}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def deletions_property(shard: int) -> str:
    return f"firn.shard.{shard}.deletions"


def shard_deletions(properties: Mapping[str, str], shard: int) -> str | None:
    """Which deletions are applied to a shard's rows: the digest of a document that names them."""
    return properties.get(deletions_property(shard))


def shard_pending(properties: Mapping[str, str], shard: int) -> str | None:
    """What was noted for a shard with its last advance."""
    return properties.get(f"firn.shard.{shard}.pending")


def shard_ends(properties: Mapping[str, str]) -> dict[int, int]:
    """Progress per shard, from a table's properties."""
    found = ((_SHARD_END.fullmatch(name), value) for name, value in properties.items())
    return {int(match[1]): int(value) for match, value in found if match is not None}


def find_table(
    catalog: OpenCatalog, topic: str, topic_id: str | None, *, namespace: str = TOPICS
) -> TopicTable | None:
    """The topic's table; None if there is none yet. Without an id, whatever topic it is of."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        with catalog.asking():
            table = catalog.iceberg.load_table((namespace, table_name(topic)))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    found = table.properties.get(TOPIC_ID)
    if found is None:
        raise NotALakeTable(".".join(table.name()))
    if topic_id is not None:
        _check_topic(table, topic, topic_id)
    return TopicTable(catalog, table)


def _check_topic(table: Table, topic: str, topic_id: str) -> None:
    found = table.properties.get(TOPIC_ID)
    if found != topic_id:
        raise OtherTopicsTable(
            ".".join(table.name()),
            found=f"{table.properties.get(TOPIC)!r} ({found})",
            expected=f"{topic!r} ({topic_id})",
        )


def make_table(
    catalog: OpenCatalog,
    *,
    topic: str,
    topic_id: str,
    cluster: str,
    schema: pa.Schema,
    partition: str = "day",
    mode: str = "raw",
    namespace: str = TOPICS,
    properties: Mapping[str, str] | None = None,
) -> TopicTable:
    """The topic's table, made if it is not there. Several may make it at once: one is made.

    It gets a location that no other table has or had: a topic that is made again must not find
    files of the one before, nor an expiry take those of a table that was renamed for files
    without a table.
    `properties` are for one that is made, besides those that all have.
    """
    from pyiceberg.exceptions import TableAlreadyExistsError

    found = find_table(catalog, topic, topic_id, namespace=namespace)
    if found is not None:
        return found
    catalog.make_namespace(namespace)
    wanted: dict[str, Any] = {
        "identifier": (namespace, table_name(topic)),
        "schema": iceberg_schema(schema),
        "partition_spec": _partition_spec(partition),
        "sort_order": _sort_order(),
        "properties": {
            **_PROPERTIES,
            **_metrics(schema),
            TOPIC: topic,
            TOPIC_ID: topic_id,
            CLUSTER: cluster,
            MODE: mode,
            **(properties or {}),
        },
    }
    try:
        with catalog.asking():
            if catalog.is_rest:
                from firnmq.lake.tables.catalogs.rest import create_at

                create_at(
                    catalog.iceberg, wanted, lambda usual: _location(catalog, usual, topic_id)
                )
            else:
                usual = f"{catalog.place.warehouse.rstrip('/')}/{namespace}/{table_name(topic)}"
                location = _location(catalog, usual, topic_id)
                catalog.iceberg.create_table(**wanted, location=location)
    except TableAlreadyExistsError:
        pass
    made = find_table(catalog, topic, topic_id, namespace=namespace)
    assert made is not None
    _log.info("table_made", table=made.name, topic=topic, location=made.location)
    return made


def _location(catalog: OpenCatalog, usual: str, topic_id: str) -> str:
    """Beside the usual place of a table of that name. If the topic had a table there before, which
    was renamed since, beside that."""
    location = f"{usual.rstrip('/')}-{topic_id}"
    store = warehouse_store(normal(location), catalog.options)
    try:
        is_taken = any(True for _ in store.list(METADATA))
    finally:
        store.close()
    return f"{location}-{secrets.token_hex(4)}" if is_taken else location


def _metrics(schema: pa.Schema) -> dict[str, str]:
    """Catalogs refuse properties of columns that a table does not have."""
    return {
        f"write.metadata.metrics.column.{column}": mode
        for column, mode in _METRICS.items()
        if column.partition(".")[0] in schema.names
    }


def _partition_spec(partition: str) -> PartitionSpec:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform, HourTransform

    assert partition in PARTITIONS
    transform: Any = DayTransform() if partition == "day" else HourTransform()
    return PartitionSpec(
        PartitionField(
            source_id=_TIMESTAMP_ID,
            field_id=1000,
            transform=transform,
            name=f"timestamp_{partition}",
        )
    )


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Columns are numbered first, then what is inside of them, as Iceberg itself does it."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    numbers = itertools.count(len(schema) + 1)
    columns = [
        _numbered(each, number, numbers) for number, each in enumerate(schema, start=_SHARD_ID)
    ]
    return pyarrow_to_schema(pa.schema(columns))


def _numbered(field: pa.Field, number: int, numbers: Iterator[int]) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        kind = pa.struct([_numbered(each, next(numbers), numbers) for each in inner])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_numbered(kind.value_field, next(numbers), numbers))
    elif pa.types.is_map(kind):
        kind = pa.map_(
            _numbered(kind.key_field, next(numbers), numbers),
            _numbered(kind.item_field, next(numbers), numbers),
        )
    return field.with_type(kind).with_metadata({"PARQUET:field_id": str(number)})


def _sort_order() -> SortOrder:
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    return SortOrder(
        SortField(source_id=_SHARD_ID, transform=IdentityTransform()),
        SortField(source_id=_OFFSET_ID, transform=IdentityTransform()),
    )


def _with_id(field: pa.Field, known: pa.Field) -> pa.Field:
    kind, known_kind = field.type, known.type
    if pa.types.is_struct(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        kind = pa.struct([_with_id(each, known_kind.field(each.name)) for each in inner])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_with_id(kind.value_field, known_kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(
            _with_id(kind.key_field, known_kind.key_field),
            _with_id(kind.item_field, known_kind.item_field),
        )
    return field.with_type(kind).with_metadata(known.metadata)


__all__ = [
    "DEAD_LETTERS",
    "TOPICS",
    "Advance",
    "Advanced",
    "CommitGivenUp",
    "NoTable",
    "NotALakeTable",
    "OtherTopicsTable",
    "TopicTable",
    "deletions_property",
    "find_table",
    "iceberg_schema",
    "make_table",
    "shard_deletions",
    "shard_ends",
    "shard_pending",
]
