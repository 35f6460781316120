"""Deletions that a log is done with, and of which its table may still have the records.

They are in the key-value store's STATE family and nowhere else: neither reads nor appends look at
them. Each has a number, given in the order in which they came. A caller that has applied all
deletions of a plan to the table gives the plan's number, and only those up to it are forgotten.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.kv import KvBatch

_HOLE, _KEY, _NUMBER = b"h", b"k", b"n"

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_KEY_VALUE = struct.Struct(
    ">Q"  # Records of the key below this offset are deleted.
    "Q"  # The deletion's number.
)
assert _KEY_VALUE.size == 16


class Retired(NamedTuple):
    """What is kept of one shard."""

    holes: frozenset[int]
    dead_keys: dict[bytes, int]
    number: int
    """The last one that was given."""


class RetiredDeletions:
    """Of all shards of a data directory. Safe with threads."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv
        self._lock = threading.Lock()
        """Held from reading an entry until it is written again."""

    def read(self, uid: int) -> Retired:
        """The number is read first: a deletion retired after that is shown, and not counted."""
        number = self._number(uid)
        return Retired(
            frozenset(offset for offset, _ in self.holes(uid)),
            {key: below for key, below, _ in self.keys(uid)},
            number,
        )

    def holes(self, uid: int) -> Iterator[tuple[int, int]]:
        """Offsets of deleted records, and the deletions' numbers."""
        prefix = _HOLE + _U32.pack(uid)
        for key, value in self._kv.items(Family.STATE, prefix, after(prefix)):
            yield _U64.unpack_from(key, len(prefix))[0], _U64.unpack(value)[0]

    def keys(self, uid: int) -> Iterator[tuple[bytes, int, int]]:
        """Deleted keys, the offsets below which their records are, and the deletions' numbers."""
        prefix = _KEY + _U32.pack(uid)
        for key, value in self._kv.items(Family.STATE, prefix, after(prefix)):
            below, number = _KEY_VALUE.unpack(value)
            yield key[len(prefix) :], below, number

    def count(self, uid: int) -> int:
        """How many are kept."""
        prefixes = (kind + _U32.pack(uid) for kind in (_HOLE, _KEY))
        return sum(len(self._kv.items(Family.STATE, each, after(each))) for each in prefixes)

    @contextmanager
    def adding(
        self, uid: int, holes: Collection[int], dead_keys: Mapping[bytes, int]
    ) -> Iterator[KvBatch]:
        """A batch that adds these, and does with them whatever else is put into it. Unsynced."""
        with self._lock:
            rows = self._rows(uid, holes, dead_keys) if holes or dead_keys else []
            with self._kv.batch() as batch:
                batch.put_many(Family.STATE, rows)
                yield batch

    def _rows(
        self, uid: int, holes: Collection[int], dead_keys: Mapping[bytes, int]
    ) -> list[tuple[bytes, bytes]]:
        prefix = _U32.pack(uid)
        number = _U64.pack(self._number(uid) + 1)
        rows = [(_NUMBER + prefix, number)]
        rows += [(_HOLE + prefix + _U64.pack(offset), number) for offset in holes]
        for key, below in dead_keys.items():
            known = self._kv.get(Family.STATE, _KEY + prefix + key)
            reach = below if known is None else max(below, _KEY_VALUE.unpack(known)[0])
            rows.append((_KEY + prefix + key, _U64.pack(reach) + number))
        return rows

    def drop(self, uid: int, number: int, end: int) -> int:
        """Forgets deletions up to the number that are wholly below the offset; how many. Unsynced:
        those that a crash brings back are dropped again."""
        if number <= 0:
            return 0
        prefix = _U32.pack(uid)
        with self._lock:
            gone = [
                _HOLE + prefix + _U64.pack(offset)
                for offset, given in self.holes(uid)
                if offset < end and given <= number
            ]
            gone += [
                _KEY + prefix + key
                for key, below, given in self.keys(uid)
                if below <= end and given <= number
            ]
            if gone:
                with self._kv.batch() as batch:
                    for name in gone:
                        batch.delete(Family.STATE, name)
        return len(gone)

    def cut(self, uid: int, end: int) -> None:
        """Forgets what is said of offsets from the end on: others will get them."""
        prefix = _HOLE + _U32.pack(uid)
        with self._lock:
            long = [(key, given) for key, below, given in self.keys(uid) if below > end]
            first = prefix + _U64.pack(end)
            if not long and not self._kv.items(Family.STATE, first, after(prefix), 1):
                return
            with self._kv.batch() as batch:
                batch.delete_range(Family.STATE, first, after(prefix))
                for key, given in long:
                    name = _KEY + _U32.pack(uid) + key
                    batch.put(Family.STATE, name, _KEY_VALUE.pack(end, given))
        self._kv.sync()

    def problems(self, uid: int, end: int | None) -> Iterator[str]:
        """What is wrong with the entries of a shard that ends there, if it is known where."""
        last, prefix = self._number(uid), _U32.pack(uid)
        for kind in (_HOLE, _KEY):
            rows = self._kv.items(Family.STATE, kind + prefix, after(kind + prefix))
            for name, value in rows:
                term = name[len(kind + prefix) :]
                if kind == _HOLE and (len(term), len(value)) == (_U64.size, _U64.size):
                    reach, number = _U64.unpack(term)[0] + 1, _U64.unpack(value)[0]
                elif kind == _KEY and len(value) == _KEY_VALUE.size:
                    reach, number = _KEY_VALUE.unpack(value)
                else:
                    yield f"entry {name!r} of a deletion kept for the table cannot be read"
                    continue
                if end is not None and reach > end:
                    yield f"a deletion kept for the table reaches {reach}, beyond the end {end}"
                if not 0 < number <= last:
                    yield f"a deletion kept for the table has number {number}, the last is {last}"

    def forget(self, batch: KvBatch, first_uid: int, end_uid: int) -> None:
        """Has the batch remove everything of shards that are no more: those with uids in
        [first_uid, end_uid)."""
        for kind in (_HOLE, _KEY, _NUMBER):
            batch.delete_range(Family.STATE, kind + _U32.pack(first_uid), kind + _U32.pack(end_uid))

    def _number(self, uid: int) -> int:
        raw = self._kv.get(Family.STATE, _NUMBER + _U32.pack(uid))
        return 0 if raw is None else int(_U64.unpack(raw)[0])


def after(prefix: bytes) -> bytes:
    """The smallest key above every key with the prefix."""
    number = int.from_bytes(prefix, "big") + 1
    return number.to_bytes(len(prefix), "big")
