"""The journal of the key-value store: files that hold every change until it is in a table.

RocksDB writes its own log while it holds the interpreter's lock, so that a disk that keeps a write
waiting would stop every thread. The store therefore turns that log off and writes this one, with
calls that release the lock. `docs/formats/journal.md` describes the bytes.

Records are numbered without gaps. A file is synced before the next one gets its first record, so
only the last file can end in the middle of a record after a crash: the rest of it is dropped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from firnmq.disk.directory import sync_directory
from firnmq.disk.private import PRIVATE_FILE
from firnmq.errors import Corruption
from firnmq.eventlog import EventLogger
from firnmq.record import crc32c

_log = EventLogger("disk")

PUT, DELETE, DELETE_RANGE = range(3)
Change = tuple[int, int, list[tuple[bytes, bytes]]]
"""Number of a family, kind, and entries: keys with values, keys alone, or ranges of keys."""

_MAGIC = b"FIRNKVJ1"
_HEADER = struct.Struct(
    "<"
    "I"  # length of the payload
    "I"  # CRC32C of the number and the payload
    "Q"  # number of the record
)
_NUMBER = struct.Struct("<Q")
_NUMBER_AT = 8
assert _HEADER.size == _NUMBER_AT + _NUMBER.size == 16
_PATTERN = "journal-*.log"
_BUFFER_BYTES = 64 * 1024
"""Records of derived changes that may wait for a write."""
_PARTS_MAX = 512
"""Buffers of one write; the system takes 1,024."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Change]).decode


class JournalFile:
    """The file that is written."""

    def __init__(self, path: Path) -> None:
        """Creates it, or opens a complete one; nothing is durable before `sync`."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        self.position = os.fstat(self._descriptor).st_size
        self.synced_position = 0

    def write(self, parts: list[bytes]) -> None:
        """After an error it is unknown how much was written, and nothing may follow it."""
        if self.position == 0:
            parts = [_MAGIC, *parts]
        for at in range(0, len(parts), _PARTS_MAX):
            some = parts[at : at + _PARTS_MAX]
            self.position += self._write_at(self.position, some)

    def _write_at(self, position: int, parts: list[bytes]) -> int:
        size = sum(map(len, parts))
        written = os.pwritev(self._descriptor, parts, position)
        if written != size:
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                count = os.pwrite(self._descriptor, rest, position + written)
                written += count
                rest = rest[count:]
        return size

    def sync(self) -> None:
        position = self.position
        os.fdatasync(self._descriptor)
        if self.synced_position == 0:
            sync_directory(self.path.parent)
        self.synced_position = position

    def repeat(self, length: int) -> None:
        """Truncates the file, and writes what is left once more, durably."""
        os.ftruncate(self._descriptor, length)
        data = os.pread(self._descriptor, length, 0)
        self.position = 0
        if data:
            self._write_at(0, [data])
        self.position = length
        self.sync()

    def close(self) -> None:
        os.close(self._descriptor)


class Journal:
    """The files of one directory. Not safe with threads; the store's locks guard it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: JournalFile | None = None
        self._last_number = 0
        """Of the newest record."""
        self._waiting: list[bytes] = []
        """Records that are not in the file yet."""
        self._waiting_bytes = 0
        self._is_rewritten = False
        """Whether nothing was added since `rewrite`."""

    def append(self, changes: list[Change], *, may_wait: bool) -> None:
        """Adds a record. With `may_wait` it may stay in memory until another one is written.

        After an error the record counts as not added, and only `rewrite` may follow.
        """
        payload = _encode(changes)
        number = _NUMBER.pack(self._last_number + 1)
        header = _HEADER.pack(len(payload), crc32c(payload, crc32c(number)), self._last_number + 1)
        self._waiting += (header, payload)
        self._waiting_bytes += len(header) + len(payload)
        self._is_rewritten = False
        if not may_wait or self._waiting_bytes > _BUFFER_BYTES:
            try:
                self.write_out()
            except BaseException:
                del self._waiting[-2:]
                raise
        self._last_number += 1

    def write_out(self) -> JournalFile | None:
        """Writes what waits in memory; returns the file that has to be synced."""
        if self._waiting:
            if self._file is None:
                numbers = self._file_numbers()
                self._file = JournalFile(self._path_for(numbers[-1] + 1 if numbers else 1))
            self._file.write(self._waiting)
            self._waiting = []
            self._waiting_bytes = 0
        return self._file

    def switch(self) -> None:
        """The next record begins a new file; what was written before is durable."""
        file = self.write_out()
        if file is None:
            return
        if file.synced_position != file.position:
            file.sync()
        self._file = None
        file.close()

    def rewrite(self) -> None:
        """Makes every record durable again, in its place; the only way on after a failed call.

        What a failed sync leaves in the page cache may not be on the device, and a second sync
        alone would not say so. No file grows by it, so that a full disk does not prevent it.
        Corruption if a file is damaged in a place that no crash explains.
        """
        if self._is_rewritten:
            return
        numbers = self._file_numbers()
        last = 0
        lengths: dict[int, int] = {}
        for number in numbers:
            last, lengths[number] = self._judge(number, last, is_last=number == numbers[-1])
        self.close()
        for number, intact_bytes in lengths.items():
            file = JournalFile(self._path_for(number))
            try:
                file.repeat(intact_bytes)
            finally:
                file.close()
        if numbers:
            self._file = JournalFile(self._path_for(numbers[-1]))
            self._file.synced_position = self._file.position
        waiting = zip(self._waiting[::2], self._waiting[1::2], strict=True)
        # Those that are there already were in a write that failed later.
        self._waiting = [
            part for record in waiting if _HEADER.unpack(record[0])[2] > last for part in record
        ]
        self._waiting_bytes = sum(map(len, self._waiting))
        last += len(self._waiting) // 2
        current = self.write_out()
        if current is not None and current.synced_position != current.position:
            current.sync()
        self._last_number = last
        self._is_rewritten = True

    def records(self) -> Iterator[list[Change]]:
        """What the journal holds, after `rewrite`."""
        for number in self._file_numbers():
            for _, record in _records(self._path_for(number).read_bytes()):
                yield _decode(memoryview(record)[_HEADER.size :])

    def complete_files(self) -> list[int]:
        """Files that are not written any more."""
        numbers = self._file_numbers()
        return numbers if self._file is None else numbers[:-1]

    def remove(self, numbers: list[int]) -> None:
        """Removes files whose changes are in tables, oldest first. What fails is done later."""
        if not numbers:
            return
        try:
            for number in numbers:
                self._path_for(number).unlink(missing_ok=True)
            sync_directory(self._directory)  # An older file must not come back without a newer one.
        except OSError as error:
            _log.warning("journal_not_removed", path=self._directory, error=str(error))

    def discard(self) -> None:
        """Removes all files; every change is in a table."""
        self.close()
        self.remove(self._file_numbers())

    def close(self) -> None:
        self._is_rewritten = False
        if self._file is not None:
            self._file.close()
            self._file = None

    def synced_lengths(self) -> dict[str, int]:
        """How much of each file is certainly on the device."""
        lengths = {self._path_for(number).name: -1 for number in self._file_numbers()}
        if self._file is not None:
            lengths[self._file.path.name] = self._file.synced_position
        return lengths

    def _judge(self, number: int, last: int, *, is_last: bool) -> tuple[int, int]:
        """The newest record of a file that begins after number `last`, and how many of its bytes
        are intact."""
        path = self._path_for(number)
        data = path.read_bytes()
        magic = data[: len(_MAGIC)]
        intact_bytes = 0
        if magic == _MAGIC:
            intact_bytes = len(_MAGIC)
            for record_number, record in _records(data):
                if last and record_number != last + 1:
                    raise Corruption("records are missing before this one", where=str(path))
                last = record_number
                intact_bytes += len(record)
        elif not is_last or (len(magic) == len(_MAGIC) and any(magic)):
            raise Corruption("this is no journal that this version reads", where=str(path))
        if intact_bytes < len(data):
            if not is_last:
                raise Corruption("a record is damaged", where=str(path), position=intact_bytes)
            _log.warning("journal_truncated", path=path, dropped_bytes=len(data) - intact_bytes)
        return last, intact_bytes

    def _file_numbers(self) -> list[int]:
        return sorted(
            int(path.stem.partition("-")[2])
            for path in self._directory.glob(_PATTERN)
            if path.stem.partition("-")[2].isdigit()
        )

    def _path_for(self, number: int) -> Path:
        return self._directory / f"journal-{number:08d}.log"


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The intact records at the beginning of a file, with their numbers."""
    at = len(_MAGIC)
    while at + _HEADER.size <= len(data):
        length, crc, number = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if end > len(data) or crc32c(data[at + _NUMBER_AT : end]) != crc:
            return
        yield number, data[at:end]
        at = end
