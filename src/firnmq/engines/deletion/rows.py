"""Rows of deletions in the key-value store; docs/formats/index.md and state.md describe them.

Three kinds, in the order in which a deletion may go from one to the next:

1. Deletions that the log has no entry of yet. An earlier version made them, or a recovery from an
   object store, or they are of a memory log whose end would not survive a restart. Opening the log
   appends their entries.
2. Copies of the log's entries, derived like any index.
3. Deletions that the log is done with and its table may not be (`retired.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.kv import KvBatch
from firnmq.engines.deletion.deletions import as_one, folded, merged_keys
from firnmq.engines.deletion.retired import Retired, RetiredDeletions, after
from firnmq.errors import Corruption
from firnmq.index.layout import deletion_key, deletion_range, entry_offset_of
from firnmq.record.deletion import Deletion

_OFFSET, _KEY = b"H", b"K"

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


class DeletionRows:
    """Of all shards of a data directory. Safe with threads; writers of one shard hold its log's
    lock."""

    def __init__(self, kv: KeyValueStore, has_lake: Callable[[int], bool]) -> None:
        """`has_lake` tells whether a shard has a table."""
        self._kv = kv
        self._has_lake = has_lake
        self.retired = RetiredDeletions(kv)

    def all_of(self, uid: int) -> tuple[set[int], dict[bytes, int]]:
        """What the log hides, and what the table may still have. Read in the order in which a
        deletion goes from one kind of row to the next."""
        offsets, keys = folded([self.unlogged(uid), *self.entries(uid).values()])
        retired = self.retired.read(uid)
        return offsets | retired.holes, merged_keys(keys, retired.dead_keys)

    def remove_shards(self, batch: KvBatch, first_uid: int, end_uid: int) -> None:
        """Has the batch remove what is beside the index of shards that are no more: those with uids
        in [first_uid, end_uid)."""
        for kind in (_OFFSET, _KEY):
            batch.delete_range(Family.STATE, kind + _U32.pack(first_uid), kind + _U32.pack(end_uid))
        self.retired.forget(batch, first_uid, end_uid)

    # Copies of the log's entries ------------------------------------------------------------------

    def entries(self, uid: int) -> dict[int, Deletion]:
        """By the offsets of the entries, rising. Corruption if one cannot be read."""
        rows = self._kv.items(Family.INDEX, *deletion_range(uid))
        try:
            return {entry_offset_of(key): Deletion.unpack(packed) for key, packed in rows}
        except Corruption as error:
            raise Corruption(error.reason, where=f"deletions of shard {uid}") from error

    def forget_entries(self, uid: int, offset: int) -> None:
        """Removes the copies of entries from the offset on, where the log was truncated; unsynced,
        as a later opening does it again."""
        with self._kv.batch() as batch:
            batch.delete_range(Family.INDEX, *deletion_range(uid, offset))

    def add_entries(self, uid: int, entries: Mapping[int, Deletion]) -> None:
        """Adds copies outside of a turn; unsynced."""
        if entries:
            rows = [(deletion_key(uid, at), each.pack()) for at, each in entries.items()]
            with self._kv.batch() as batch:
                batch.put_many(Family.INDEX, rows)

    def trim(
        self, uid: int, start_offset: int, changed: Mapping[int, Deletion | None], gone: Deletion
    ) -> None:
        """Forgets what is about records below the start, or keeps it for the table, if there is
        one. Where nothing is kept it is not synced, since opening the shard does it again."""
        passed = self.unlogged(uid).below(start_offset)
        if not changed and not any(passed):
            return
        kept = as_one([gone, passed]) if self._has_lake(uid) else Deletion()
        with self.retired.adding(uid, kept.offsets, dict(kept.keys)) as batch:
            for offset, rest in changed.items():
                if rest is None:
                    batch.delete(Family.INDEX, deletion_key(uid, offset))
                else:
                    batch.put(Family.INDEX, deletion_key(uid, offset), rest.pack())
            self._drop_unlogged(batch, uid, passed)
        if any(kept):
            self._kv.sync()

    # Deletions without an entry -------------------------------------------------------------------

    def unlogged(self, uid: int) -> Deletion:
        """What the log has no entry of."""
        prefix = _OFFSET + _U32.pack(uid)
        rows = self._kv.items(Family.STATE, prefix, after(prefix))
        offsets = tuple(_U64.unpack_from(key, len(prefix))[0] for key, _ in rows)
        prefix = _KEY + _U32.pack(uid)
        rows = self._kv.items(Family.STATE, prefix, after(prefix))
        return Deletion(
            offsets, tuple((key[len(prefix) :], _U64.unpack(value)[0]) for key, value in rows)
        )

    def add_unlogged(self, uid: int, deletion: Deletion) -> None:
        with self._kv.batch() as batch:
            self._put_unlogged(batch, uid, deletion)
        self._kv.sync()

    def keep_unlogged(self, uid: int, wanted: Deletion) -> None:
        """Keeps these and no others."""
        known = self.unlogged(uid)
        if known == wanted:
            return
        keys = dict(wanted.keys)
        old = Deletion(
            tuple(set(known.offsets).difference(wanted.offsets)),
            tuple(each for each in known.keys if each[0] not in keys),
        )
        with self._kv.batch() as batch:
            self._drop_unlogged(batch, uid, old)
            self._put_unlogged(batch, uid, wanted)
        self._kv.sync()

    def _put_unlogged(self, batch: KvBatch, uid: int, deletion: Deletion) -> None:
        prefix = _OFFSET + _U32.pack(uid)
        rows = [(prefix + _U64.pack(offset), b"") for offset in deletion.offsets]
        prefix = _KEY + _U32.pack(uid)
        rows += [(prefix + key, _U64.pack(below)) for key, below in deletion.keys]
        batch.put_many(Family.STATE, rows)

    def _drop_unlogged(self, batch: KvBatch, uid: int, deletion: Deletion) -> None:
        for offset in deletion.offsets:
            batch.delete(Family.STATE, _OFFSET + _U32.pack(uid) + _U64.pack(offset))
        for key, _ in deletion.keys:
            batch.delete(Family.STATE, _KEY + _U32.pack(uid) + key)

    # Deletions that are about the table alone -----------------------------------------------------

    def note_retired(self, uid: int, deletion: Deletion) -> None:
        """Keeps a deletion that is about the table alone; nothing if there is none."""
        if any(deletion) and self._has_lake(uid):
            with self.retired.adding(uid, deletion.offsets, dict(deletion.keys)):
                pass
            self._kv.sync()

    def retired_of(self, uid: int) -> Retired | None:
        """What is kept for the shard's table; None if it has none."""
        return self.retired.read(uid) if self._has_lake(uid) else None
