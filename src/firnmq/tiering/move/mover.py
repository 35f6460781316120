"""The mover: uploads sealed segments, drops local copies, removes objects of deleted segments.

One thread decides and does the quick steps; uploads run in a few others. All lasting state is in
the metadata, so a restarted mover continues where the last one was killed. While the store cannot
be reached, all work backs off, and one upload at a time probes whether the store is back.

Long because the choice of the next upload depends on all other state here: uploads in progress,
failures and their backoff, requests of operators, and the state of the store.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait

from firnmq.clock import Clock
from firnmq.config import TieringConfig
from firnmq.engines.api import TieringEngine
from firnmq.engines.catalog.segments import SegmentState
from firnmq.engines.catalog.state import ShardState
from firnmq.errors import Closed, FirnError, ShardNotFound, StaleEpoch, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.meta import MetaCache, MetaStore
from firnmq.meta.records import NODES, SegmentRecord
from firnmq.tiering.archive.group_offsets import GroupOffsetsWriter, GroupSource, no_groups
from firnmq.tiering.archive.manifest_writer import ManifestWriter
from firnmq.tiering.archive.ownership import Ownership, Tenure
from firnmq.tiering.archive.scrubber import Scrubber, ScrubReport
from firnmq.tiering.archive.upkeep import ManifestUpkeep
from firnmq.tiering.move.backlog import Backlog
from firnmq.tiering.move.backoff import Backoff
from firnmq.tiering.move.ledger import SegmentId, TierLedger
from firnmq.tiering.move.remover import GraveYard, Primable, Remover
from firnmq.tiering.move.status import (
    SEGMENTS_SHOWN_MAX,
    CacheUse,
    FailureKind,
    MoverCounts,
    TierStatus,
    WaitingSegment,
    kind_of,
    topic_rows,
)
from firnmq.tiering.move.uploader import SegmentUploader
from firnmq.tiering.rate_limit import RateLimiter
from firnmq.tiering.stores import ObjectStore

_log = EventLogger("tiering")

_TAKEOVER_S = 3600.0
"""An upload that another process began is taken over if it is unfinished this long after this mover
first saw it. The time is measured by the own clock: the other process's clock proves nothing."""
_CACHE_WAIT_S = 30.0
"""How long the metadata cache may lag behind the metadata store."""
_STOP_S = 5.0
"""How long a stopping mover waits for calls to the store in progress."""
_PAUSE_S = 0.05
"""The least time between two rounds."""
_LOOK_S = 1.0
"""How often `upload_now` checks whether its uploads are done."""
_UNDER_WAY = "being uploaded"


class _OlderFirst(FirnError):
    """A copy cannot be finished yet: an older segment of the shard has none."""


class TierMover:
    """Does all uploads to the store and all removals there, from `start` to `stop`."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        cluster: str,
        directory_id: str,
        meta: MetaStore,
        cache: MetaCache,
        graves: GraveYard,
        state: ShardState,
        engines: Mapping[str, TieringEngine],
        config: TieringConfig,
        clock: Clock,
        cold: Primable | None = None,
        groups: GroupSource = no_groups,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._cold = cold
        self._state = state
        self._engines = engines
        self._meta = meta
        self._cache = cache
        self._monotonic = monotonic
        self._rng = rng or random.Random()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._moved = threading.Event()
        """Set when the ledger has changed."""
        ownership = Ownership(store, cluster, directory_id, clock)
        self.tenure = Tenure(ownership, lambda: self.ledger.has_copies, monotonic)
        # Confirmed before each write: a directory that lost its claim must not write manifests.
        self._manifests = ManifestWriter(
            store,
            cluster,
            clock,
            self._claim,
            before_write=self.tenure.confirm,
            dead_ids=self._dead_ids,
        )
        self._uploader = self._new_uploader(store, cluster, config)
        self._backoff = self._new_backoff()
        self._lock = threading.Lock()
        """Guards the fields below, up to the ledger."""
        self._in_flight: dict[SegmentId, Future[None]] = {}
        self._failed_segments: dict[SegmentId, tuple[Backoff, str]] = {}
        """Segments whose upload failed for a reason of their own: backoff and error."""
        self._forced: set[SegmentId] = set()
        """Segments that are uploaded without their delay, at an operator's request."""
        self._first_seen_s: dict[str, float] = {}
        """Uploads of other processes, by upload id."""
        self._counts = MoverCounts()
        self._last_error: tuple[str, int, FailureKind] | None = None
        self._store_failure: FailureKind | None = None
        self.ledger = TierLedger(cache)
        self._backlog = Backlog(self.ledger, engines.values(), config.backlog_bytes)
        self._own_uploads = {
            record.tier.upload_id for _, record in self.ledger.waiting() if record.tier is not None
        }
        """Unfinished uploads of this directory, now or in an earlier process: no other process will
        finish them, so they may be replaced at once."""
        self.upkeep = self._new_upkeep(groups)
        self._remover = self._new_remover(graves)
        self.scrubber = Scrubber(store, cluster, meta, clock, grace_ms=config.scrub_grace_ms)
        self._scrubbed_at_s = monotonic()
        self._scrubbing = threading.Lock()
        self._upload_threads: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name="firn-tier", daemon=True)
        self.ledger.on_change = self._note_change
        self._backlog.judge()

    def _new_upkeep(self, groups: GroupSource) -> ManifestUpkeep:
        return ManifestUpkeep(
            ledger=self.ledger,
            manifests=self._manifests,
            tenure=self.tenure,
            state=self._state,
            catch_up=self._catch_up,
            is_stopping=self._stopping.is_set,
            monotonic=self._monotonic,
            group_writer=GroupOffsetsWriter(
                self._store,
                self._cluster,
                self._clock,
                self._claim,
                before_write=self.tenure.confirm,
            ),
            groups=groups,
            groups_ms=self._config.offsets_ms,
        )

    def _new_remover(self, graves: GraveYard) -> Remover:
        return Remover(
            ledger=self.ledger,
            engines=self._engines,
            uploader=self._uploader,
            manifests=self._manifests,
            upkeep=self.upkeep,
            state=self._state,
            graves=graves,
            clock=self._clock,
            cold=self._cold,
            is_busy=self._is_busy,
            note_failure=self._note_failure,
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Aborts uploads in progress; the next mover repeats them. Stopping twice is no error.

        `stop` does not wait for a call that the store does not answer. Such a call is harmless when
        it returns: the engines are closed by then, and the metadata names the objects it has
        written. Changed shards are written to their manifests, as far as there is time.
        """
        is_first = not self._stopping.is_set()
        self._stopping.set()
        self._wake.set()
        with self._lock:
            threads = [self._thread, *self._upload_threads]
        deadline_s = time.monotonic() + _STOP_S
        for thread in threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(deadline_s - time.monotonic(), 0))
        stuck = sum(thread.is_alive() for thread in threads)
        if stuck:
            _log.warning("store_does_not_answer", threads=stuck, store=self._store.url)
        elif is_first and self._thread.ident is not None and self._store_failure is None:
            self.upkeep.flush()

    @property
    def store_state(self) -> str:
        """`ok`, `unknown` before the first use, or the kind of failure that prevents its use."""
        failure = self._store_failure
        if failure is not None:
            return failure.value
        return "ok" if self.tenure.is_known else "unknown"

    # For operators ------------------------------------------------------------------------------

    def request_upload(self, topic: str | None = None) -> int:
        """Uploads all waiting segments, without their delay and without waiting for backoff."""
        # The metadata cache may not have seen a segment that the caller has just sealed.
        self._catch_up(_CACHE_WAIT_S)
        chosen = {
            at
            for at, _ in self.ledger.waiting()
            if topic is None or self._topic_name(at.shard) == topic
        }
        with self._lock:
            self._forced |= chosen
            for at in chosen & self._failed_segments.keys():
                self._failed_segments[at][0].give_up()
        self._backoff.give_up()
        self.upkeep.write_soon()
        self._wake.set()
        return len(chosen)

    def upload_now(self, topic: str | None = None, *, timeout_s: float = 600.0) -> None:
        """Returns when all segments that wait now, of one topic or of all, are in the store.

        Raises TimedOut with the reason if they are not by then.
        """
        deadline_s = self._monotonic() + timeout_s
        left = self.request_upload(topic)
        while left:
            if self._thread.is_alive():
                self._moved.clear()
                if self._count_waiting(topic):
                    self._moved.wait(min(_LOOK_S, max(deadline_s - self._monotonic(), 0)))
            else:
                self.work()
            left = self._count_waiting(topic)
            if left and (self._stopping.is_set() or self._monotonic() >= deadline_s):
                error = self._last_error
                reason = "uploads take longer" if error is None else error[0]
                raise TimedOut(f"{left:,} segments are not in the object store yet: {reason}")

    def _count_waiting(self, topic: str | None) -> int:
        return sum(
            topic is None or self._topic_name(at.shard) == topic for at, _ in self.ledger.waiting()
        )

    def work(self) -> None:
        """One round with all uploads that it begins, for callers without a background mover.

        Failures are in the status.
        """
        self._round()
        with self._lock:
            futures = list(self._in_flight.values())
        for future in futures:
            future.exception()
        self._collect_ended()

    def scrub(self, *, dry_run: bool, grace_ms: int | None = None) -> ScrubReport:
        """Compares objects with the metadata. Unless `dry_run`, removes orphans and uploads local
        segments again whose copies are incomplete."""
        with self._scrubbing:
            if not dry_run:
                self.tenure.confirm()
            mend = None if dry_run else self._copy_again
            report = self.scrubber.scrub(dry_run=dry_run, grace_ms=grace_ms, mend=mend)
        if report.mended_count:
            self._catch_up(_CACHE_WAIT_S)
            self._wake.set()
            if not self._thread.is_alive():
                self.work()
        return report

    def _copy_again(self, shard: str, seq: int, upload_id: str) -> bool:
        """Schedules a new upload of a segment; False if it is not local, or has changed."""
        is_lost = self._remover.lose_copy(shard, seq, upload_id)
        if is_lost:
            with self._lock:
                self._forced.add(SegmentId(shard, seq))
                self._failed_segments.pop(SegmentId(shard, seq), None)
        return is_lost

    def status(self) -> TierStatus:
        waiting = self.ledger.waiting()
        totals = self.ledger.totals()
        with self._lock:
            uploading = set(self._in_flight)
            error = self._last_error
            failures = dict(self._counts.failures)
        overdue_ms = (-self._left_ms(at, record) for at, record in waiting)
        return TierStatus(
            url=self._store.url,
            cluster=self._cluster,
            state=self.store_state,
            last_error=None if error is None else error[0],
            last_error_ms=None if error is None else error[1],
            failures_in_a_row=self._backoff.failure_count,
            retry_in_ms=self._backoff.left_ms,
            uploading_segments=len(uploading),
            lag_ms=max(max(overdue_ms, default=0), 0),
            dead_segments=len(self.ledger.dead_copies()) + self._remover.grave_count(),
            backlog_bytes_max=self._config.backlog_bytes,
            is_holding_appends=self._backlog.is_holding,
            upload_count=self._counts.upload_count,
            uploaded_bytes=self._counts.uploaded_bytes,
            dropped_count=self._remover.dropped_count,
            removed_count=self._remover.removed_count,
            failure_counts=failures,
            cache=CacheUse() if self._cold is None else CacheUse.of(self._cold.statistics()),
            topics=topic_rows(self.ledger),
            waiting=list(self._waiting_rows(waiting[:SEGMENTS_SHOWN_MAX])),
            **totals._asdict(),
        )

    def _waiting_rows(
        self, waiting: list[tuple[SegmentId, SegmentRecord]]
    ) -> Iterator[WaitingSegment]:
        held_up: dict[str, int] = {}
        for at, record in waiting:
            why = self._blocked_by(at, record)
            if at.shard in held_up:
                why = f"segment {held_up[at.shard]} of its shard has to go first"
            elif why is not None and why != _UNDER_WAY:
                held_up[at.shard] = at.seq
            with self._lock:
                trouble = self._failed_segments.get(at)
            yield WaitingSegment(
                topic=self._topic_name(at.shard),
                shard=at.shard,
                segment_seq=at.seq,
                base_offset=record.start,
                end_offset=record.end,
                length_bytes=record.length,
                sealed_ms=record.sealed_ms,
                attempt_count=0 if trouble is None else trouble[0].failure_count,
                why=why or "next",
            )

    # The mover's thread -------------------------------------------------------------------------

    def _run(self) -> None:
        interval_s = self._config.interval_ms / 1000
        while not self._stopping.is_set():
            self._wake.clear()
            self._round()
            self._wake.wait(interval_s)
            self._stopping.wait(min(interval_s, _PAUSE_S))  # Many changes make one round.

    def _round(self) -> None:
        """All work that is due. A step that fails does not end the round."""
        self._collect_ended()
        if self._stopping.is_set() or not self._backoff.is_over or not self.ledger.is_used:
            return
        if not self._attempt(self.tenure.refresh):
            return
        self._begin_uploads()
        if self._backoff.failure_count and self._in_flight:
            return  # The upload in progress probes whether the store is back.
        steps = (self.upkeep.write, self._remover.drop_local, self._remove, self._scrub_if_due)
        is_well = [self._attempt(step) for step in steps]
        if all(is_well) and self._backoff.failure_count:
            self._note_success()

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Whether the step succeeded."""
        if self._stopping.is_set():
            return False
        try:
            step()
        except (StaleEpoch, ShardNotFound):
            return True  # A concurrent change won; the next round sees it.
        except (FirnError, OSError) as error:
            self._note_failure(None, error)
            return False
        except Exception as defect:  # Supervisor: without this thread all tiering would stop.
            _log.error("tiering_defect", error=repr(defect))
            self._note_failure(None, defect)
            return False
        return True

    def _catch_up(self, timeout_s: float) -> None:
        """Waits until the ledger has caught up with the metadata."""
        self._cache.wait_for_revision(self._meta.range(NODES).revision, timeout_s)

    def _claim(self) -> int:
        return self.tenure.claim

    def _dead_ids(self, name: str) -> set[str]:
        """Ids of deleted topics of this name whose manifests may still be in the store."""
        known = {each for each, topic in self._manifests.topics().items() if topic == name}
        return self.ledger.dead_ids(name) | {
            each for each in known if not self.ledger.has_topic(each)
        }

    def _remove(self) -> None:
        if self._remover.has_work():
            self.tenure.confirm()  # A directory that lost its claim must not remove anything.
            self._remover.work()

    def _scrub_if_due(self) -> None:
        interval_ms = self._config.scrub_ms
        now_s = self._monotonic()
        if interval_ms is None or (now_s - self._scrubbed_at_s) * 1000 < interval_ms:
            return
        self._scrubbed_at_s = now_s
        report = self.scrub(dry_run=False)
        report.log()

    # Uploads ------------------------------------------------------------------------------------

    def _begin_uploads(self) -> None:
        """Uploads each shard's segments in order: a copy counts only after the copies of all older
        segments, so that the store never has a gap."""
        limit = 1 if self._backoff.failure_count else self._config.parallel_uploads
        held_up: set[str] = set()
        waiting = self.ledger.waiting()
        for _, record in waiting:
            self._clock.age_ms(record.sealed_ms)  # A time in the future counts from now on.
        for at, record in waiting:
            if len(self._in_flight) >= limit:
                return
            if at.shard in held_up:
                continue
            if self._blocked_by(at, record) is None:
                self._begin_upload(at)
            # Behind a segment that failed before, no upload begins until that segment is done.
            if at not in self._in_flight or at in self._failed_segments:
                held_up.add(at.shard)

    def _begin_upload(self, at: SegmentId) -> None:
        future: Future[None] = Future()

        def run() -> None:
            try:
                self._upload(at)
            except BaseException as error:
                future.set_exception(error)  # A defect; `_collect_ended` logs it.
                raise
            else:
                future.set_result(None)
            finally:
                with self._lock:
                    self._upload_threads.discard(thread)

        thread = threading.Thread(target=run, name="firn-tier-upload", daemon=True)
        with self._lock:
            self._in_flight[at] = future
            self._upload_threads.add(thread)
        thread.start()

    def _blocked_by(self, at: SegmentId, record: SegmentRecord) -> str | None:
        """The reason why a segment cannot be uploaded now; None if it can."""
        with self._lock:
            is_forced = at in self._forced
            trouble = self._failed_segments.get(at)
            if at in self._in_flight:
                return _UNDER_WAY
        if not self._backoff.is_over:
            return "the store cannot be used"  # The status says once why not.
        left_ms = self._left_ms(at, record)
        if left_ms > 0 and not is_forced:
            return f"tiering.upload.delay.ms, for another {left_ms:,} ms"
        if trouble is not None and not trouble[0].is_over:
            return f"failed, again in {trouble[0].left_ms:,} ms: {trouble[1]}"
        if record.tier is not None and not self._may_replace(record.tier.upload_id):
            return f"another process uploads it as {record.tier.upload_id}"
        return None

    def _left_ms(self, at: SegmentId, record: SegmentRecord) -> int:
        """The rest of the upload delay of a sealed segment; negative if it is over."""
        return self._delay_ms(at) - self._clock.age_ms(record.sealed_ms)

    def _is_busy(self, at: SegmentId) -> bool:
        with self._lock:
            trouble = self._failed_segments.get(at)
            return at in self._in_flight or (trouble is not None and not trouble[0].is_over)

    def _may_replace(self, upload_id: str) -> bool:
        now_s = self._monotonic()
        with self._lock:
            if upload_id in self._own_uploads:
                return True
            return now_s - self._first_seen_s.setdefault(upload_id, now_s) >= _TAKEOVER_S

    def _delay_ms(self, at: SegmentId) -> int:
        topic = self.ledger.topic_of(at.shard)
        return 0 if topic is None else topic.config.tiering_upload_delay_ms

    def _upload(self, at: SegmentId) -> None:
        """One upload, in its own thread; records every expected outcome."""
        topic = self.ledger.topic_of(at.shard)
        if topic is None or self._stopping.is_set():
            return
        engine = self._engines[topic.config.storage_type]
        try:
            self._manifests.write_topic(topic.record)  # Before the topic's first segment.
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
            self._note_failure(at, error)
            return
        with self._lock:
            self._counts.upload_count += 1
            self._counts.uploaded_bytes += uploaded.sent_bytes
            self._failed_segments.pop(at, None)
            self._forced.discard(at)
            self._own_uploads.discard(uploaded.upload_id)
        self._note_success()
        _log.info("segment_tiered", shard=at.shard, segment=at.seq, length=uploaded.meta.length)

    def _began(self, upload_id: str) -> None:
        """Marks an upload as our own: after a failure it may be replaced at once."""
        with self._lock:
            self._own_uploads.add(upload_id)

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
        shard = self.ledger.shard(at.shard)
        for other in self.ledger.waiting_before(at):
            # The ledger may lag; an upload that has just finished must not block this one.
            meta = None if shard is None else self._state.segment(shard.uid, other.seq)
            if meta is not None and meta.state is SegmentState.SEALED:
                raise _OlderFirst(f"segment {other.seq} of {at.shard} has to go first")

    def _collect_ended(self) -> None:
        """Collects the results of uploads that have ended."""
        with self._lock:
            ended = [(at, future) for at, future in self._in_flight.items() if future.done()]
            for at, _ in ended:
                del self._in_flight[at]
        for at, future in ended:
            error = future.exception()
            if isinstance(error, Exception):  # A defect fails one upload, not the mover.
                _log.error("upload_defect", shard=at.shard, segment=at.seq, error=repr(error))
                self._note_failure(at, error)
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Drops the state of segments that no longer exist."""
        with self._lock:
            for at in [each for each in self._failed_segments if not self.ledger.knows(each)]:
                del self._failed_segments[at]
            self._forced = {at for at in self._forced if self.ledger.knows(at)}

    # Notes --------------------------------------------------------------------------------------

    def _new_uploader(
        self, store: ObjectStore, cluster: str, config: TieringConfig
    ) -> SegmentUploader:
        return SegmentUploader(
            store,
            cluster,
            self._clock,
            claim=self._claim,
            limiter=RateLimiter(config.upload_bytes_per_s, wait=self._stopping.wait),
            read_back=config.read_back,
            is_stopping=self._stopping.is_set,
        )

    def _new_backoff(self) -> Backoff:
        config = self._config
        return Backoff(
            config.retry_ms, config.retry_ms_max, monotonic=self._monotonic, rng=self._rng
        )

    def _note_failure(self, at: SegmentId | None, error: Exception) -> None:
        kind = kind_of(error)
        is_of_store = at is None or kind.is_of_store
        with self._lock:
            self._counts.failures[kind.value] += 1
            self._last_error = (str(error), self._clock.now_ms(), kind)
            if is_of_store:
                is_news = self._store_failure is not kind
                self._store_failure = kind
                self._backoff.note_failure()
            else:
                assert at is not None
                backoff = self._failed_segments.get(at, (self._new_backoff(), ""))[0]
                backoff.note_failure()
                self._failed_segments[at] = (backoff, str(error))
                is_news = backoff.failure_count == 1
        if is_news:
            fields = {} if at is None else {"shard": at.shard, "segment": at.seq}
            _log.error("tiering_failed", kind=kind.value, error=str(error), **fields)

    def _note_success(self) -> None:
        with self._lock:
            was = self._store_failure
            self._store_failure = None
            self._backoff.note_success()
        if was is not None:
            _log.info("store_usable_again", was=was.value)
        self._wake.set()

    def _note_change(self) -> None:
        self._backlog.judge()
        if self.ledger.is_used:
            self._moved.set()
            self._wake.set()

    def _topic_name(self, shard: str) -> str:
        topic = self.ledger.topic_of(shard)
        return "" if topic is None else topic.record.name
