"""Reads parts of objects through a cache, in memory and on disk; each byte is fetched once.

Whoever needs bytes that are not in memory begins a *flight*, or joins the one that is under way:
it takes them from the disk or the store. A flight that fails wakes all who wait for it with its
error, and the next read begins another. Those who read get memory of their own or share what
nobody changes, so that what is evicted meanwhile concerns nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from firnmq.disk.files import Buffer
from firnmq.errors import Closed, Corruption, StoreError
from firnmq.eventlog import EventLogger
from firnmq.tiering.cachefiles import CacheFiles
from firnmq.tiering.courtesy import Courtesy
from firnmq.tiering.extents import Extent, ExtentTable, ObjectPart

_log = EventLogger("tiering")

_HEADS_SHARE = 4
"""Heads of indexes may take a fourth of the disk's part: data must not displace them."""
_TELL_S = 60.0
"""Between two lines in the log about fetches that fail."""
_PACE_LOOK_S = 0.1
"""Between two looks whether there are still appends that have to be kept pace with."""
_QUEUED_MAX = 256
"""Fetches that wait for a thread; what comes on top is fetched when it is needed."""


class RangeStore(Protocol):
    """What the cache needs of an object store."""

    @property
    def url(self) -> str: ...

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Exactly these bytes."""


class Limiter(Protocol):
    """Says when so many bytes may pass."""

    @property
    def bytes_per_s(self) -> int | None:
        """None: there is no limit."""

    def reserve(self, count: int) -> float:
        """Books bytes; the seconds after which they may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    fetch_count: int
    fetched_bytes: int
    failed_fetch_count: int
    hit_count: int
    """Reads of a piece that was in memory or on disk."""
    paced_count: int
    """Parts that had to wait because there were appends."""
    memory_bytes: int
    disk_bytes: int
    evicted_count: int
    failed_write_count: int
    corrupt_count: int


class _FlightState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    LANDED = "landed"


class _Flight:
    """Bytes that are on their way."""

    __slots__ = (
        "_landed",
        "data",
        "error",
        "hurried",
        "is_paced",
        "is_unwanted",
        "part",
        "size",
        "start",
        "state",
    )

    def __init__(self, part: ObjectPart, start: int, size: int, *, is_paced: bool = False) -> None:
        self.part = part
        self.start = start
        self.size = size
        self.state = _FlightState.QUEUED
        self.data: Buffer | None = None
        self.error: Exception | None = None
        self.is_unwanted = False
        """The part was forgotten meanwhile: those who wait get the bytes, nobody else."""
        self.is_paced = is_paced
        """It belongs to a scan, which appends hold back."""
        self.hurried = threading.Event()
        """It is not held back any more: somebody needs it now."""
        self._landed = threading.Event()

    def land(self) -> None:
        self.state = _FlightState.LANDED
        self._landed.set()

    def wait(self) -> Buffer | None:
        """Its bytes; None if whoever was to get them has given up."""
        self._landed.wait()
        if self.error is not None:
            raise self.error
        return self.data


class ChunkCache:
    """Bytes of objects that never change. Safe with threads; its reads block."""

    def __init__(
        self,
        store: RangeStore,
        directory: Path,
        *,
        disk_bytes: int,
        memory_bytes: int,
        chunk_bytes: int,
        piece_bytes: int,
        threads: int,
        limiter: Limiter | None = None,
        courtesy: Courtesy | None = None,
    ) -> None:
        if piece_bytes < 1 or chunk_bytes % piece_bytes:
            raise ValueError(f"{chunk_bytes} bytes are no whole number of pieces of {piece_bytes}")
        self._store = store
        self._limiter = limiter
        self.memory_bytes = memory_bytes
        self.chunk_bytes = chunk_bytes
        self.piece_bytes = piece_bytes
        self._threads_max = threads
        self._lock = threading.Lock()
        # One for each who waits, so that nobody is woken for nothing: every thread that wakes
        # wants the interpreter's lock, which those who append need as well.
        self._has_queued = threading.Condition(self._lock)
        self._has_to_write = threading.Condition(self._lock)
        self._has_written = threading.Condition(self._lock)
        self._memory: ExtentTable[Buffer] = ExtentTable(piece_bytes)
        """What came first goes first: by use, what a scan has read would displace what it is about
        to read. What is read again and again is on the disk, and in the page cache."""
        self._courtesy = courtesy = courtesy or Courtesy()
        heads_bytes = disk_bytes // _HEADS_SHARE
        self._data_files = CacheFiles(
            directory / "data",
            max_bytes=disk_bytes - heads_bytes,
            piece_bytes=piece_bytes,
            origin=store.url,
            courtesy=courtesy,
        )
        self._head_files = CacheFiles(
            directory / "heads",
            max_bytes=heads_bytes,
            piece_bytes=piece_bytes,
            origin=store.url,
            courtesy=courtesy,
        )
        self._flights: dict[tuple[str, int], _Flight] = {}
        """By the name of the part and each piece."""
        self._queue: deque[_Flight] = deque()
        self._to_write: deque[_Flight] = deque()
        self._to_write_bytes = 0
        self._being_written: _Flight | None = None
        self._threads: list[threading.Thread] = []
        self._writer: threading.Thread | None = None
        self._is_closed = False
        self._closing = threading.Event()
        """Ends the wait for the limiter."""
        self._fetch_count = 0
        self._fetched_bytes = 0
        self._failed_fetch_count = 0
        self._told_at_s: float | None = None
        self._hit_count = 0
        self._paced_count = 0
        self._failed_write_count = 0

    # Reading --------------------------------------------------------------------------------------

    def read(self, part: ObjectPart, position: int, size: int, *, is_paced: bool = False) -> Buffer:
        """Exactly these bytes of the part, from wherever they are; `is_paced`: for a scan."""
        end = position + size
        if position < 0 or size < 0 or end > part.length:
            raise Corruption(
                f"bytes {position:,} to {end:,} are asked for, it has {part.length:,}",
                where=self.where(part),
                position=position,
            )
        if size == 0:
            return b""
        border = self._chunk_end(position)
        if border < end:
            # Beside the first chunk, not after it.
            self.prefetch(part, border, end, is_paced=is_paced)
        pieces: list[memoryview] = []
        while position < end:
            start, data = self._extent(part, position, end, is_paced)
            piece = memoryview(data)[position - start : end - start]
            pieces.append(piece)
            position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_nowait(self, part: ObjectPart, position: int, size: int) -> Buffer | None:
        """Exactly these bytes if all are in memory, else None."""
        end = position + size
        pieces: list[memoryview] = []
        with self._lock:
            while position < end:
                extent = self._memory.find(part.name, position // self.piece_bytes)
                if extent is None:
                    return None
                start = extent.start
                piece = memoryview(extent.content)[position - start : end - start]
                if not len(piece):
                    return None
                pieces.append(piece)
                position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def has(self, part: ObjectPart) -> bool:
        """Whether the beginning of a part is in memory or on disk."""
        with self._lock:
            in_memory = self._memory.holds(part.name, 0)
        return in_memory or self._files(part).extent_at(part.name, 0) is not None

    def prefetch(self, part: ObjectPart, start: int, end: int, *, is_paced: bool = False) -> None:
        """Has threads fetch what is missing of these bytes; returns at once."""
        name, end = part.name, min(end, part.length)
        queued_count = 0
        with self._lock:
            if self._is_closed:
                return
            while start < end and len(self._queue) < _QUEUED_MAX:
                piece = start // self.piece_bytes
                known = self._memory.find(name, piece) or self._flights.get((name, piece))
                if known is not None:
                    start = known.start + known.size
                    continue
                flight = self._begin(part, piece, end, is_paced)
                self._queue.append(flight)
                queued_count += 1
                start = flight.start + flight.size
            if queued_count:
                self._start_threads()
                self._has_queued.notify(queued_count)

    def put(self, part: ObjectPart, data: Buffer) -> None:
        """Takes in a whole part that the caller has."""
        if len(data) != part.length:
            raise ValueError(f"{len(data)} bytes are not the {part.length} of the part")
        for start in range(0, part.length, self.chunk_bytes):
            content = bytes(memoryview(data)[start : start + self.chunk_bytes])
            flight = _Flight(part, start, len(content))
            flight.data = content
            self._keep(flight, content)

    def forget(self, part: ObjectPart) -> None:
        """Drops what is cached of a part; reads under way get what they asked for."""
        with self._lock:
            self._memory.remove_part(part.name)
            for place in [each for each in self._flights if each[0] == part.name]:
                flight = self._flights.pop(place)
                flight.is_unwanted = True
                flight.hurried.set()
            for flight in self._to_write:
                if flight.part.name == part.name:
                    flight.is_unwanted = True
            # What is being written now is given up, and has to be gone: nobody waits here for long.
            if self._being_written is not None and self._being_written.part == part:
                self._being_written.is_unwanted = True
            while self._being_written is not None and self._being_written.part == part:
                self._has_written.wait()
        self._files(part).forget(part.name)

    def where(self, part: ObjectPart) -> str:
        """Names the object in errors."""
        return f"{self._store.url.rstrip('/')}/{part.key}"

    # Flights --------------------------------------------------------------------------------------

    def _extent(
        self, part: ObjectPart, position: int, end: int, is_paced: bool
    ) -> tuple[int, Buffer]:
        """Start and bytes of an extent that holds the position; fetched up to the end at most."""
        piece = position // self.piece_bytes
        while True:
            with self._lock:
                extent = self._memory.find(part.name, piece)
                if extent is not None:
                    self._hit_count += 1
                    return extent.start, extent.content
                if self._is_closed:
                    raise Closed("the cache of cold segments is closed")
                known = self._flights.get((part.name, piece))
                flight = known or self._begin(part, piece, end, is_paced)
                if not is_paced:
                    flight.hurried.set()
                is_mine = flight.state is _FlightState.QUEUED  # Nobody has come to it yet.
                flight.state = _FlightState.RUNNING
            if is_mine:
                self._fly(flight)
            data = flight.wait()
            if data is not None:
                return flight.start, data

    def _begin(self, part: ObjectPart, piece: int, end: int, is_paced: bool) -> _Flight:
        """A flight from a piece on: what the disk has there, or all that is missing up to the
        end of the chunk. Called with the lock."""
        files, name = self._files(part), part.name
        on_disk = files.extent_at(name, piece)
        if on_disk is not None:
            self._hit_count += 1
            flight = _Flight(part, *on_disk, is_paced=is_paced)
        else:
            start = piece * self.piece_bytes
            limit = min(self._chunk_end(start), end)
            pieces = range(piece + 1, -(-limit // self.piece_bytes))
            pieces = range(piece + 1, self._memory.first_held(name, pieces))
            pieces = range(piece + 1, files.first_held(name, pieces))
            last = next((each for each in pieces if (name, each) in self._flights), pieces.stop)
            size = min(last * self.piece_bytes, part.length) - start
            flight = _Flight(part, start, size, is_paced=is_paced)
        for number in self._pieces(flight):
            self._flights[name, number] = flight
        return flight

    def _fly(self, flight: _Flight) -> None:
        """Gets a flight's bytes; whoever waits for it is woken whatever happens."""
        try:
            self._keep_pace(flight)
            cached = self._files(flight.part).read(flight.part.name, flight.start, flight.size)
            flight.data = self._fetch(flight) if cached is None else cached
        except BaseException as error:
            # What interrupts this thread is not the others' error: they try themselves.
            flight.error = error if isinstance(error, Exception) else None
            with self._lock:
                self._failed_fetch_count += 1
            self._settle(flight)
            if isinstance(error, StoreError):
                self._tell(error)
            raise
        self._keep(flight, flight.data, is_on_disk=cached is not None)
        self._settle(flight)

    def _keep_pace(self, flight: _Flight) -> None:
        """Holds back what a scan reads, from disk or store, as long as appends demand it and
        nobody else needs it."""
        if not flight.is_paced or flight.hurried.is_set():
            self._courtesy.note(flight.size)
            return
        wait_s = self._courtesy.reserve(flight.size)
        if wait_s <= 0:
            return
        with self._lock:
            self._paced_count += 1
        due_s = time.monotonic() + wait_s
        while (left_s := due_s - time.monotonic()) > 0 and self._courtesy.is_beside_appends():
            if flight.hurried.wait(min(left_s, _PACE_LOOK_S)):
                return

    def _fetch(self, flight: _Flight) -> Buffer:
        part, start, size = flight.part, flight.start, flight.size
        if self._limiter is not None:
            wait_s = self._limiter.reserve(size)
            if wait_s > 0:
                self._closing.wait(wait_s)
        if self._is_closed:
            raise Closed("the cache of cold segments is closed")
        data = self._store.get_range(part.key, part.start + start, size)
        if len(data) != size:
            raise Corruption(
                f"{len(data):,} bytes came instead of {size:,}",
                where=self.where(part),
                position=part.start + start,
            )
        with self._lock:
            self._fetch_count += 1
            self._fetched_bytes += size
        return data

    def _tell(self, error: StoreError) -> None:
        """Kafka clients try again without a word: the log is where it can be seen, now and then."""
        with self._lock:
            now_s = time.monotonic()
            if self._told_at_s is not None and now_s - self._told_at_s < _TELL_S:
                return
            self._told_at_s = now_s
            count = self._failed_fetch_count
        _log.error("cold_read_failed", error=str(error), failed_fetches=count)

    def _settle(self, flight: _Flight) -> None:
        with self._lock:
            for number in self._pieces(flight):
                if self._flights.get((flight.part.name, number)) is flight:
                    del self._flights[flight.part.name, number]
        flight.land()

    def _pieces(self, flight: _Flight) -> range:
        return range(
            flight.start // self.piece_bytes,
            -(-(flight.start + flight.size) // self.piece_bytes),
        )

    # Keeping --------------------------------------------------------------------------------------

    def _keep(self, flight: _Flight, data: Buffer, *, is_on_disk: bool = False) -> None:
        """Puts bytes into memory, and on the list of what is to be written."""
        part = flight.part
        with self._lock:
            if flight.is_unwanted or self._is_closed:
                return
            if flight.size <= self.memory_bytes:
                self._memory.put(Extent(part.name, flight.start, flight.size, data))
            while self._memory.size_bytes > self.memory_bytes:
                self._memory.remove_oldest()
            # A disk that is too slow caches less; it does not hold up anybody.
            if not is_on_disk and self._to_write_bytes <= self.memory_bytes:
                self._to_write.append(flight)
                self._to_write_bytes += flight.size
                if self._writer is None:
                    self._writer = self._started(self._write_behind, "firn-cold-write")
                self._has_to_write.notify()

    def _write_behind(self) -> None:
        while True:
            with self._lock:
                self._being_written = None
                self._has_written.notify_all()
                while not self._to_write:
                    if self._is_closed:
                        return
                    self._has_to_write.wait()
                flight = self._to_write.popleft()
                self._to_write_bytes -= flight.size
                if flight.is_unwanted or flight.data is None:
                    continue
                self._being_written = flight
            try:
                self._write(flight, flight.data)
            except Exception:
                self._failed_write_count += 1  # The bytes are not cached; nobody needs to know.

    def _write(self, flight: _Flight, data: Buffer) -> None:
        files = self._files(flight.part)
        files.write(flight.part.name, flight.start, data, lambda: not flight.is_unwanted)

    def flush(self) -> None:
        """Waits until all that is to be written has been."""
        with self._lock:
            while self._to_write or self._being_written is not None:
                self._has_written.wait()

    def _files(self, part: ObjectPart) -> CacheFiles:
        return self._head_files if part.is_head else self._data_files

    def _chunk_end(self, position: int) -> int:
        return (position // self.chunk_bytes + 1) * self.chunk_bytes

    # Threads --------------------------------------------------------------------------------------

    def _start_threads(self) -> None:
        wanted = min(len(self._queue) + len(self._threads), self._threads_max)
        while len(self._threads) < wanted:
            name = f"firn-cold-fetch-{len(self._threads)}"
            self._threads.append(self._started(self._fetch_ahead, name))

    def _started(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _fetch_ahead(self) -> None:
        while (flight := self._next_queued()) is not None:
            try:
                self._fly(flight)
            except Exception:
                pass  # Those who wait for it have the error; nobody may be.

    def _next_queued(self) -> _Flight | None:
        with self._lock:
            while True:
                while self._queue:
                    flight = self._queue.popleft()
                    if flight.state is _FlightState.QUEUED and not flight.is_unwanted:
                        flight.state = _FlightState.RUNNING
                        return flight
                if self._is_closed:
                    return None
                self._has_queued.wait()

    def close(self) -> None:
        """Stops all threads. What is to be written is; what has not been begun is not fetched."""
        with self._lock:
            self._is_closed = True
            self._closing.set()
            abandoned = [each for each in self._queue if each.state is _FlightState.QUEUED]
            self._queue.clear()
            for flight in self._flights.values():
                flight.hurried.set()
            for flight in abandoned:
                flight.state = _FlightState.RUNNING
                flight.error = Closed("the cache of cold segments is closed")
            self._has_queued.notify_all()
            self._has_to_write.notify_all()
        for flight in abandoned:
            self._settle(flight)
        for thread in self._threads:
            thread.join()
        if self._writer is not None:
            self._writer.join()
        with self._lock:
            self._memory = ExtentTable(self.piece_bytes)

    def statistics(self) -> CacheStatistics:
        files = (self._data_files, self._head_files)
        return CacheStatistics(
            fetch_count=self._fetch_count,
            fetched_bytes=self._fetched_bytes,
            failed_fetch_count=self._failed_fetch_count,
            hit_count=self._hit_count,
            paced_count=self._paced_count,
            memory_bytes=self._memory.size_bytes,
            disk_bytes=sum(each.size_bytes for each in files),
            evicted_count=sum(each.evicted_count for each in files),
            failed_write_count=self._failed_write_count
            + sum(each.failed_write_count for each in files),
            corrupt_count=sum(each.corrupt_count for each in files),
        )
