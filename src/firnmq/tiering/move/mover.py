"""The mover: uploads sealed segments, drops local copies, removes objects of deleted segments.

One thread decides and does the quick steps; uploads run in a few others. All lasting state is in
the metadata, so a restarted mover continues where the last one was killed. While the store cannot
be reached, all work backs off, and one upload at a time probes whether the store is back.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping

from firnmq.clock import Clock
from firnmq.config import TieringConfig
from firnmq.engines.api import TieringEngine
from firnmq.engines.catalog.state import ShardState
from firnmq.errors import FirnError, ShardNotFound, StaleEpoch, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.meta import MetaCache, MetaStore
from firnmq.meta.records import NODES
from firnmq.tiering.archive.group_offsets import GroupOffsetsWriter, GroupSource, no_groups
from firnmq.tiering.archive.manifest_writer import ManifestWriter
from firnmq.tiering.archive.ownership import Ownership, Tenure
from firnmq.tiering.archive.scrubber import Scrubber, ScrubReport
from firnmq.tiering.archive.upkeep import ManifestUpkeep
from firnmq.tiering.move.backlog import Backlog
from firnmq.tiering.move.failures import Failures
from firnmq.tiering.move.ledger import SegmentId, TierLedger
from firnmq.tiering.move.remover import GraveYard, Primable, Remover
from firnmq.tiering.move.share import Share
from firnmq.tiering.move.status import (
    SEGMENTS_SHOWN_MAX,
    CacheUse,
    TierStatus,
    topic_rows,
)
from firnmq.tiering.move.uploader import SegmentUploader
from firnmq.tiering.move.uploads import Uploads
from firnmq.tiering.rate_limit import RateLimiter
from firnmq.tiering.stores import ObjectStore

_log = EventLogger("tiering")

_CACHE_WAIT_S = 30.0
"""How long the metadata cache may lag behind the metadata store."""
_STOP_S = 5.0
"""How long a stopping mover waits for calls to the store in progress."""
_PAUSE_S = 0.05
"""The least time between two rounds."""
_LOOK_S = 1.0
"""How often `upload_now` checks whether its uploads are done."""


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
        share: Share | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """`share`: what this node does of a cluster's tiering, by default everything."""
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
        self._failures = Failures(config, clock, monotonic=monotonic, rng=rng or random.Random())
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
        self.ledger = TierLedger(cache, share)
        self._backlog = Backlog(self.ledger, engines.values(), config.backlog_bytes)
        self._uploads = self._new_uploads()
        self.upkeep = self._new_upkeep(groups)
        self._remover = self._new_remover(graves)
        self.scrubber = Scrubber(store, cluster, meta, clock, grace_ms=config.scrub_grace_ms)
        self._scrubbed_at_s = monotonic()
        self._scrubbing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="firn-tier", daemon=True)
        self.ledger.on_change = self._note_change
        self.ledger.on_gained = self.upkeep.gained.set
        self._backlog.judge()

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

    def _new_uploads(self) -> Uploads:
        return Uploads(
            ledger=self.ledger,
            engines=self._engines,
            uploader=self._uploader,
            manifests=self._manifests,
            state=self._state,
            failures=self._failures,
            config=self._config,
            clock=self._clock,
            monotonic=self._monotonic,
            is_stopping=self._stopping.is_set,
            on_success=self._wake.set,
        )

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
            is_busy=self._uploads.is_busy,
            note_failure=self._failures.note,
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
        threads = [self._thread, *self._uploads.threads()]
        deadline_s = time.monotonic() + _STOP_S
        for thread in threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(deadline_s - time.monotonic(), 0))
        stuck = sum(thread.is_alive() for thread in threads)
        if stuck:
            _log.warning("store_does_not_answer", threads=stuck, store=self._store.url)
        elif is_first and self._thread.ident is not None and self._failures.of_store is None:
            self.upkeep.flush()

    @property
    def store_state(self) -> str:
        """`ok`, `unknown` before the first use, or the kind of failure that prevents its use."""
        failure = self._failures.of_store
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
            if topic is None or self.ledger.topic_name(at.shard) == topic
        }
        self._uploads.force(chosen)
        self._failures.give_up_waiting(chosen)
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
                error = self._failures.last
                reason = "uploads take longer" if error is None else error.text
                raise TimedOut(f"{left:,} segments are not in the object store yet: {reason}")

    def _count_waiting(self, topic: str | None) -> int:
        return sum(
            topic is None or self.ledger.topic_name(at.shard) == topic
            for at, _ in self.ledger.waiting()
        )

    def work(self) -> None:
        """One round with all uploads that it begins, for callers without a background mover.

        Failures are in the status.
        """
        self._round()
        self._uploads.wait()
        self._uploads.collect_ended()

    def scrub(self, *, dry_run: bool, grace_ms: int | None = None) -> ScrubReport:
        """Compares objects with the metadata. Unless `dry_run`, removes orphans and uploads local
        segments again whose copies are incomplete. In a cluster, every node has to be asked: each
        uploads segments of its shards, and one of them removes orphans."""
        with self._scrubbing:
            if not dry_run:
                self.tenure.confirm()
            mend = None if dry_run else self._copy_again
            removes = self.ledger.share.is_keeper
            report = self.scrubber.scrub(
                dry_run=dry_run, removes=removes, grace_ms=grace_ms, mend=mend
            )
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
            at = SegmentId(shard, seq)
            self._failures.forget(at)
            self._uploads.force([at])
        return is_lost

    def status(self) -> TierStatus:
        waiting = self.ledger.waiting()
        totals = self.ledger.totals()
        uploads, failures = self._uploads, self._failures
        overdue_ms = (-uploads.left_ms(at, record) for at, record in waiting)
        return TierStatus(
            url=self._store.url,
            cluster=self._cluster,
            state=self.store_state,
            last_error=None if failures.last is None else failures.last.text,
            last_error_ms=None if failures.last is None else failures.last.at_ms,
            failures_in_a_row=failures.backoff.failure_count,
            retry_in_ms=failures.backoff.left_ms,
            uploading_segments=uploads.count,
            lag_ms=max(max(overdue_ms, default=0), 0),
            dead_segments=len(self.ledger.dead_copies()) + self._remover.grave_count(),
            backlog_bytes_max=self._config.backlog_bytes,
            is_holding_appends=self._backlog.is_holding,
            upload_count=uploads.counts.segments,
            uploaded_bytes=uploads.counts.sent_bytes,
            dropped_count=self._remover.dropped_count,
            removed_count=self._remover.removed_count,
            failure_counts=failures.counts(),
            cache=CacheUse() if self._cold is None else CacheUse.of(self._cold.statistics()),
            topics=topic_rows(self.ledger),
            waiting=list(uploads.waiting_rows(waiting[:SEGMENTS_SHOWN_MAX])),
            **totals._asdict(),
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
        uploads, backoff = self._uploads, self._failures.backoff
        uploads.collect_ended()
        if self._stopping.is_set() or not backoff.is_over or not self.ledger.is_used:
            return
        if not self._attempt(self.tenure.refresh):
            return
        uploads.begin()
        if backoff.failure_count and uploads.count:
            return  # The upload in progress probes whether the store is back.
        steps = (self.upkeep.write, self._remover.drop_local, self._remove, self._scrub_if_due)
        is_well = [self._attempt(step) for step in steps]
        if all(is_well) and backoff.failure_count:
            self._failures.note_success()
            self._wake.set()

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Whether the step succeeded."""
        if self._stopping.is_set():
            return False
        try:
            step()
        except (StaleEpoch, ShardNotFound):
            return True  # A concurrent change won; the next round sees it.
        except (FirnError, OSError) as error:
            self._failures.note(None, error)
            return False
        except Exception as defect:  # Supervisor: without this thread all tiering would stop.
            _log.error("tiering_defect", error=repr(defect))
            self._failures.note(None, defect)
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

    def _note_change(self) -> None:
        self._backlog.judge()
        if self.ledger.is_used:
            self._moved.set()
            self._wake.set()
