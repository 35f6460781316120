"""Reads parts of objects through a cache, in memory and on disk; each byte is fetched once.

A read whose bytes are not in memory starts a *flight*, one fetch from the disk or the store, or
joins the flight that is already running for these bytes. A flight that fails raises its error in
every reader that waits for it, and the next read starts another. Readers hold references to
immutable buffers, so eviction never affects readers in progress.
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
from firnmq.tiering.cold.cache_files import CacheFiles
from firnmq.tiering.cold.extents import Extent, ExtentTable, ObjectPart
from firnmq.tiering.cold.throttle import ColdThrottle

_log = EventLogger("tiering")

_HEADS_SHARE = 4
"""A fourth of the disk cache is reserved for index heads: data must not evict them."""
_LOG_INTERVAL_S = 60.0
"""Between two log lines about failed fetches."""
_THROTTLE_CHECK_S = 0.1
"""A throttled scan checks this often whether there are still appends to throttle it for."""
_QUEUED_MAX = 256
"""Fetches that wait for a thread. Prefetches beyond this are dropped; the read fetches then."""


class RangeStore(Protocol):
    """What the cache needs of an object store."""

    @property
    def url(self) -> str: ...

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Exactly these bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    fetch_count: int
    fetched_bytes: int
    failed_fetch_count: int
    hit_count: int
    """Reads of a piece that was in memory or on disk."""
    paced_count: int
    """Fetches of scans that the throttle delayed in favour of appends."""
    memory_bytes: int
    disk_bytes: int
    evicted_count: int
    failed_write_count: int
    corrupt_count: int


class _FlightState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"


class _Flight:
    """One fetch in progress."""

    __slots__ = (
        "_completed",
        "data",
        "error",
        "is_scan",
        "is_unwanted",
        "part",
        "size",
        "start",
        "state",
        "urgent",
    )

    def __init__(self, part: ObjectPart, start: int, size: int, *, is_scan: bool = False) -> None:
        self.part = part
        self.start = start
        self.size = size
        self.state = _FlightState.QUEUED
        self.data: Buffer | None = None
        self.error: Exception | None = None
        self.is_unwanted = False
        """The part was forgotten during the fetch: waiting readers get the bytes, the cache does
        not keep them."""
        self.is_scan = is_scan
        """The fetch belongs to a scan, which the throttle may delay."""
        self.urgent = threading.Event()
        """Set to end the delay: a foreground read needs the bytes, or the cache drops them."""
        self._completed = threading.Event()

    def complete(self) -> None:
        self.state = _FlightState.COMPLETED
        self._completed.set()

    def wait(self) -> Buffer | None:
        """The fetched bytes; None if the fetching thread was interrupted."""
        self._completed.wait()
        if self.error is not None:
            raise self.error
        return self.data


class ChunkCache:
    """A cache of immutable objects. Safe with threads; its reads block."""

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
        throttle: ColdThrottle | None = None,
    ) -> None:
        if piece_bytes < 1 or chunk_bytes % piece_bytes:
            raise ValueError(f"{chunk_bytes} bytes are no whole number of pieces of {piece_bytes}")
        self._store = store

        self.memory_bytes = memory_bytes
        self.chunk_bytes = chunk_bytes
        self.piece_bytes = piece_bytes
        self._threads_max = threads
        self._lock = threading.Lock()
        # One condition per kind of waiter, to avoid spurious wake-ups: every thread that wakes
        # competes with appends for the interpreter's lock.
        self._has_queued = threading.Condition(self._lock)
        self._has_to_write = threading.Condition(self._lock)
        self._has_written = threading.Condition(self._lock)
        self._memory: ExtentTable[Buffer] = ExtentTable(piece_bytes)
        """Evicted first in, first out: with LRU, the chunks that a scan has read would evict those
        that it is about to read. Hot chunks stay in the disk cache and in the page cache."""
        self._throttle = throttle = throttle or ColdThrottle()
        heads_bytes = disk_bytes // _HEADS_SHARE
        self._data_files = CacheFiles(
            directory / "data",
            max_bytes=disk_bytes - heads_bytes,
            piece_bytes=piece_bytes,
            origin=store.url,
            throttle=throttle,
        )
        self._head_files = CacheFiles(
            directory / "heads",
            max_bytes=heads_bytes,
            piece_bytes=piece_bytes,
            origin=store.url,
            throttle=throttle,
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
        """Ends the wait for the fetch limit."""
        self._fetch_count = 0
        self._fetched_bytes = 0
        self._failed_fetch_count = 0
        self._logged_at_s: float | None = None
        self._hit_count = 0
        self._paced_count = 0
        self._failed_write_count = 0

    # Reading --------------------------------------------------------------------------------------

    def read(self, part: ObjectPart, position: int, size: int, *, is_scan: bool = False) -> Buffer:
        """Exactly these bytes of the part. `is_scan` lets the throttle delay the read."""
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
            # In parallel with the first chunk, not after it.
            self.prefetch(part, border, end, is_scan=is_scan)
        pieces: list[memoryview] = []
        while position < end:
            start, data = self._extent(part, position, end, is_scan)
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

    def prefetch(self, part: ObjectPart, start: int, end: int, *, is_scan: bool = False) -> None:
        """Fetches the missing part of these bytes in the background; returns at once."""
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
                flight = self._begin(part, piece, end, is_scan)
                self._queue.append(flight)
                queued_count += 1
                start = flight.start + flight.size
            if queued_count:
                self._start_threads()
                self._has_queued.notify(queued_count)

    def put(self, part: ObjectPart, data: Buffer) -> None:
        """Inserts a whole part that the caller already has."""
        if len(data) != part.length:
            raise ValueError(f"{len(data)} bytes are not the {part.length} of the part")
        for start in range(0, part.length, self.chunk_bytes):
            content = bytes(memoryview(data)[start : start + self.chunk_bytes])
            flight = _Flight(part, start, len(content))
            flight.data = content
            self._keep(flight, content)

    def forget(self, part: ObjectPart) -> None:
        """Drops a part from the cache; reads in progress still get their bytes."""
        with self._lock:
            self._memory.remove_part(part.name)
            for place in [each for each in self._flights if each[0] == part.name]:
                flight = self._flights.pop(place)
                flight.is_unwanted = True
                flight.urgent.set()
            for flight in self._to_write:
                if flight.part.name == part.name:
                    flight.is_unwanted = True
            # A write in progress is abandoned, and must have ended before the files are removed.
            # It checks `is_unwanted` after each slice, so this wait is short.
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
        self, part: ObjectPart, position: int, end: int, is_scan: bool
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
                flight = known or self._begin(part, piece, end, is_scan)
                if not is_scan:
                    flight.urgent.set()
                is_mine = flight.state is _FlightState.QUEUED  # No thread has started it yet.
                flight.state = _FlightState.RUNNING
            if is_mine:
                self._fly(flight)
            data = flight.wait()
            if data is not None:
                return flight.start, data

    def _begin(self, part: ObjectPart, piece: int, end: int, is_scan: bool) -> _Flight:
        """A flight that starts at a piece: the extent that the disk has there, or everything
        missing up to the end of the chunk. Called with the lock held."""
        files, name = self._files(part), part.name
        on_disk = files.extent_at(name, piece)
        if on_disk is not None:
            self._hit_count += 1
            flight = _Flight(part, *on_disk, is_scan=is_scan)
        else:
            start = piece * self.piece_bytes
            limit = min(self._chunk_end(start), end)
            pieces = range(piece + 1, -(-limit // self.piece_bytes))
            pieces = range(piece + 1, self._memory.first_held(name, pieces))
            pieces = range(piece + 1, files.first_held(name, pieces))
            last = next((each for each in pieces if (name, each) in self._flights), pieces.stop)
            size = min(last * self.piece_bytes, part.length) - start
            flight = _Flight(part, start, size, is_scan=is_scan)
        for number in self._pieces(flight):
            self._flights[name, number] = flight
        return flight

    def _fly(self, flight: _Flight) -> None:
        """Runs a fetch. Waiting readers are woken whether it succeeds or fails."""
        try:
            self._throttle_scan(flight)
            cached = self._files(flight.part).read(flight.part.name, flight.start, flight.size)
            flight.data = self._fetch(flight) if cached is None else cached
        except BaseException as error:
            # An interrupt of this thread is no error of the other readers: they fetch themselves.
            flight.error = error if isinstance(error, Exception) else None
            with self._lock:
                self._failed_fetch_count += 1
            self._complete(flight)
            if isinstance(error, StoreError):
                self._log_failure(error)
            raise
        self._keep(flight, flight.data, is_on_disk=cached is not None)
        self._complete(flight)

    def _throttle_scan(self, flight: _Flight) -> None:
        """Delays a scan's fetch, from disk or store, until the rate limit allows it, appends have
        stopped, or a foreground read needs the bytes."""
        if not flight.is_scan or flight.urgent.is_set():
            self._throttle.note(flight.size)
            return
        wait_s = self._throttle.reserve(flight.size)
        if wait_s <= 0:
            return
        with self._lock:
            self._paced_count += 1
        due_s = time.monotonic() + wait_s
        while (left_s := due_s - time.monotonic()) > 0 and self._throttle.has_recent_appends():
            if flight.urgent.wait(min(left_s, _THROTTLE_CHECK_S)):
                return

    def _fetch(self, flight: _Flight) -> Buffer:
        part, start, size = flight.part, flight.start, flight.size
        wait_s = self._throttle.fetch_limiter.reserve(size)
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

    def _log_failure(self, error: StoreError) -> None:
        """Logs a failed fetch, at most once a minute: Kafka clients retry silently, so the log is
        the only place where an operator sees it."""
        with self._lock:
            now_s = time.monotonic()
            if self._logged_at_s is not None and now_s - self._logged_at_s < _LOG_INTERVAL_S:
                return
            self._logged_at_s = now_s
            count = self._failed_fetch_count
        _log.error("cold_read_failed", error=str(error), failed_fetches=count)

    def _complete(self, flight: _Flight) -> None:
        with self._lock:
            for number in self._pieces(flight):
                if self._flights.get((flight.part.name, number)) is flight:
                    del self._flights[flight.part.name, number]
        flight.complete()

    def _pieces(self, flight: _Flight) -> range:
        return range(
            flight.start // self.piece_bytes,
            -(-(flight.start + flight.size) // self.piece_bytes),
        )

    # Keeping --------------------------------------------------------------------------------------

    def _keep(self, flight: _Flight, data: Buffer, *, is_on_disk: bool = False) -> None:
        """Puts bytes into memory, and into the queue of writes to the disk cache."""
        part = flight.part
        with self._lock:
            if flight.is_unwanted or self._is_closed:
                return
            if flight.size <= self.memory_bytes:
                self._memory.put(Extent(part.name, flight.start, flight.size, data))
            while self._memory.size_bytes > self.memory_bytes:
                self._memory.remove_oldest()
            # A slow disk caches less; it never delays readers.
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
                self._failed_write_count += 1  # The bytes are not cached; reads still succeed.

    def _write(self, flight: _Flight, data: Buffer) -> None:
        files = self._files(flight.part)
        files.write(flight.part.name, flight.start, data, lambda: not flight.is_unwanted)

    def flush(self) -> None:
        """Waits until all queued writes to the disk cache are done."""
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
                pass  # Waiting readers, if there are any, get the error from the flight.

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
        """Stops all threads. Queued writes are done; queued fetches are abandoned."""
        with self._lock:
            self._is_closed = True
            self._closing.set()
            abandoned = [each for each in self._queue if each.state is _FlightState.QUEUED]
            self._queue.clear()
            for flight in self._flights.values():
                flight.urgent.set()
            for flight in abandoned:
                flight.state = _FlightState.RUNNING
                flight.error = Closed("the cache of cold segments is closed")
            self._has_queued.notify_all()
            self._has_to_write.notify_all()
        for flight in abandoned:
            self._complete(flight)
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
