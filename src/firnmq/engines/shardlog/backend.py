"""What a log needs from the engine that it is part of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from firnmq.clock import Clock
from firnmq.engines.catalog.segments import (
    Segment,
    SegmentBytes,
    SegmentCopy,
    SegmentMeta,
    Successor,
)
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.deletion.retired import Retired
from firnmq.engines.shardlog.producers import ProducerStates
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.engines.tiering.api import ColdMedium
from firnmq.errors import NotLeader
from firnmq.health import Health
from firnmq.index import Checkpoint, IndexSink, SegmentIndex
from firnmq.record.deletion import Deletion

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog
    from firnmq.engines.shardlog.replica import ReplicaId
    from firnmq.engines.shardlog.rolling.parked import ParkingBudget
    from firnmq.engines.shardlog.watermark import Replication

IndexEntry = tuple[Any, Any]
"""What a backend makes of one addition to an index, and stores with `commit_entries`."""


class TurnIndex(IndexSink, Protocol):
    """An index sink that also takes the checkpoint, and gives what it gathered."""

    @property
    def entries(self) -> list[IndexEntry]: ...

    def set_checkpoint(self, checkpoint: Checkpoint) -> None: ...

    def set_producer(self, producer_id: int, packed: bytes) -> None: ...

    def set_aborted(self, last_offset: int, packed: bytes) -> None: ...

    def set_deletion(self, offset: int, packed: bytes) -> None: ...


class Snapshots(Protocol):
    """Snapshots of logs, each under the end that it is as of."""

    def write(self, spec: ShardSpec, snapshot: Snapshot) -> None:
        """Durable when this returns. An empty one is as good as none."""

    def read(self, spec: ShardSpec, end_offset: int) -> Snapshot | None:
        """None if there is none; Corruption if it is damaged."""

    def drop_old(self, spec: ShardSpec, metas: Collection[SegmentMeta]) -> None:
        """Removes those before the active segment that nothing needs; `metas` are all segments."""

    def drop_strays(self, spec: ShardSpec, metas: Collection[SegmentMeta]) -> None:
        """The same, with those that rolls have left which never came to their end."""


class LogState(Protocol):
    """Durable facts a log changes. ShardState is the one on disk."""

    def roll(
        self,
        uid: int,
        sealed: SegmentMeta,
        active: SegmentMeta,
        successor: Successor | None = None,
    ) -> SegmentMeta:
        """Seals the active segment and makes the next one active; that one as it is now. With a
        successor another node leads it."""

    @property
    def own_holders(self) -> tuple[int, ...]:
        """The holders of a segment that this node alone has; none where the node is alone."""

    def not_led(self, uid: int) -> NotLeader:
        """The error for what only the shard's leader does, which another node is."""

    def replace_sealed(self, uid: int, new: SegmentMeta, merged: Sequence[SegmentMeta]) -> None: ...

    def forget_segments(self, uid: int, seqs: Sequence[int]) -> None: ...

    def segment(self, uid: int, seq: int) -> SegmentMeta | None: ...

    def change_copy(self, uid: int, new: SegmentMeta) -> None: ...

    def move_start(self, uid: int, start_offset: int, deleted: Sequence[SegmentMeta]) -> None: ...

    def trim_deletions(
        self, uid: int, start_offset: int, changed: Mapping[int, Deletion | None], gone: Deletion
    ) -> None:
        """Keeps of entries what is still about the log, and for the table what is gone."""

    def forget_deletions(self, uid: int, offset: int) -> None:
        """Forgets entries from the offset on, where the log was truncated."""

    def note_retired(self, uid: int, deletion: Deletion) -> None:
        """Keeps a deletion that is about the table alone, if there is one."""

    def retired(self, uid: int) -> Retired | None:
        """What is kept for the shard's table; None if it has none."""


def open_segment(backend: Backend, spec: ShardSpec, meta: SegmentMeta) -> Segment:
    return Segment(meta, backend.open_bytes(spec, meta), backend.open_index(spec, meta))


class Backend(Protocol):
    """What differs between engines: where bytes and indexes are, and what commits them."""

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes: ...

    def open_index(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentIndex: ...

    def turn_index(self, spec: ShardSpec, segment: Segment) -> TurnIndex: ...

    def commit(self, logs: list[ShardLog]) -> None:
        """Writes the staged rows and index entries of the logs; durable where they ask for it."""

    def commit_entries(self, entries: list[IndexEntry]) -> None:
        """Writes index entries by themselves, unsynced."""

    def drop_segment(self, spec: ShardSpec, segment: Segment) -> None:
        """Removes a segment's bytes and index entries here; of one that is only in the object
        store, what is cached of it."""

    def new_copy(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentCopy:
        """A sealed segment to be rewritten. Its place is empty or has what an interrupted attempt
        left."""

    def without_index(self, spec: ShardSpec, segment: Segment) -> Segment:
        """The active segment with its index emptied, durably."""

    def load_producers(self, spec: ShardSpec) -> ProducerStates:
        """What was kept of the shard's producers."""

    def forget_aborted(self, spec: ShardSpec, start_offset: int, end_offset: int) -> None:
        """Removes what is kept of aborted transactions with markers in [start, end)."""

    def forget_producers(self, spec: ShardSpec, producer_ids: list[int]) -> None:
        """Removes what is kept of producers; unsynced, as a crash may bring them back."""

    def restore(self, spec: ShardSpec, snapshot: Snapshot) -> None:
        """Keeps of producers, aborted transactions and deletions what a snapshot says, and nothing
        else; unsynced, as a later opening does it again."""

    def fence_of(self, replica: ReplicaId) -> int:
        """The fence that is kept for a replica, 0 if none is."""

    def keep_fence(self, replica: ReplicaId, fence: int) -> None:
        """Durable when this returns."""

    def forget_fence(self, replica: ReplicaId) -> None:
        """Of a segment that is sealed; unsynced, as an old fence does no harm."""

    def sync_index(self) -> None:
        """Makes all index entries durable that were committed before."""

    @property
    def snapshots(self) -> Snapshots | None:
        """Where rolls leave what the log knows; None where nothing outlives the process."""

    @property
    def parking(self) -> ParkingBudget:
        """What appends may take that wait for their log's next segment."""

    @property
    def replication(self) -> Replication | None:
        """What moves the high watermarks of logs; None where there is one replica."""

    @property
    def cold(self) -> ColdMedium | None:
        """What reads segments that are only in the object store, if there is one."""

    @property
    def state(self) -> LogState: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def health(self) -> Health:
        """What failures are reported to."""
