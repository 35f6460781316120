"""Which segments are uploaded, in which order, and those under way.

Each shard's segments go in order: a copy counts only after the copies of all older segments, so
that the store never has a gap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import NamedTuple

from firnmq.clock import Clock
from firnmq.config import TieringConfig
from firnmq.engines.api import TieringEngine
from firnmq.engines.catalog.segments import SegmentState
from firnmq.engines.catalog.state import ShardState
from firnmq.errors import Closed, FirnError, ShardNotFound, StaleEpoch
from firnmq.eventlog import EventLogger
from firnmq.meta.records import SegmentRecord
from firnmq.tiering.archive.manifest_writer import ManifestWriter
from firnmq.tiering.move.failures import Failures
from firnmq.tiering.move.ledger import SegmentId, TierLedger
from firnmq.tiering.move.status import WaitingSegment
from firnmq.tiering.move.uploader import SegmentUploader, Uploaded

_log = EventLogger("tiering")

_TAKEOVER_S = 3600.0
"""An upload that another process began is taken over if it is unfinished this long after this mover
first saw it. The time is measured by the own clock: the other process's clock proves nothing."""
_UNDER_WAY = "being uploaded"


class _OlderFirst(FirnError):
    """A copy cannot be finished yet: an older segment of the shard has none."""


class UploadCounts(NamedTuple):
    segments: int = 0
    sent_bytes: int = 0


class Uploads:
    """Safe with threads. Each upload has a thread; one caller at a time begins and collects."""

    def __init__(
        self,
        *,
        ledger: TierLedger,
        engines: Mapping[str, TieringEngine],
        uploader: SegmentUploader,
        manifests: ManifestWriter,
        state: ShardState,
        failures: Failures,
        config: TieringConfig,
        clock: Clock,
        monotonic: Callable[[], float],
        is_stopping: Callable[[], bool],
        on_success: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._engines = engines
        self._uploader = uploader
        self._manifests = manifests
        self._state = state
        self._failures = failures
        self._config = config
        self._clock = clock
        self._monotonic = monotonic
        self._is_stopping = is_stopping
        self._on_success = on_success
        self._lock = threading.Lock()
        """Guards the fields below."""
        self._in_flight: dict[SegmentId, Future[None]] = {}
        self._threads: set[threading.Thread] = set()
        self._forced: set[SegmentId] = set()
        """Segments that are uploaded without their delay, at an operator's request."""
        self._first_seen_s: dict[str, float] = {}
        """Uploads of other processes, by upload id."""
        self._counts = UploadCounts()
        self._own = {
            record.tier.upload_id for _, record in ledger.waiting() if record.tier is not None
        }
        """Unfinished uploads of this directory, now or in an earlier process: no other process will
        finish them, so they may be replaced at once."""

    @property
    def count(self) -> int:
        """Uploads under way."""
        return len(self._in_flight)

    @property
    def counts(self) -> UploadCounts:
        """Uploads that have ended well."""
        return self._counts

    def threads(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._threads)

    def force(self, segments: Iterable[SegmentId]) -> None:
        """Uploads these segments without their delay."""
        with self._lock:
            self._forced.update(segments)

    def begin(self) -> None:
        """Begins the uploads that are next, as many as may run at a time."""
        limit = 1 if self._failures.backoff.failure_count else self._config.parallel_uploads
        held_up: set[str] = set()
        waiting = self._ledger.waiting()
        for _, record in waiting:
            self._clock.age_ms(record.sealed_ms)  # A time in the future counts from now on.
        for at, record in waiting:
            if len(self._in_flight) >= limit:
                return
            if at.shard in held_up:
                continue
            if self._blocked_by(at, record) is None:
                self._begin(at)
            # Behind a segment that failed before, no upload begins until that segment is done.
            if at not in self._in_flight or self._failures.of(at) is not None:
                held_up.add(at.shard)

    def wait(self) -> None:
        """Returns when the uploads under way have ended."""
        with self._lock:
            futures = list(self._in_flight.values())
        wait(futures)

    def collect_ended(self) -> None:
        """Collects the results of uploads that have ended."""
        with self._lock:
            ended = [(at, future) for at, future in self._in_flight.items() if future.done()]
            for at, _ in ended:
                del self._in_flight[at]
        for at, future in ended:
            error = future.exception()
            if isinstance(error, Exception):  # A defect fails one upload, not the mover.
                _log.error("upload_defect", shard=at.shard, segment=at.seq, error=repr(error))
                self._failures.note(at, error)
        self._failures.keep(self._ledger.knows)
        with self._lock:
            self._forced = {at for at in self._forced if self._ledger.knows(at)}

    def is_busy(self, at: SegmentId) -> bool:
        """Whether the segment is being uploaded, or will be again after a failure."""
        failure = self._failures.of(at)
        return at in self._in_flight or (failure is not None and not failure.backoff.is_over)

    def left_ms(self, at: SegmentId, record: SegmentRecord) -> int:
        """The rest of the upload delay of a sealed segment; negative if it is over."""
        topic = self._ledger.topic_of(at.shard)
        delay_ms = 0 if topic is None else topic.config.tiering_upload_delay_ms
        return delay_ms - self._clock.age_ms(record.sealed_ms)

    def waiting_rows(
        self, waiting: Iterable[tuple[SegmentId, SegmentRecord]]
    ) -> Iterator[WaitingSegment]:
        """What waits, in its order, and for what."""
        held_up: dict[str, int] = {}
        for at, record in waiting:
            why = self._blocked_by(at, record)
            if at.shard in held_up:
                why = f"segment {held_up[at.shard]} of its shard has to go first"
            elif why is not None and why != _UNDER_WAY:
                held_up[at.shard] = at.seq
            failure = self._failures.of(at)
            yield WaitingSegment(
                topic=self._ledger.topic_name(at.shard),
                shard=at.shard,
                segment_seq=at.seq,
                base_offset=record.start,
                end_offset=record.end,
                length_bytes=record.length,
                sealed_ms=record.sealed_ms,
                attempt_count=0 if failure is None else failure.backoff.failure_count,
                why=why or "next",
            )

    def _blocked_by(self, at: SegmentId, record: SegmentRecord) -> str | None:
        """The reason why a segment cannot be uploaded now; None if it can."""
        failure = self._failures.of(at)
        with self._lock:
            is_forced = at in self._forced
            if at in self._in_flight:
                return _UNDER_WAY
        if not self._failures.backoff.is_over:
            return "the store cannot be used"  # The status says once why not.
        left_ms = self.left_ms(at, record)
        if left_ms > 0 and not is_forced:
            return f"tiering.upload.delay.ms, for another {left_ms:,} ms"
        if failure is not None and not failure.backoff.is_over:
            return f"failed, again in {failure.backoff.left_ms:,} ms: {failure.error}"
        if record.tier is not None and not self._may_replace(record.tier.upload_id):
            return f"another process uploads it as {record.tier.upload_id}"
        return None

    def _may_replace(self, upload_id: str) -> bool:
        if not self._ledger.share.is_whole:
            return True  # Begun by the leader before this one, which can no longer finish it.
        now_s = self._monotonic()
        with self._lock:
            if upload_id in self._own:
                return True
            return now_s - self._first_seen_s.setdefault(upload_id, now_s) >= _TAKEOVER_S

    def _begin(self, at: SegmentId) -> None:
        future: Future[None] = Future()

        def run() -> None:
            try:
                self._upload(at)
            except BaseException as error:
                future.set_exception(error)  # A defect; `collect_ended` logs it.
                raise
            else:
                future.set_result(None)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name="firn-tier-upload", daemon=True)
        with self._lock:
            self._in_flight[at] = future
            self._threads.add(thread)
        thread.start()

    def _upload(self, at: SegmentId) -> None:
        """One upload, in its own thread; records every expected outcome."""
        topic = self._ledger.topic_of(at.shard)
        if topic is None or self._is_stopping():
            return
        engine = self._engines[topic.config.storage_type]
        try:
            self._manifests.ensure_topic(topic.record)  # Before the topic's first segment.
            uploaded = self._uploader.upload(
                engine,
                topic.record,
                at.shard,
                at.seq,
                began=self._began,
                before_manifest=lambda: self._wait_for_older(at),
            )
        except (StaleEpoch, ShardNotFound, Closed, _OlderFirst):
            return  # Deleted, uploaded by another process, stopping, or an older segment is first.
        except (FirnError, OSError) as error:
            self._failures.note(at, error)
            return
        self._ended(at, uploaded)

    def _ended(self, at: SegmentId, uploaded: Uploaded) -> None:
        """An upload has ended well."""
        self._failures.forget(at)
        with self._lock:
            before = self._counts
            self._counts = UploadCounts(
                before.segments + 1, before.sent_bytes + uploaded.sent_bytes
            )
            self._forced.discard(at)
            self._own.discard(uploaded.upload_id)
        self._failures.note_success()
        self._on_success()
        _log.info("segment_tiered", shard=at.shard, segment=at.seq, length=uploaded.meta.length)

    def _began(self, upload_id: str) -> None:
        """Marks an upload as our own: after a failure it may be replaced at once."""
        with self._lock:
            self._own.add(upload_id)

    def _wait_for_older(self, at: SegmentId) -> None:
        """Waits for the uploads of the shard's older segments; _OlderFirst if one has failed.

        The manifest makes a copy count. A manifest before that of an older segment would leave a
        gap if all nodes were lost now. Each upload in progress has a thread, so this wait ends.
        """
        with self._lock:
            older = [
                future
                for other, future in self._in_flight.items()
                if other.shard == at.shard and other.seq < at.seq
            ]
        wait(older)
        shard = self._ledger.shard(at.shard)
        for other in self._ledger.waiting_before(at):
            # The ledger may lag; an upload that has just finished must not block this one.
            meta = None if shard is None else self._state.segment(shard.uid, other.seq)
            if meta is not None and meta.state is SegmentState.SEALED:
                raise _OlderFirst(f"segment {other.seq} of {at.shard} has to go first")
