"""Changes of the key-value store that are written atomically."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeAlias

from rocksdict import WriteBatch

from firnmq.disk.kv.journal import DELETE, DELETE_RANGE, PUT, Change

_ENTRY_BYTES = 64
"""What RocksDB needs in memory for an entry besides its key and value, rounded up."""


class Family(Enum):
    """Column families, by their content."""

    STATE = "state"
    """Deletions, group offsets, transactions, users."""
    INDEX = "index"
    """The four indexes and their checkpoints: derived, can be rebuilt from the log."""
    MESSAGES = "messages"
    """Batches of the RocksDB engine."""
    LOCATIONS = "locations"
    """Where frames of shared files are: derived up to the end of each file."""


NUMBERS = {Family.STATE: 0, Family.INDEX: 1, Family.MESSAGES: 2, Family.LOCATIONS: 3}
"""Of the families in the journal."""
_FAMILIES = {number: family for family, number in NUMBERS.items()}
_DERIVED = frozenset({Family.INDEX, Family.LOCATIONS})

KeyRange: TypeAlias = tuple[Family, bytes, bytes]
"""Keys of a family in [first, second)."""


class KvBatch:
    """Changes that are written atomically. Not safe with threads."""

    __slots__ = ("_batch", "_deletes", "_handles", "changes", "deleted", "families", "memory_bytes")

    def __init__(self, handles: dict[Family, Any]) -> None:
        self._batch = WriteBatch(raw_mode=True)
        self._handles = handles
        self.changes: list[Change] = []
        """For the journal."""
        self._deletes = False
        self.families: set[Family] = set()
        self.memory_bytes = 0
        """What the changes take in memory until they are in a table."""
        self.deleted: list[KeyRange] = []

    @property
    def has_state(self) -> bool:
        """Whether it changes anything in Family.STATE."""
        return Family.STATE in self.families

    @property
    def may_wait(self) -> bool:
        """Whether it only adds what can be rebuilt from the log."""
        return self.families <= _DERIVED and not self._deletes

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.families.add(family)
        self.memory_bytes += len(key) + len(value) + _ENTRY_BYTES
        self.changes.append((NUMBERS[family], PUT, [(key, value)]))
        self._batch.put(key, value, self._handles[family])

    def put_many(self, family: Family, entries: list[tuple[bytes, bytes]]) -> None:
        if not entries:
            return
        self.families.add(family)
        self.changes.append((NUMBERS[family], PUT, entries))
        # Naming the family once instead of with every entry saves a third of the time.
        self._batch.set_default_column_family(self._handles[family])
        put, before_bytes = self._batch.put, self._batch.size_in_bytes()
        for key, value in entries:
            put(key, value)
        self._batch.set_default_column_family(None)  # It would keep the database open.
        size_bytes: int = self._batch.size_in_bytes() - before_bytes
        self.memory_bytes += size_bytes + len(entries) * _ENTRY_BYTES

    def delete(self, family: Family, key: bytes) -> None:
        self.families.add(family)
        self.memory_bytes += len(key) + _ENTRY_BYTES
        self._deletes = True
        self.changes.append((NUMBERS[family], DELETE, [(key, b"")]))
        self._batch.delete(key, self._handles[family])

    def delete_range(self, family: Family, lower: bytes, upper: bytes) -> None:
        """Deletes every key in [lower, upper)."""
        self.families.add(family)
        self.memory_bytes += len(lower) + len(upper) + _ENTRY_BYTES
        self._deletes = True
        self.deleted.append((family, lower, upper))
        self.changes.append((NUMBERS[family], DELETE_RANGE, [(lower, upper)]))
        self._batch.delete_range(lower, upper, self._handles[family])

    def repeat(self, changes: Iterable[Change]) -> None:
        """Adds changes that a journal holds."""
        for number, kind, entries in changes:
            family = _FAMILIES[number]
            if kind == PUT:
                self.put_many(family, entries)
                continue
            for first, second in entries:
                if kind == DELETE:
                    self.delete(family, first)
                else:
                    self.delete_range(family, first, second)

    @property
    def changes_in_memory(self) -> WriteBatch:
        """The changes as RocksDB takes them."""
        return self._batch

    def release(self) -> None:
        """Lets go of what refers to the database: an error's traceback would keep it locked."""
        del self._batch
        self._handles = {}

    def __len__(self) -> int:
        return len(self.changes)
