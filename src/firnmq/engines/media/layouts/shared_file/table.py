"""The shared files that there are: how far each is written, and how much of it is dead."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.kv import KvBatch
from firnmq.engines.media.layouts.shared_file.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from firnmq.engines.media.layouts.shared_file.rows import (
    DEAD,
    EXTENTS,
    Extent,
    Location,
    dead_key,
    extent_key,
    pack_dead,
    position_of,
    unpack_dead,
    unpack_extent,
)

_NAME_DIGITS = 10


class FileTable:
    """What is known of each file. Safe with threads.

    `extents` are changed by the owner of the file: the commit log that writes it, or opening. Dead
    bytes are changed within `changing_dead`, in the batch that removes the locations.
    """

    def __init__(self, directory: Path, kv: KeyValueStore) -> None:
        self.directory = directory
        self._kv = kv
        self.extents: dict[int, Extent] = {
            position_of(key): unpack_extent(packed)
            for key, packed in kv.items(Family.LOCATIONS, *EXTENTS)
        }
        self._dead = {
            position_of(key): unpack_dead(packed)
            for key, packed in kv.items(Family.LOCATIONS, *DEAD)
        }
        self._lock = threading.Lock()
        """Held while locations are removed or replaced."""
        self._next = max((*self.extents, *self.numbers_on_disk()), default=0) + 1

    def path(self, number: int) -> str:
        return f"{self.directory}/{number:0{_NAME_DIGITS}d}.log"

    def numbers_on_disk(self) -> list[int]:
        names = (path.stem for path in self.directory.glob("*.log"))
        return sorted(int(name) for name in names if name.isdecimal())

    def new_number(self) -> int:
        """A number that no file has had as long as anything refers to it."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            return number

    def dead_bytes(self, number: int) -> int:
        return self._dead.get(number, 0)

    def live_bytes(self, number: int) -> int:
        """Bytes of frames that segments still have."""
        return self.extents[number].written - FILE_HEADER_BYTES - self.dead_bytes(number)

    def total_bytes(self) -> tuple[int, int]:
        """Bytes written to all files, and those of them that no segment has any more."""
        extents = list(self.extents.items())
        return sum(extent.written for _, extent in extents), sum(
            self.dead_bytes(number) for number, _ in extents
        )

    @contextmanager
    def changing_dead(self) -> Iterator[DeadChange]:
        """A batch for removed or replaced locations and the dead bytes that follow from them; it is
        written, unsynced, when the block ends without an error."""
        with self._lock:
            with self._kv.batch() as batch:
                change = DeadChange(batch)
                yield change
                dead = {
                    number: self._dead.get(number, 0) + size
                    for number, size in change.dead.items()
                    if number in self.extents
                }
                for number, size in dead.items():
                    batch.put(Family.LOCATIONS, dead_key(number), pack_dead(size))
            self._dead.update(dead)

    def stored_extent(self, number: int) -> Extent | None:
        """A file's extent as the database has it, which is reopened first if it had failed."""
        self._kv.reopen()
        packed = self._kv.get(Family.LOCATIONS, extent_key(number))
        return None if packed is None else unpack_extent(packed)

    def store_extents(self, extents: dict[int, Extent]) -> None:
        """Stores, unsynced, how far files are written."""
        with self._kv.batch() as batch:
            for number, extent in extents.items():
                batch.put(Family.LOCATIONS, extent_key(number), extent.pack())
        self.extents.update(extents)

    def forget(self, numbers: Iterable[int]) -> None:
        """Forgets files that are gone."""
        with self._lock, self._kv.batch() as batch:
            for number in numbers:
                batch.delete(Family.LOCATIONS, extent_key(number))
                batch.delete(Family.LOCATIONS, dead_key(number))
                self.extents.pop(number, None)
                self._dead.pop(number, None)


class DeadChange:
    """What one batch removes."""

    def __init__(self, batch: KvBatch) -> None:
        self.batch = batch
        self.dead: dict[int, int] = {}

    def remove(self, key: bytes, location: Location) -> None:
        """Removes a location with its frame."""
        self.batch.delete(Family.LOCATIONS, key)
        self.add_frame(location)

    def add_frame(self, location: Location) -> None:
        self.add(location.file, FRAME_HEADER_BYTES + location.length)

    def add(self, number: int, dead_bytes: int) -> None:
        self.dead[number] = self.dead.get(number, 0) + dead_bytes
