"""Runs of batches from the three places a segment may be had from: file, object store, leader.

Each is a generator of `Run`s in the order of offsets, which a thread reads ahead of the thread that
decodes them. A place that does not have the bytes any more raises PlaceGone, and the reader goes on
at the next one; bytes that are there and not right raise Corruption.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from firnmq.errors import (
    Corruption,
    FirnError,
    ObjectNotFound,
    ObjectTruncated,
    OffsetOutOfRange,
    StoreError,
    TimedOut,
    TopicNotFound,
)
from firnmq.eventlog import EventLogger
from firnmq.lake.plans.machine import file_id
from firnmq.lake.plans.plan import AbortedRange, SegmentPlan, Split
from firnmq.lake.plans.wire import Fetched, NodeRefused, NodeUnreachable, WireClient, with_retries
from firnmq.record import BatchStream, Reason
from firnmq.record import Run as Batches

if TYPE_CHECKING:
    from firnmq.tiering.stores import ObjectStore

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Read at once: some 32,000 records of 250 bytes, which is a good size of an Arrow batch."""
_ONE_RECORD_BYTES: Final = 64 * 1024
"""Asked of a node for a single offset: it gives the whole of the first batch anyway."""
OBJECT_READS: Final = 4
"""Ranges of an object that are fetched at the same time."""
FETCH_WAIT_MS: Final = 2_000
_STALLED_S: Final = 120.0
"""A leader that returns no records for this long, although it has some, has failed."""
_SEGMENT_SUFFIX: Final = ".seg"
_BLANK_HEAD_BYTES: Final = 12
"""A batch's base offset and length, which are not both zero."""
_CONTROL, _TRANSACTIONAL = 0x20, 0x10

_log = EventLogger("lake")


class PlaceGone(FirnError):
    """The bytes are not, or no longer, at the place that the plan names."""


class Run(NamedTuple):
    """Some batches of one buffer."""

    buffer: Any
    entries: list[Any]
    """BatchEntries, positions within the buffer, without those that are not to be read."""
    next_offset: int
    """Everything below it is in this run or before it."""
    where: str
    position: int
    """Where the buffer begins in the file or object."""
    first_offset: int = 0
    """Records below it are not to be read, though their batch may hold more."""


Lost = Callable[[int, int], None]
"""Told the offsets [start, end) that were removed from the log after the plan was made. Called by
the thread that reads ahead; may raise."""

Hides = Callable[[Any], bool]
"""Whether a batch, given by its BatchEntry, is part of an aborted transaction."""


def hiding(aborted: Iterable[AbortedRange]) -> Hides | None:
    """What to pass over by a plan's aborted ranges; None if that is nothing."""
    by_producer: dict[int, list[tuple[int, int]]] = {}
    for each in aborted:
        ranges = by_producer.setdefault(each.producer_id, [])
        ranges.append((each.first_offset, each.marker_offset))
    if not by_producer:
        return None

    def hides(entry: Any) -> bool:
        if entry.attributes & (_CONTROL | _TRANSACTIONAL) != _TRANSACTIONAL:
            return False
        offset = entry.base_offset
        return any(a <= offset < b for a, b in by_producer.get(entry.producer_id, ()))

    return hides


class _Stitched:
    """Makes runs of a segment's bytes that come piece by piece, and checks how batches follow."""

    def __init__(self, segment: SegmentPlan, where: str, hides: Hides | None) -> None:
        self._segment = segment
        self._where = where
        self._hides = hides
        self.stop = segment.position + segment.length
        self._stream = BatchStream(
            position=segment.position,
            offset=segment.base_offset,
            end_position=self.stop,
            has_gaps=segment.has_gaps,
            verify=False,
        )

    @property
    def position(self) -> int:
        """Of the first batch that is not in a run yet."""
        return self._stream.position

    @property
    def needed_bytes(self) -> int:
        """What bytes that begin at `position` must be at least, 0 if anything will do."""
        return self._stream.needed_bytes

    def run_at_position(self, buffer: Any) -> Run | None:
        """The whole batches of bytes that begin at `position`; None if there is none yet."""
        return self._run(self._stream.judge(buffer))

    def next_run(self, piece: Any) -> Run | None:
        """The batches that the next piece makes whole; None if it makes none."""
        return self._run(self._stream.feed(piece))

    def _run(self, run: Batches | None) -> Run | None:
        stream = self._stream
        stop = stream.stop
        if stop is not None and stop.reason is Reason.TORN:
            raise self._corrupt("a batch goes beyond the end of the segment")
        if run is None:
            if stop is not None and stop.reason is not Reason.INCOMPLETE:
                raise self._corrupt(stop.text)
            return None
        entries = _visible(run.entries, self._hides)
        next_offset = run.entries[-1].last_offset + 1
        return Run(run.buffer, entries, next_offset, self._where, run.position)

    def check_end(self) -> None:
        """Called when all bytes were seen."""
        segment = self._segment
        if self.position < self.stop:
            raise self._corrupt("is no batch")
        offset = self._stream.offset or 0
        if segment.is_sealed and not segment.has_gaps and offset < segment.end_offset:
            raise self._corrupt(f"ends at offset {offset:,}, not {segment.end_offset:,}")

    def _corrupt(self, reason: str) -> Corruption:
        return Corruption(reason, where=self._where, position=self.position)


def file_runs(segment: SegmentPlan, hides: Hides | None) -> Iterator[Run]:
    """From a file of this machine. An open file keeps its bytes even if it is removed."""
    assert segment.path is not None
    try:
        descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise PlaceGone(f"{segment.path}: {error.strerror}") from error
    try:
        _check_file(descriptor, segment)
        stitched = _Stitched(segment, segment.path, hides)
        while stitched.position < stitched.stop:
            size = max(CHUNK_BYTES, stitched.needed_bytes)
            size = min(size, stitched.stop - stitched.position)
            data = _pread(descriptor, size, stitched.position)
            if len(data) < size:
                raise PlaceGone(f"{segment.path} became shorter")
            if not (segment.is_sealed or data[:_BLANK_HEAD_BYTES].strip(b"\0")):
                # Zeros: the file was truncated, and has been preallocated again since.
                raise PlaceGone(f"{segment.path} was truncated")
            run = stitched.run_at_position(data)
            if run is not None:
                yield run
        stitched.check_end()
    finally:
        os.close(descriptor)


def _pread(descriptor: int, size: int, position: int) -> bytes:
    data = os.pread(descriptor, size, position)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _check_file(descriptor: int, segment: SegmentPlan) -> None:
    status = os.fstat(descriptor)
    if segment.file_id is not None and file_id(status) != segment.file_id:
        raise PlaceGone(f"{segment.path} is another file")
    is_other = segment.file_length is not None and status.st_size != segment.file_length
    if is_other or status.st_size < segment.position + segment.length:
        raise PlaceGone(f"{segment.path} has {status.st_size:,} bytes")


def object_runs(
    segment: SegmentPlan, hides: Hides | None, open_store: Callable[[], ObjectStore]
) -> Iterator[Run]:
    """From the segment's copy, several ranges at a time."""
    assert segment.object is not None
    key = segment.object.key + _SEGMENT_SUFFIX
    try:
        store = open_store()
    except StoreError as error:
        raise PlaceGone(str(error)) from error
    stitched = _Stitched(segment, f"{store.url}/{key}", hides)
    starts = iter(range(segment.position, stitched.stop, CHUNK_BYTES))
    with ThreadPoolExecutor(OBJECT_READS, thread_name_prefix="firn-objects") as threads:
        under_way: deque[Future[Any]] = deque()

        def begin() -> None:
            start = next(starts, None)
            if start is not None:
                size = min(CHUNK_BYTES, stitched.stop - start)
                under_way.append(threads.submit(store.get_range, key, start, size))

        for _ in range(OBJECT_READS):
            begin()
        try:
            while under_way:
                piece = under_way.popleft().result()
                begin()
                run = stitched.next_run(piece)
                if run is not None:
                    yield run
            stitched.check_end()
        except (ObjectNotFound, ObjectTruncated) as error:
            raise PlaceGone(str(error)) from error
        except StoreError as error:
            raise PlaceGone(f"the object store fails: {error}") from error
        finally:
            for each in under_way:
                each.cancel()


def leader_runs(
    open_client: Callable[[], WireClient],
    split: Split,
    start_offset: int,
    end_offset: int,
    lost: Lost | None = None,
) -> Iterator[Run]:
    """From the node that serves the shard, by offset, as any Kafka client would."""
    with open_client() as client:
        with_retries(lambda: _check_topic(client, split))
        yield from _fetched_runs(_Leader(client, split), start_offset, end_offset, lost)


class _Leader:
    """The node that leads a split's shard; if that node fails, the next leader."""

    def __init__(self, client: WireClient, split: Split) -> None:
        self._client = client
        self._split = split
        self._address = split.leader

    @property
    def where(self) -> str:
        return f"{self._split.topic!r}, shard {self._split.shard} at {self._address}"

    def fetch(self, offset: int) -> Fetched:
        split = self._split
        try:
            return self._client.fetch(
                split.topic,
                split.shard,
                offset,
                address=self._address,
                max_bytes=CHUNK_BYTES if split.end_offset - offset > 1 else _ONE_RECORD_BYTES,
                wait_ms=FETCH_WAIT_MS,
            )
        except (NodeUnreachable, NodeRefused):
            self._look()
            raise

    def _look(self) -> None:
        try:
            leaders = self._client.place(self._split.topic).leaders
        except (NodeUnreachable, NodeRefused):
            return  # The next attempt asks again.
        self._address = leaders.get(self._split.shard, self._address)


def _fetched_runs(leader: _Leader, at: int, end_offset: int, lost: Lost | None) -> Iterator[Run]:
    deadline = time.monotonic() + _STALLED_S
    while at < end_offset:
        where = leader.where
        try:
            fetched = with_retries(partial(leader.fetch, at))
        except OffsetOutOfRange as error:
            if error.start <= at:
                raise
            _tell_lost(where, at, min(error.start, end_offset), lost)
            at = error.start
            continue
        stream = BatchStream(has_gaps=True, verify=False)
        found = stream.judge(fetched.batches)
        if stream.stop is not None and stream.stop.reason is not Reason.INCOMPLETE:
            raise Corruption(stream.stop.text, where=where)
        entries = [] if found is None else [e for e in found.entries if e.last_offset >= at]
        if not entries:
            if time.monotonic() > deadline:
                raise TimedOut(f"{where} gave nothing from offset {at:,} on; try again")
            continue
        deadline = time.monotonic() + _STALLED_S
        first = max(at, fetched.start_offset)
        if at < first:  # The log begins within a batch now.
            _tell_lost(where, at, min(first, end_offset), lost)
        at = entries[-1].last_offset + 1
        yield Run(fetched.batches, _committed(entries, fetched.aborted), at, where, 0, first)


def _tell_lost(where: str, start: int, end: int, lost: Lost | None) -> None:
    """Reports records that retention removed after the plan was made."""
    _log.warning("records_removed_during_read", shard=where, start=start, end=end)
    if lost is not None:
        lost(start, end)


def _check_topic(client: WireClient, split: Split) -> None:
    """Checks that the topic's name still belongs to the planned topic."""
    found = client.place(split.topic).topic_id
    if split.topic_id and found != split.topic_id:
        within = "the node, where another has the name now"
        raise TopicNotFound(f"{split.topic} ({split.topic_id})", within=within)


def _visible(entries: list[Any], hides: Hides | None) -> list[Any]:
    return entries if hides is None else [entry for entry in entries if not hides(entry)]


def _committed(entries: list[Any], aborted: tuple[tuple[int, int], ...]) -> list[Any]:
    """The batches without those that the response says were aborted: from a transaction's first
    offset to its producer's next marker."""
    if not aborted:
        return entries
    pending = deque(sorted(aborted, key=lambda each: each[1]))
    dropped: set[int] = set()
    kept = []
    for entry in entries:
        while pending and pending[0][1] <= entry.last_offset:
            dropped.add(pending.popleft()[0])
        if entry.attributes & _CONTROL:
            dropped.discard(entry.producer_id)
        elif not (entry.attributes & _TRANSACTIONAL and entry.producer_id in dropped):
            kept.append(entry)
    return kept
