"""What engines keep durably beside the records: shards, segment chains, starts, deletions.

Shards and chains are the ShardCatalog's, which the code that assembles the engines passes in. Rows
of deletions are derived from the log, but for those that it has no entry of.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from firnmq.config import TopicConfig
from firnmq.disk import Family, KeyValueStore
from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import SegmentMeta, Successor
from firnmq.engines.deletion.retired import Retired
from firnmq.engines.deletion.rows import DeletionRows
from firnmq.errors import NotLeader
from firnmq.record.deletion import Deletion

SHARD_KEY = struct.Struct(">I")
"""How keys of the rows of a shard begin: its uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """What a shard is: its name, its number in the key-value store, its topic's options."""

    name: str
    uid: int
    config: TopicConfig
    epoch: int = 0
    """Of its leader, written into batches."""
    revision: int = 0
    """Of the topic's record that `config` was taken from. An older record never replaces it."""
    is_ranged: bool = False
    """One of a range: there may be a million, so its log is closed when others are used."""


class ShardCatalog(Protocol):
    """Which shards there are, and their chains of segments. Safe with threads.

    Every change is one transaction, durable when the call returns. A change of a segment that has
    changed since the caller read it raises StaleEpoch: its epoch must be the one the caller knows.
    """

    def add_shards(
        self, names: Sequence[str], config: TopicConfig, topic_id: str | None = None
    ) -> list[ShardSpec]:
        """Registers shards, each with an empty active segment; AlreadyExists if one is there.

        With a topic, its options are theirs; they are not kept again with every shard.
        """

    def add_range(
        self, topic_id: str, seqs: range, config: TopicConfig
    ) -> tuple[ShardRange, ...] | None:
        """Registers a topic's shards with these seqs as one fact, each with an empty active
        segment; None if the catalog has to keep them one by one."""

    def ranges(self) -> list[tuple[ShardRange, TopicConfig]]: ...

    def uids(self) -> Collection[int]:
        """The numbers of all shards."""

    def has_records(self, uid: int) -> bool:
        """Whether more is kept of a shard than its range."""

    def recorded_uids(self, shards: ShardRange) -> Iterable[int]:
        """Those of a range that have rolled, or whose start has moved."""

    def reconfigure(self, spec: ShardSpec) -> None:
        """Keeps a shard's other options, unless they are its topic's."""

    def shards(self) -> list[ShardSpec]:
        """Those that are in no range."""

    def remove_shards(self, names: Iterable[str]) -> None:
        """Forgets shards and their chains; those that are not there are passed over."""

    def chain(self, uid: int) -> list[SegmentMeta]:
        """The shard's segments in order, those included whose bytes are being removed."""

    def active_seq(self, uid: int) -> int:
        """The segment that the shard names as its active one."""

    def roll(
        self,
        uid: int,
        sealed: SegmentMeta,
        active: SegmentMeta,
        successor: Successor | None = None,
    ) -> SegmentMeta:
        """Seals the active segment and makes the next one active; that one as it is now. With a
        successor another node leads it, under the next epoch of the shard."""

    @property
    def own_holders(self) -> tuple[int, ...]:
        """The holders of a segment that this node alone has; none where the node is alone."""

    def not_led(self, uid: int) -> NotLeader:
        """The error for what only the shard's leader does, which another node is."""

    def replace_sealed(self, uid: int, new: SegmentMeta, merged: Sequence[SegmentMeta]) -> None:
        """Puts one sealed segment in the place of itself and of those after it, which were merged
        into it. Its epoch is the next one."""

    def begin_again(self, uid: int, active: SegmentMeta) -> SegmentMeta:
        """Makes this the active segment of a shard whose memory is gone; as it is now."""

    def is_held_here(self, uid: int) -> bool:
        """Whether the active segment is of this life of the node."""

    def start_offset(self, uid: int) -> int: ...

    def move_start(
        self,
        uid: int,
        start_offset: int,
        deleted: Sequence[SegmentMeta],
        active: SegmentMeta | None = None,
    ) -> None:
        """Moves the start and marks the segments below it deleted. `active` is where a memory
        shard goes on, if what it had as active is dropped as well."""

    def forget_segments(self, uid: int, seqs: Sequence[int]) -> None:
        """Removes descriptions of dropped segments."""

    def lake_end(self, uid: int) -> int:
        """End of what the lake's table has of the shard; 0 if it was never reported."""

    def has_lake(self, uid: int) -> bool:
        """Whether that end was reported, be it 0: the shard has a table, or is about to."""

    def segment(self, uid: int, seq: int) -> SegmentMeta | None:
        """One segment as it is now."""

    def producers(self, uid: int, seq: int) -> tuple[tuple[int, bytes], ...]:
        """What an earlier version has kept of idempotent producers at the end of a sealed segment;
        later ones write snapshots."""

    def change_copy(self, uid: int, new: SegmentMeta) -> None:
        """Gives a sealed segment another copy in the object store, or says that it is only there.
        Its epoch is the next one."""

    def dead_copies(self) -> list[tuple[str, SegmentMeta]]:
        """Deleted segments, with their shards' names, that may still have objects."""

    def forget_copy(self, uid: int, seq: int) -> None:
        """Removes the description of a deleted segment whose objects are gone."""


class ShardState:
    """Durable facts about shards. Safe with threads.

    What a change of the catalog relies on in the key-value store is synced before it: the indexes
    and rows of a segment that is sealed, and the removal of those of one that is forgotten.
    """

    def __init__(self, kv: KeyValueStore, catalog: ShardCatalog) -> None:
        self._kv = kv
        self.catalog = catalog
        self.add_shards = catalog.add_shards
        self.reconfigure = catalog.reconfigure
        self.shards = catalog.shards
        self.add_range = catalog.add_range
        self.ranges = catalog.ranges
        self.uids = catalog.uids
        self.chain = catalog.chain
        self.active_seq = catalog.active_seq
        self.start_offset = catalog.start_offset
        self.not_led = catalog.not_led
        self.own_holders = catalog.own_holders
        self.lake_end = catalog.lake_end
        self.has_lake = catalog.has_lake
        self.deletions = DeletionRows(kv, catalog.has_lake)
        self.retired_deletions = self.deletions.retired
        self.segment = catalog.segment
        self.producers = catalog.producers
        self.change_copy = catalog.change_copy
        self.dead_copies = catalog.dead_copies
        self.forget_copy = catalog.forget_copy

    def uids_with_data(self, shards: ShardRange) -> Iterator[int]:
        """The uids of those shards of a range that may have records."""
        yield from self.catalog.recorded_uids(shards)
        first_uid, end_uid = shards.uids
        while rows := self._kv.items(
            Family.LOCATIONS, SHARD_KEY.pack(first_uid), SHARD_KEY.pack(end_uid), 1
        ):
            (uid,) = SHARD_KEY.unpack_from(rows[0][0])
            yield uid
            first_uid = uid + 1

    def remove_shards(
        self,
        names: Sequence[str],
        specs: Sequence[ShardSpec],
        ranges: Sequence[ShardRange] = (),
    ) -> None:
        """Forgets shards and everything kept for them here, as far as anything is."""
        self.forget_here(specs, ranges)
        self.catalog.remove_shards(names)

    def forget_here(self, specs: Sequence[ShardSpec], ranges: Sequence[ShardRange] = ()) -> None:
        """Forgets everything that is kept for shards here; the catalog stays as it is."""
        with self._kv.batch() as batch:
            for spec in specs:
                self.deletions.remove_shards(batch, spec.uid, spec.uid + 1)
            for each in ranges:
                self.deletions.remove_shards(batch, each.first_uid, each.end_uid)
        self._kv.sync()

    def roll(
        self,
        uid: int,
        sealed: SegmentMeta,
        active: SegmentMeta,
        successor: Successor | None = None,
    ) -> SegmentMeta:
        """Seals the active segment and makes the next one the active one, here or elsewhere."""
        self._kv.sync()  # A sealed segment is never scanned again: its index must be whole.
        return self.catalog.roll(uid, sealed, active, successor)

    def replace_sealed(self, uid: int, new: SegmentMeta, merged: Sequence[SegmentMeta]) -> None:
        """Puts one sealed segment in the place of itself and of those after it, which were merged
        into it: one durable change."""
        self._kv.sync()
        self.catalog.replace_sealed(uid, new, merged)

    def forget_segments(self, uid: int, seqs: Sequence[int]) -> None:
        """Removes descriptions of dropped segments."""
        if seqs:
            self._sync_all()
            self.catalog.forget_segments(uid, seqs)

    def _sync_all(self) -> None:
        """Makes all that the key-value store shows durable; one that failed is reopened first. Not
        for writes that must not be lost: those which a failure has left in doubt may be gone."""
        with self._kv.batch():
            pass
        self._kv.sync()

    # Bounds and deletions -----------------------------------------------------------------------

    def move_start(
        self,
        uid: int,
        start_offset: int,
        deleted: Sequence[SegmentMeta],
        active: SegmentMeta | None = None,
    ) -> None:
        """Moves the start and marks the segments below it deleted, as one durable change."""
        self._sync_all()  # A log must not end before its start: rows may not be synced yet.
        self.catalog.move_start(uid, start_offset, deleted, active)

    def trim_deletions(
        self, uid: int, start_offset: int, changed: Mapping[int, Deletion | None], gone: Deletion
    ) -> None:
        self.deletions.trim(uid, start_offset, changed, gone)

    def forget_deletions(self, uid: int, offset: int) -> None:
        self.deletions.forget_entries(uid, offset)

    def note_retired(self, uid: int, deletion: Deletion) -> None:
        self.deletions.note_retired(uid, deletion)

    def retired(self, uid: int) -> Retired | None:
        return self.deletions.retired_of(uid)
