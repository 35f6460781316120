"""What a log's deletion entries hide.

An entry is a control batch of the log (`record/deletion.py`). It counts from the moment at which
the high watermark passes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from firnmq.record.deletion import Deletion


class DeletionSink(Protocol):
    """Where new entries go, to be committed with a turn's index entries."""

    def set_deletion(self, offset: int, packed: bytes) -> None: ...


class Trim(NamedTuple):
    """What changes because the log starts later."""

    changed: dict[int, Deletion | None]
    """By the offset of the entry: what of it is still about the log; None if nothing is."""
    gone: Deletion
    """What is about records below the start alone."""
    left: Deletions
    """What took effect, without that."""


class Deletions:
    """The deletions of one log. The holder of the log's lock adds entries; the holder of its gate
    shows them.

    `offsets` and `keys` only grow. When the start moves or the log is truncated, another value
    replaces this one, after a new view replaced the old one. Readers therefore read the log's
    `deletions` before its `view`.

    Entries may be added while the gate is held, so an entry is in `_pending` before it is in
    `_entries`: who copies `_entries` first never takes a pending entry for a shown one.
    """

    __slots__ = ("_entries", "_new", "_pending", "keys", "offsets")

    def __init__(self, entries: Mapping[int, Deletion] | None = None) -> None:
        self.offsets: set[int] = set()
        """Deleted offsets."""
        self.keys: dict[bytes, int] = {}
        """Deleted keys: records below the number are gone."""
        self._entries = dict(entries or {})
        """By their offsets, rising."""
        self._pending: deque[tuple[int, Deletion]] = deque()
        """Entries above the high watermark."""
        self._new: dict[int, Deletion] = {}
        """Entries that were not handed to the index yet."""
        for deletion in self._entries.values():
            self._show(deletion)

    def __bool__(self) -> bool:
        """Whether something is hidden."""
        return bool(self.offsets or self.keys)

    def entries(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, Deletion]]:
        """Entries with offsets in [start, end)."""
        for offset, deletion in list(self._entries.items()):
            if start_offset <= offset < end_offset:
                yield offset, deletion

    def has_entry(self, offset: int) -> bool:
        """Whether there is an entry at the offset, be it above the high watermark."""
        return offset in self._entries

    def note(self, offset: int, deletion: Deletion) -> None:
        """An entry was stored at the end of the log."""
        self._pending.append((offset, deletion))
        self._entries[offset] = self._new[offset] = deletion

    def store_changes(self, sink: DeletionSink) -> None:
        """Hands over the entries that are new since the last time."""
        if self._new:
            for offset, deletion in self._new.items():
                sink.set_deletion(offset, deletion.pack())
            self._new.clear()

    def show(self, end_offset: int) -> None:
        """Entries below the high watermark count from now on. The view moves after that."""
        pending = self._pending
        while pending and pending[0][0] < end_offset:
            self._show(pending.popleft()[1])

    def rewound(self, end_offset: int) -> Deletions:
        """As they were when the log ended there."""
        return Deletions(dict(self.entries(0, end_offset)))

    def shown(self) -> dict[int, Deletion]:
        """Entries that count, by their offsets. The gate is held."""
        entries = self._entries.copy()
        for offset, _ in self._pending:
            entries.pop(offset, None)
        return entries

    def replace(self, old: Deletions, changed: Mapping[int, Deletion | None]) -> None:
        """Takes the place of `old`, of whose entries this value has what a trim has left of those
        that counted then. The gate is held."""
        for offset, rest in changed.items():
            if rest is None:
                del old._entries[offset]
            else:
                old._entries[offset] = rest
        since = []
        for offset, deletion in reversed(list(old._entries.items())):
            if offset in self._entries:
                break
            since.append((offset, deletion))
        waiting = {offset for offset, _ in old._pending}
        for offset, deletion in since:
            if offset not in waiting:
                self._show(deletion)
        # An entry that is added to the old value at this moment is in this one as well.
        self._entries, self._pending, self._new = old._entries, old._pending, old._new

    def _show(self, deletion: Deletion) -> None:
        self.offsets.update(deletion.offsets)
        keys = self.keys
        for key, below in deletion.keys:
            if below > keys.get(key, 0):
                keys[key] = below


def trim(shown: Mapping[int, Deletion], start_offset: int) -> Trim:
    """What is to change of a log's entries because it starts at an offset."""
    left: dict[int, Deletion] = {}
    changed: dict[int, Deletion | None] = {}
    gone: list[Deletion] = []
    for offset, deletion in shown.items():
        if not deletion.begins_below(start_offset):
            left[offset] = deletion
            continue
        gone.append(deletion.below(start_offset))
        rest = deletion.above(start_offset)
        if any(rest):
            changed[offset] = left[offset] = rest
        else:
            changed[offset] = None
    value = Deletions(left)
    offsets, keys = folded(gone)
    # What another entry says of a key as well, and further, is not gone.
    past = {key: below for key, below in keys.items() if value.keys.get(key, 0) <= start_offset}
    return Trim(changed, Deletion(tuple(sorted(offsets)), tuple(sorted(past.items()))), value)


def folded(deletions: Iterable[Deletion]) -> tuple[set[int], dict[bytes, int]]:
    """All their offsets, and all their keys, each as far as the one that reaches furthest."""
    value = Deletions(dict(enumerate(deletions)))
    return value.offsets, value.keys


def as_one(deletions: Iterable[Deletion]) -> Deletion:
    """The same deletions as one."""
    offsets, keys = folded(deletions)
    return Deletion(tuple(sorted(offsets)), tuple(sorted(keys.items())))


def merged_keys(one: Mapping[bytes, int], other: Mapping[bytes, int]) -> dict[bytes, int]:
    """Deleted keys of both, each as far as the one that reaches further."""
    return {**one, **{key: max(below, one.get(key, 0)) for key, below in other.items()}}
