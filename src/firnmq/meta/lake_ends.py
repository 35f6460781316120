"""How far the lake's tables have shards."""

from __future__ import annotations

from collections.abc import Callable

from firnmq.clock import Clock
from firnmq.errors import ShardNotFound
from firnmq.meta.api import Compare, TxnConflict
from firnmq.meta.nodes import NodeIdentity
from firnmq.meta.ranged import RangedStore
from firnmq.meta.records import LakeRecord, decode, encode, lake_key, shard_key


class LakeEnds:
    """A part of the ShardCatalog. Safe with threads."""

    def __init__(
        self,
        store: RangedStore,
        node: NodeIdentity,
        clock: Clock,
        name_of: Callable[[int], str],
        judge: Callable[[TxnConflict], None],
    ) -> None:
        """`name_of` gives a shard's name by its uid; `judge` raises if this node was registered
        again."""
        self._store = store
        self._node = node
        self._clock = clock
        self._name = name_of
        self._judge = judge

    def lake_end(self, uid: int) -> int:
        """End of the shard's records in the lake's table; 0 if none was recorded."""
        entry = self._store.get(lake_key(self._name(uid)))
        return 0 if entry is None else decode(entry, LakeRecord).end

    def has_lake(self, uid: int) -> bool:
        """Whether a lake offset was recorded, even if it is 0."""
        return self._store.get(lake_key(self._name(uid))) is not None

    def move_lake_end(self, uid: int, end: int) -> int:
        """Advances the lake offset, never back; returns the present one."""
        name = self._name(uid)
        key = lake_key(name)
        while True:
            shard = self._store.get(shard_key(name))
            if shard is None:
                raise ShardNotFound(name, within="the metadata")
            entry = self._store.get(key)
            before = -1 if entry is None else decode(entry, LakeRecord).end
            if end <= before:
                return before
            compare = Compare.absent(key) if entry is None else Compare.unchanged(entry)
            # The shard must still exist: nothing would remove the record of a deleted shard.
            compares = [self._node.guard, compare, Compare.unchanged(shard)]
            puts = {key: encode(LakeRecord(end=end, changed_ms=self._clock.now_ms()))}
            if shard.mod_revision == 0:  # It had no record of its own: see RangedStore.
                puts[shard.key] = shard.value
            try:
                self._store.txn(compares, puts)
            except TxnConflict as conflict:
                self._judge(conflict)
                continue  # A concurrent sync won, or the shard has rolled.
            return end
