"""Keeps what the store says of topics and shards up to date, beside the segments themselves.

Manifests are written within ten seconds of a change, and when the node ends: from them a recovery
knows what was deleted. So are the offsets of consumer groups, less often.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from firnmq.engines.state import ShardState
from firnmq.errors import FirnError, ShardNotFound
from firnmq.eventlog import EventLogger
from firnmq.tiering.groups import GroupKeeper, GroupOffsets, GroupSource
from firnmq.tiering.ledger import TieredTopic, TierLedger
from firnmq.tiering.manifests import ManifestKeeper
from firnmq.tiering.ownership import Tenure

_log = EventLogger("tiering")

_LOOK_S = 10.0
"""Time between looks for changed starts and deletions of shards."""
_FLUSH_S = 5.0
"""How long a node that ends goes on writing what has changed since the last look."""


class ManifestUpkeep:
    """For the mover's thread, and for whoever has stopped it."""

    def __init__(
        self,
        *,
        ledger: TierLedger,
        manifests: ManifestKeeper,
        tenure: Tenure,
        state: ShardState,
        catch_up: Callable[[float], None],
        is_stopping: Callable[[], bool],
        monotonic: Callable[[], float],
        keeper: GroupKeeper,
        groups: GroupSource,
        groups_ms: int | None,
    ) -> None:
        """`groups` gives what they have committed, looked at every `groups_ms`. `catch_up` returns
        once the ledger knows what the metadata has, or raises in so many seconds."""
        self._ledger = ledger
        self._manifests = manifests
        self._tenure = tenure
        self._state = state
        self._catch_up = catch_up
        self._is_stopping = is_stopping
        self._monotonic = monotonic
        self._keeper = keeper
        self._groups = groups
        self._groups_s = None if groups_ms is None else groups_ms / 1000
        self._looked_at_s: float | None = None
        self._groups_at_s: float | None = None

    def write_soon(self) -> None:
        """Has the next round write what has changed, however short ago the last was."""
        self._looked_at_s = self._groups_at_s = None

    def write(self) -> None:
        """Manifests of topics at once, and those of shards if it is time."""
        now_s = self._monotonic()
        self._write_groups(now_s)
        for topic in self._ledger.topics():
            self._manifests.write_topic(topic.record)
        for topic_id, name in self._manifests.topics().items():
            if not self._ledger.has_topic(topic_id):  # Those that left no copies have no graves.
                self._tenure.confirm()
                self._manifests.remove_topic(name, topic_id)
        if self._looked_at_s is not None and now_s - self._looked_at_s < _LOOK_S:
            return
        for write in self._changes():
            write()
            if self._is_stopping():
                return
        self._looked_at_s = now_s

    def _write_groups(self, now_s: float) -> None:
        limit_s, last_s = self._groups_s, self._groups_at_s
        if limit_s is not None and (last_s is None or now_s - last_s >= limit_s):
            self._keeper.write(self._committed())
            self._groups_at_s = now_s

    def _committed(self) -> GroupOffsets:
        """What groups have committed in topics of which there is something in the store."""
        ids = {topic.record.topic_id for topic in self._ledger.topics()}
        return {
            group: {
                shard: entry for shard, entry in offsets.items() if shard.rpartition("_")[0] in ids
            }
            for group, offsets in self._groups().items()
        }

    def write_shard(self, topic: TieredTopic, shard: str) -> None:
        """The shard's manifest as it is now, if it has changed."""
        for write in self._of_shard(topic, shard):
            write()

    def flush(self) -> None:
        """Writes what has changed since the last look, so that a recovery brings no deletion of the
        last seconds back. Nothing but the store is asked in the thread: whatever it does not answer
        must not hold up the end, nor touch what is closed by then."""
        if not self._ledger.is_used or not self._tenure.is_known:
            return
        try:
            self._catch_up(_FLUSH_S)
            left: deque[Callable[[], object]] = deque(self._changes())
            left.append(partial(self._keeper.write, self._committed()))
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
        """What writes the manifests of all shards; those that have not changed cost nothing."""
        for topic in self._ledger.topics():
            for seq in range(topic.record.shard_count):
                yield from self._of_shard(topic, f"{topic.record.topic_id}_{seq}")

    def _of_shard(self, topic: TieredTopic, shard: str) -> Iterator[Callable[[], object]]:
        """What writes a shard's manifest, and asks nothing but the store for it."""
        record = self._ledger.shard(shard)
        if record is not None:
            # In this order, and the start as it is now: what is forgotten because the start has
            # passed it must not be missing below an older start, which is what the ledger may have.
            holes, dead_keys = self._state.deletions(record.uid)
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
