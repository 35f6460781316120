"""A worker's turns over logs with replicas.

The batches of all logs are written first. Then followers may fetch what leads here, while the files
are synced. A change of a replica's state comes after everything that was queued before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeAlias

from firnmq.disk import Settlement, Turn
from firnmq.engines.shardlog.append import Append
from firnmq.engines.shardlog.backend import Backend
from firnmq.engines.shardlog.log import STORAGE_ERRORS, ShardLog
from firnmq.engines.shardlog.outcomes import apart, fail_requests
from firnmq.engines.shardlog.preallocator import Preallocator
from firnmq.engines.shardlog.replica import (
    ControlWork,
    LogReplica,
    ReplicaEnd,
    ReplicaFailed,
    ReplicaId,
    StageWork,
    reached_by,
)
from firnmq.errors import Closed

ENTRIES_WAITING_MAX = 100_000
"""Index entries of one log that follows which wait for the high watermark. With more, what is to be
staged waits as well."""

Ends: TypeAlias = list[tuple[ReplicaId, ReplicaEnd]]


class ReplicaTurns:
    """Called by one worker only, with the locks of the logs held."""

    def __init__(
        self,
        backend: Backend,
        want_roll: Callable[[ShardLog], None],
        park: Callable[[Turn[Append], ShardLog, Sequence[Append]], None],
        note_unsynced: Callable[[ShardLog], None],
        preallocator: Preallocator,
    ) -> None:
        self._backend = backend
        self._want_roll = want_roll
        self._park = park
        self._note_unsynced = note_unsynced
        self._preallocator = preallocator
        self._held: dict[ShardLog, list[StageWork]] = {}
        """Batches that wait for the high watermark to move."""

    @property
    def has_held(self) -> bool:
        return bool(self._held)

    def take_held(self, turn: Turn[Append]) -> None:
        """Puts what was held before the other requests of the turn."""
        held, self._held = self._held, {}
        turn.requests[:0] = [work for works in held.values() for work in works]

    def close(self) -> None:
        """Refuses what is held: nothing of it was stored."""
        held, self._held = self._held, {}
        settlement = Settlement()
        for log, works in held.items():
            for work in works:
                settlement.fail(work.ticket, Closed(f"the log of {log.spec.name} was closed"))
        settlement.deliver()

    def run(self, turn: Turn[Append], by_log: dict[ShardLog, list[Append]]) -> None:
        """Handles the requests of logs with replicas."""
        left = {log: deque(each) for log, each in by_log.items() if log.replica is not None}
        handled: set[Append] = set()
        try:
            while left:
                writes = {log: _writes(requests) for log, requests in left.items()}
                self._write(turn, {log: each for log, each in writes.items() if each}, left)
                handled.update(request for each in writes.values() for request in each)
                for log, requests in list(left.items()):
                    if requests:
                        work = requests.popleft()
                        assert isinstance(work, ControlWork)
                        _control(turn.settlement, log, work)
                        handled.add(work)
                    if not requests:
                        del left[log]
        except BaseException:
            turn.settlement.deliver()  # What is handled has its outcome, whatever the rest gets.
            raise
        finally:
            turn.requests = [each for each in turn.requests if each not in handled]

    # Batches ---------------------------------------------------------------------------------

    def _write(
        self,
        turn: Turn[Append],
        writes: dict[ShardLog, list[Append]],
        left: dict[ShardLog, deque[Append]],
    ) -> None:
        """Appends and stages, and syncs once for each file."""
        settlement = turn.settlement
        staged: dict[ShardLog, list[Append]] = {}
        begins = {log: (log.tail.next_offset, log.tail.position) for log in writes}
        for log, requests in writes.items():
            if log.refusal is not None:
                for request in requests:
                    settlement.fail(request.ticket, log.refusal)
                continue
            leads = _replica_of(log).leads  # Looked at once: another thread may end it.
            if leads:
                taken = self._permitted(turn, log, requests)
            else:
                taken = self._fitting(settlement, log, requests, has_more=bool(left[log]))
            try:
                staged[log] = self._stage(turn, log, taken, leads=leads)
            except STORAGE_ERRORS as error:
                fail_requests(settlement, log, taken, error)
                self._preallocator.note_failed(log)
        grown = [log for log in staged if log.tail.next_offset > begins[log][0]]
        for log in grown:
            _replica_of(log).note_written(log)
        _tell(grown, is_durable=False)
        for log in list(staged):
            try:
                if log.wants_sync:
                    log.sync()
                self._preallocator.note_appended(log, begins[log][1])
            except STORAGE_ERRORS as error:
                fail_requests(settlement, log, staged.pop(log), error)
                self._preallocator.note_failed(log)
        for group in apart(list(staged)):
            try:
                self._backend.commit(group)
            except STORAGE_ERRORS as error:
                for log in group:
                    fail_requests(settlement, log, staged.pop(log), error)
        for log in list(staged):
            try:
                self._end_turn(settlement, log, staged[log])
            except STORAGE_ERRORS as error:
                fail_requests(settlement, log, staged.pop(log), error)
        _tell([log for log in grown if log in staged], is_durable=True)

    def _permitted(self, turn: Turn[Append], log: ShardLog, requests: list[Append]) -> list[Append]:
        """The appends that the log may take now."""
        settlement, replica = turn.settlement, _replica_of(log)
        taken = []
        for request in requests:
            if isinstance(request, StageWork):
                refusal = ReplicaFailed(log.spec.name, "leads, and takes no batches of others")
                settlement.fail(request.ticket, refusal)
            elif (refused := replica.refusal(request.acks)) is not None:
                settlement.fail(request.ticket, refused)
            else:
                taken.append(request)
        if taken and (log.rolling.is_frozen or log.parked):
            self._park(turn, log, taken)
            return []
        return taken

    def _stage(
        self, turn: Turn[Append], log: ShardLog, requests: list[Append], *, leads: bool
    ) -> list[Append]:
        """Writes what the requests bring; returns those that are not parked."""
        if not leads:
            for request in requests:
                assert isinstance(request, StageWork)
                log.stage_replicated(request.checked.batches)
            return requests
        left = log.stage(requests)
        if left:
            requests = requests[: len(requests) - len(left)]
            self._park(turn, log, left)
        if log.wants_roll:
            self._want_roll(log)
        return requests

    def _fitting(
        self, settlement: Settlement, log: ShardLog, requests: list[Append], *, has_more: bool
    ) -> list[Append]:
        """The batches that follow the log's end, unless they have to wait: with a change of state
        behind them they do not."""
        replica, tail = _replica_of(log), log.tail
        end = ReplicaEnd(tail.next_offset, tail.crc)
        taken: list[Append] = []
        must_wait = not has_more and log.pending_entry_count > ENTRIES_WAITING_MAX
        for request in requests:
            if not isinstance(request, StageWork):
                settlement.fail(request.ticket, replica.refused)
            elif request.checked.start != end or request.checked.leader_epoch != log.spec.epoch:
                reason = (
                    f"ends at {end.offset} of epoch {log.spec.epoch}; the batches begin at "
                    f"{request.checked.start.offset} of epoch {request.checked.leader_epoch}, or "
                    "are of another log"
                )
                settlement.fail(request.ticket, ReplicaFailed(log.spec.name, reason))
            else:
                end = request.checked.end
                if must_wait:
                    self._held.setdefault(log, []).append(request)
                else:
                    taken.append(request)
        if log in self._held:
            replica.has_held = True
            if log.pending_entry_count <= ENTRIES_WAITING_MAX:
                log.parked.resume()  # The high watermark has moved since.
        return taken

    def _end_turn(self, settlement: Settlement, log: ShardLog, requests: list[Append]) -> None:
        replica = _replica_of(log)
        log.end_turn([each for each in requests if not isinstance(each, StageWork)], settlement)
        reached = reached_by(log)
        if replica.high_watermark > log.view.end_offset:
            log.show_pending(replica.high_watermark, settlement)
        for request in requests:
            if isinstance(request, StageWork):
                settlement.resolve(request.outcome, reached)
        self._note_unsynced(log)


def _writes(requests: deque[Append]) -> list[Append]:
    """Takes what comes before the next change of state."""
    found = list(takewhile(lambda each: not isinstance(each, ControlWork), requests))
    for _ in found:
        requests.popleft()
    return found


def _control(settlement: Settlement, log: ShardLog, work: ControlWork) -> None:
    if log.refusal is not None:
        settlement.fail(work.ticket, log.refusal)
        return
    try:
        reached = work.perform(log)
    except ReplicaFailed as refusal:
        settlement.fail(work.ticket, refusal)
    except STORAGE_ERRORS as error:
        fail_requests(settlement, log, [work], error)
    else:
        settlement.resolve(work.outcome, reached)


def _tell(logs: list[ShardLog], *, is_durable: bool) -> None:
    """Tells the driver how far logs that lead are."""
    ends: Ends = []
    listener = None
    for log in logs:
        replica = _replica_of(log)
        if replica.leads:
            listener = replica.listener
            ends.append((replica.id, ReplicaEnd(log.tail.next_offset, log.tail.crc)))
    if listener is not None:
        (listener.durable if is_durable else listener.staged)(ends)


def _replica_of(log: ShardLog) -> LogReplica:
    assert log.replica is not None
    return log.replica
