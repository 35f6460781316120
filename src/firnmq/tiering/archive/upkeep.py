"""Keeps the manifests of topics and shards and the offsets of groups in the store up to date.

Manifests are written within ten seconds of a change, and when the node stops: a recovery learns
from them what was deleted. The offsets of consumer groups are written less often.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from firnmq.engines.catalog.state import ShardState
from firnmq.errors import FirnError, ShardNotFound
from firnmq.eventlog import EventLogger
from firnmq.tiering.archive.group_offsets import Committed, GroupOffsetsWriter, GroupSource
from firnmq.tiering.archive.manifest_writer import ManifestWriter
from firnmq.tiering.archive.ownership import Tenure
from firnmq.tiering.move.ledger import TieredTopic, TierLedger

_log = EventLogger("tiering")

_LOOK_S = 10.0
"""Time between checks for changed start offsets and deletions of shards."""
_LATE_WRITE_S = 120.0
"""A node that has lost a duty may still finish a write that it had begun: so long at most."""
_FLUSH_S = 5.0
"""How long a stopping node writes changes since the last check."""


class ManifestUpkeep:
    """Used by the mover's thread, and after its end by the thread that stopped it."""

    def __init__(
        self,
        *,
        ledger: TierLedger,
        manifests: ManifestWriter,
        tenure: Tenure,
        state: ShardState,
        catch_up: Callable[[float], None],
        is_stopping: Callable[[], bool],
        monotonic: Callable[[], float],
        group_writer: GroupOffsetsWriter,
        groups: GroupSource,
        groups_ms: int | None,
    ) -> None:
        """`groups` returns the committed offsets, which are checked every `groups_ms`. `catch_up`
        waits until the ledger has caught up with the metadata, or raises after so many seconds."""
        self._ledger = ledger
        self._manifests = manifests
        self._tenure = tenure
        self._state = state
        self._catch_up = catch_up
        self._is_stopping = is_stopping
        self._monotonic = monotonic
        self._group_writer = group_writer
        self._groups = groups
        self._groups_s = None if groups_ms is None else groups_ms / 1000
        self._looked_at_s: float | None = None
        self._groups_at_s: float | None = None
        self._is_keeper = ledger.share.is_keeper
        self.gained = threading.Event()
        """Set when the node has come to do more than before, by any thread."""
        self._learn_at_s: float | None = None

    def write_soon(self) -> None:
        """Makes the next round write all changes, without waiting for the interval."""
        self._looked_at_s = self._groups_at_s = None

    def write(self) -> None:
        """Writes topic manifests, and shard manifests if the interval is over."""
        now_s = self._monotonic()
        self._learn_again(now_s)
        if self._is_keeper:
            self._write_groups(now_s)
            for topic in self._ledger.topics():
                self._manifests.write_topic(topic.record)
            for topic_id, name in self._manifests.topics().items():
                if not self._ledger.has_topic(topic_id):  # A topic without copies leaves no graves.
                    self._tenure.confirm()
                    self._manifests.remove_topic(name, topic_id)
        if self._looked_at_s is not None and now_s - self._looked_at_s < _LOOK_S:
            return
        for write in self._changes():
            write()
            if self._is_stopping():
                return
        self._looked_at_s = now_s

    def _learn_again(self, now_s: float) -> None:
        """Forgets what is in the store once this node has other duties than before: until then,
        another node wrote there. Once more later, because that node may have finished a write
        after it had lost the duty."""
        is_keeper = self._ledger.share.is_keeper
        if is_keeper != self._is_keeper:
            self._is_keeper = is_keeper
            self.gained.set()
        if self.gained.is_set():
            self.gained.clear()
            self._learn_at_s = now_s + _LATE_WRITE_S
        elif self._learn_at_s is None or now_s < self._learn_at_s:
            return
        else:
            self._learn_at_s = None
        self._manifests.forget()
        self._group_writer.forget()
        self.write_soon()

    def _write_groups(self, now_s: float) -> None:
        limit_s, last_s = self._groups_s, self._groups_at_s
        if limit_s is not None and (last_s is None or now_s - last_s >= limit_s):
            self._group_writer.write(self._committed())
            self._groups_at_s = now_s

    def _committed(self) -> Committed:
        """Committed offsets of groups in topics that may have objects in the store."""
        ids = {topic.record.topic_id for topic in self._ledger.topics()}
        committed = self._groups()
        groups = {
            group: {
                shard: entry for shard, entry in offsets.items() if shard.rpartition("_")[0] in ids
            }
            for group, offsets in committed.groups.items()
        }
        return committed._replace(groups=groups)

    def write_shard(self, topic: TieredTopic, shard: str) -> None:
        """Writes the shard's manifest if it has changed."""
        for write in self._of_shard(topic, shard):
            write()

    def flush(self) -> None:
        """Writes the changes since the last check, so that a recovery does not undo the deletions
        of the last seconds. The thread calls only the store: a call that the store does not answer
        must not delay the shutdown, nor touch what is closed by then."""
        if not self._ledger.is_used or not self._tenure.is_known:
            return
        try:
            self._catch_up(_FLUSH_S)
            left: deque[Callable[[], object]] = deque(self._changes())
            if self._is_keeper:
                left.append(partial(self._group_writer.write, self._committed()))
        except (FirnError, OSError) as error:
            _log.warning("manifests_not_written", error=str(error))
            return
        is_late = threading.Event()

        def write() -> None:
            try:
                while left and not is_late.is_set():
                    left[0]()
                    left.popleft()
            except (FirnError, OSError) as error:
                _log.warning("manifests_not_written", error=str(error))

        thread = threading.Thread(target=write, name="firn-tier-flush", daemon=True)
        thread.start()
        thread.join(_FLUSH_S)
        is_late.set()
        if left:
            _log.warning(
                "manifests_left", count=len(left), hint="written when the node is started again"
            )

    def _changes(self) -> Iterator[Callable[[], object]]:
        """Calls that write the manifests of all shards; an unchanged manifest is not written."""
        for topic in self._ledger.topics():
            for seq in range(topic.record.shard_count):
                shard = f"{topic.record.topic_id}_{seq}"
                if self._ledger.has(shard):
                    yield from self._of_shard(topic, shard)

    def _of_shard(self, topic: TieredTopic, shard: str) -> Iterator[Callable[[], object]]:
        """Calls that write a shard's manifest; they access nothing but the store."""
        record = self._ledger.shard(shard)
        if record is not None:
            # Read the deletions before the start offset, and the start offset from the state:
            # deletions below the start are forgotten, so an older start, as the ledger may have,
            # would bring deleted records back.
            holes, dead_keys = self._state.deletions.all_of(record.uid)
            try:
                start_offset = self._state.start_offset(record.uid)
            except ShardNotFound:  # Its topic has just been deleted.
                return
            yield partial(
                self._manifests.write_shard,
                topic.record,
                shard,
                start_offset=start_offset,
                epoch=record.epoch,
                holes=holes,
                dead_keys=dead_keys,
                has_lake=self._state.has_lake(record.uid),
            )
