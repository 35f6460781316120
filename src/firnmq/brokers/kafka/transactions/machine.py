"""One transactional id as a plain state machine: no clock, no store, no network.

Every change is saved before it is answered, and only one save is under way at a time; requests
that come during a save wait in a short queue. The decision to commit or abort is final from the
moment it is handed to the store: if the store cannot tell whether it was saved, it is saved again,
and nothing else happens before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import assert_never

from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions.config import TransactionConfig
from firnmq.brokers.kafka.transactions.messages import (
    AddGroupRequest,
    AddPartitionsRequest,
    Asked,
    CommitOffsetsRequest,
    EndRequest,
    Erase,
    Evicted,
    InitRequest,
    MarkersWritten,
    ProducerRequest,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Tick,
    Token,
    TransactionAction,
    TransactionEvent,
    TransactionRequest,
    WriteMarkers,
)
from firnmq.brokers.kafka.transactions.snapshot import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER,
    TransactionSnapshot,
)
from firnmq.brokers.kafka.transactions.state import (
    PREPARED,
    Step,
    TransactionState,
    next_state,
)

WAITING_MAX = 16
"""Requests that wait for a save. A producer has one at a time; more are several instances of it,
all but the newest of which will be fenced."""
_COMPLETE = {
    True: TransactionState.COMPLETE_COMMIT,
    False: TransactionState.COMPLETE_ABORT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """What is on its way to the store."""

    snapshot: TransactionSnapshot | None
    """None: the id is being forgotten."""
    token: Token | None = None
    """The request that is answered once it is there."""
    save: Save | None = None
    """Set if it must get there, however often it takes: a decision."""


class Transaction:
    """A transactional id. `handle` is its only way to change."""

    def __init__(self, config: TransactionConfig, snapshot: TransactionSnapshot | None) -> None:
        self._config = config
        self.snapshot = snapshot
        """What is saved; None until the first producer has its id."""
        self.is_dead = False
        """Forgotten; a later request for the id starts from nothing."""
        self._write: _Write | None = None
        self._retry_ms: int | None = None
        """When a decision is saved again; no save is under way until then."""
        self._waiting: deque[tuple[Token, TransactionRequest]] = deque()
        self._ending: Token | None = None
        """The request that waits for the markers."""
        self._actions: list[TransactionAction] = []
        self._shards = _shards_of(snapshot)

    @classmethod
    def restore(
        cls, config: TransactionConfig, snapshot: TransactionSnapshot
    ) -> tuple[Transaction, list[TransactionAction]]:
        """A saved transaction; what was decided before a crash is carried out."""
        transaction = cls(config, snapshot)
        if snapshot.state in PREPARED:
            transaction._write_markers(snapshot)
        return transaction, transaction._take_actions()

    # What can be asked of it without changing it ------------------------------------------------

    @property
    def state(self) -> TransactionState | None:
        return None if self.snapshot is None else self.snapshot.state

    @property
    def is_blank(self) -> bool:
        """Nothing was ever saved and no request waits: there is no such id."""
        return self.snapshot is None and self._write is None and not self._waiting

    @property
    def is_idle(self) -> bool:
        """It is saved, and no save is under way."""
        return self.snapshot is not None and self._write is None

    @property
    def needs_producer_id(self) -> bool:
        return self.snapshot is None or self.snapshot.epoch >= EPOCH_MAX - 1

    @property
    def wake_ms(self) -> int | None:
        """When to send a Tick; forgetting an unused id can wait longer."""
        if self._write is not None:
            return self._retry_ms
        snapshot = self.snapshot
        if snapshot is not None and snapshot.state is TransactionState.ONGOING:
            return snapshot.started_ms + snapshot.timeout_ms
        return None

    def judge_append(self, producer_id: int, epoch: int, shard: str) -> ErrorCode:
        """Whether the producer may write into a shard with its transaction."""
        snapshot = self.snapshot
        if snapshot is None or producer_id != snapshot.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if epoch != snapshot.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        is_ending = self._write is not None and self._write.save is not None
        if snapshot.state is not TransactionState.ONGOING or is_ending:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE if shard in self._shards else ErrorCode.INVALID_TXN_STATE

    # Events ---------------------------------------------------------------------------------------

    def handle(self, event: TransactionEvent, now_ms: int) -> list[TransactionAction]:
        match event:
            case Asked():
                self._line_up(event.token, event.request, now_ms)
            case Saved():
                self._saved()
                self._serve_waiting(now_ms)
            case SaveFailed():
                self._save_failed(now_ms)
                self._serve_waiting(now_ms)
            case MarkersWritten():
                self._complete(now_ms)
            case Tick():
                self._tick(now_ms)
            case Evicted():
                self._evict()
            case _:
                assert_never(event)
        return self._take_actions()

    def _line_up(self, token: Token, request: TransactionRequest, now_ms: int) -> None:
        if self._write is None:
            self._ask(token, request, now_ms)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append((token, request))
        else:
            self._reply(token, ErrorCode.CONCURRENT_TRANSACTIONS)

    def _serve_waiting(self, now_ms: int) -> None:
        while self._waiting and self._write is None:
            self._ask(*self._waiting.popleft(), now_ms)

    def _ask(self, token: Token, request: TransactionRequest, now_ms: int) -> None:
        if self.is_dead:
            # It was forgotten while the request waited; asked again, it finds a new one.
            is_init = isinstance(request, InitRequest)
            unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            self._reply(token, ErrorCode.CONCURRENT_TRANSACTIONS if is_init else unknown)
        elif isinstance(request, InitRequest):
            self._init(token, request, now_ms)
        else:
            self._ask_of_producer(token, request, now_ms)

    def _saved(self) -> None:
        write, self._write = self._write, None
        assert write is not None, "only what was handed to the store can be saved"
        self._retry_ms = None
        if write.snapshot is None:
            self.is_dead = True
            return
        self._become(write.snapshot)
        if write.save is not None:
            self._ending = write.token
            self._write_markers(write.snapshot)
        elif write.token is not None:
            self._answer(write.token, write.snapshot)

    def _save_failed(self, now_ms: int) -> None:
        write = self._write
        assert write is not None, "only what was handed to the store can fail"
        if write.token is not None:
            self._reply(write.token, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if write.save is None:
            # Should it be saved after all, it is overwritten by the next save, or found after a
            # restart, where an epoch or a partition too many does no harm.
            self._write = None
            return
        self._write = replace(write, token=None)
        self._retry_ms = now_ms + self._config.retry_ms

    def _complete(self, now_ms: int) -> None:
        before = self.snapshot
        assert before is not None
        after = replace(
            before,
            state=next_state(before.state, Step.COMPLETE),
            partitions=(),
            groups=(),
            updated_ms=now_ms,
        )
        token, self._ending = self._ending, None
        # No request waits for this save: if it is lost, a restart writes the markers once more.
        self._become(after)
        self._save(after)
        if token is not None:
            self._reply(token)

    def _tick(self, now_ms: int) -> None:
        if self._write is not None:
            if self._retry_ms is not None and self._retry_ms <= now_ms:
                assert self._write.save is not None
                self._retry_ms = None
                self._actions.append(self._write.save)
            return
        snapshot = self.snapshot
        if snapshot is None or snapshot.state in PREPARED:
            return
        if snapshot.state is TransactionState.ONGOING:
            if snapshot.started_ms + snapshot.timeout_ms <= now_ms:
                self._fence(snapshot, now_ms)
        elif snapshot.updated_ms + self._config.id_expiration_ms <= now_ms:
            self._write = _Write(snapshot=None)
            self._actions.append(Erase())

    def _evict(self) -> None:
        if self.is_idle and self.snapshot is not None and not self.snapshot.has_begun:
            self._write = _Write(snapshot=None)
            self._actions.append(Erase())

    # InitProducerId -------------------------------------------------------------------------------

    def _init(self, token: Token, request: InitRequest, now_ms: int) -> None:
        if not 0 < request.timeout_ms <= self._config.timeout_max_ms:
            self._reply(token, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            return
        snapshot = self.snapshot
        if snapshot is None:
            self._begin(token, request, now_ms)
            return
        error = _judge_init(snapshot, request)
        if error is ErrorCode.NONE and snapshot.state in PREPARED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not ErrorCode.NONE:
            self._reply(token, error)
        elif snapshot.state is TransactionState.ONGOING:
            self._fence(snapshot, now_ms, is_own=request.epoch == snapshot.epoch)
            self._reply(token, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif request.epoch != NO_EPOCH and _named(request) == _last(snapshot):
            self._answer(token, snapshot)  # Its first answer was lost.
        else:
            self._next_epoch(token, request, snapshot, now_ms)

    def _begin(self, token: Token, request: InitRequest, now_ms: int) -> None:
        assert request.spare_producer_id != NO_PRODUCER, "a new id comes with the request"
        after = TransactionSnapshot(
            producer_id=request.spare_producer_id,
            epoch=0,
            timeout_ms=request.timeout_ms,
            updated_ms=now_ms,
            owner=request.owner,
            has_begun=False,
        )
        self._save(after, token)

    def _next_epoch(
        self, token: Token, request: InitRequest, before: TransactionSnapshot, now_ms: int
    ) -> None:
        producer_id, epoch = before.producer_id, before.epoch + 1
        if before.epoch >= EPOCH_MAX - 1:  # The last one is for fencing.
            if request.spare_producer_id == NO_PRODUCER:
                self._reply(token, ErrorCode.CONCURRENT_TRANSACTIONS)
                return
            producer_id, epoch = request.spare_producer_id, 0
        is_known = request.epoch != NO_EPOCH
        after = TransactionSnapshot(
            producer_id=producer_id,
            epoch=epoch,
            last_producer_id=before.producer_id,
            last_epoch=before.epoch if is_known else NO_EPOCH,
            timeout_ms=request.timeout_ms,
            state=next_state(before.state, Step.INITIALIZE),
            updated_ms=now_ms,
            owner=before.owner,
            has_begun=before.has_begun,
        )
        self._save(after, token)

    def _fence(self, before: TransactionSnapshot, now_ms: int, *, is_own: bool = False) -> None:
        """Aborts with an epoch that no producer has, so that nothing late gets in."""
        fenced = replace(
            before,
            epoch=min(before.epoch + 1, EPOCH_MAX),
            last_producer_id=before.producer_id if is_own else NO_PRODUCER,
            last_epoch=before.epoch if is_own else NO_EPOCH,
        )
        self._decide(fenced, None, now_ms, is_commit=False)

    # What a producer asks -------------------------------------------------------------------------

    def _ask_of_producer(self, token: Token, request: ProducerRequest, now_ms: int) -> None:
        snapshot = self.snapshot
        error = _judge_producer(snapshot, request)
        if error is not ErrorCode.NONE:
            self._reply(token, error)
            return
        assert snapshot is not None
        match request:
            case EndRequest():
                self._end(token, request, snapshot, now_ms)
            case _ if snapshot.state in PREPARED:
                self._reply(token, ErrorCode.CONCURRENT_TRANSACTIONS)
            case AddPartitionsRequest():
                new = [each for each in request.partitions if each.shard not in self._shards]
                both = (*snapshot.partitions, *dict.fromkeys(new))
                is_full = len(both) > self._config.partition_count_max
                error = ErrorCode.INVALID_REQUEST if is_full else ErrorCode.NONE
                self._add(token, replace(snapshot, partitions=both), snapshot, now_ms, error)
            case AddGroupRequest():
                groups = tuple(dict.fromkeys((*snapshot.groups, request.group)))
                self._add(token, replace(snapshot, groups=groups), snapshot, now_ms)
            case CommitOffsetsRequest():
                self._commit_offsets(token, request, snapshot, now_ms)
            case _:
                assert_never(request)

    def _add(
        self,
        token: Token,
        after: TransactionSnapshot,
        before: TransactionSnapshot,
        now_ms: int,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        if error is not ErrorCode.NONE:
            self._reply(token, error)
            return
        if before.state is TransactionState.ONGOING:
            if after == before:
                self._reply(token)
                return
        else:
            after = replace(after, started_ms=now_ms)
        state = next_state(before.state, Step.ADD)
        self._save(replace(after, state=state, updated_ms=now_ms, has_begun=True), token)

    def _commit_offsets(
        self,
        token: Token,
        request: CommitOffsetsRequest,
        before: TransactionSnapshot,
        now_ms: int,
    ) -> None:
        is_ongoing = before.state is TransactionState.ONGOING
        if not is_ongoing or request.group not in before.groups:
            self._reply(token, ErrorCode.INVALID_TXN_STATE)
            return
        merged = {**before.offsets.get(request.group, {}), **request.offsets}
        offsets = {**before.offsets, request.group: merged}
        if sum(map(len, offsets.values())) > self._config.offset_count_max:
            self._reply(token, ErrorCode.INVALID_REQUEST)
            return
        self._save(replace(before, offsets=offsets, updated_ms=now_ms), token)

    def _end(
        self, token: Token, request: EndRequest, before: TransactionSnapshot, now_ms: int
    ) -> None:
        is_commit = request.is_commit
        if before.state is TransactionState.ONGOING:
            self._decide(before, token, now_ms, is_commit=is_commit)
        elif before.state is _COMPLETE[is_commit]:
            self._reply(token)  # Its first answer was lost.
        elif before.state in PREPARED and is_commit is _is_commit(before):
            self._reply(token, ErrorCode.CONCURRENT_TRANSACTIONS)
        else:
            self._reply(token, ErrorCode.INVALID_TXN_STATE)

    def _decide(
        self, before: TransactionSnapshot, token: Token | None, now_ms: int, *, is_commit: bool
    ) -> None:
        step = Step.COMMIT if is_commit else Step.ABORT
        after = replace(before, state=next_state(before.state, step), offsets={}, updated_ms=now_ms)
        save = Save(snapshot=after, commits=before.offsets if is_commit else {})
        self._write = _Write(snapshot=after, token=token, save=save)
        self._actions.append(save)

    # Shared ---------------------------------------------------------------------------------------

    def _save(self, after: TransactionSnapshot, token: Token | None = None) -> None:
        assert self._write is None, "one save at a time"
        self._write = _Write(snapshot=after, token=token)
        self._actions.append(Save(snapshot=after))

    def _become(self, snapshot: TransactionSnapshot) -> None:
        self.snapshot = snapshot
        self._shards = _shards_of(snapshot)

    def _write_markers(self, snapshot: TransactionSnapshot) -> None:
        self._actions.append(
            WriteMarkers(
                partitions=snapshot.partitions,
                producer_id=snapshot.producer_id,
                epoch=snapshot.epoch,
                is_commit=_is_commit(snapshot),
            )
        )

    def _reply(self, token: Token, error: ErrorCode = ErrorCode.NONE) -> None:
        self._actions.append(Reply(token=token, error=error))

    def _answer(self, token: Token, snapshot: TransactionSnapshot) -> None:
        self._actions.append(
            Reply(token=token, producer_id=snapshot.producer_id, epoch=snapshot.epoch)
        )

    def _take_actions(self) -> list[TransactionAction]:
        actions, self._actions = self._actions, []
        return actions


def _judge_init(snapshot: TransactionSnapshot, request: InitRequest) -> ErrorCode:
    """A producer that names its id and epoch must be the newest one, or have been just before."""
    if request.producer_id == NO_PRODUCER:
        return ErrorCode.NONE
    is_good = _named(request) in ((snapshot.producer_id, snapshot.epoch), _last(snapshot))
    return ErrorCode.NONE if is_good else ErrorCode.PRODUCER_FENCED


def _named(request: InitRequest) -> tuple[int, int]:
    return request.producer_id, request.epoch


def _last(snapshot: TransactionSnapshot) -> tuple[int, int]:
    return snapshot.last_producer_id, snapshot.last_epoch


def _judge_producer(snapshot: TransactionSnapshot | None, request: ProducerRequest) -> ErrorCode:
    if snapshot is None or request.producer_id != snapshot.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.NONE if request.epoch == snapshot.epoch else ErrorCode.PRODUCER_FENCED


def _is_commit(snapshot: TransactionSnapshot) -> bool:
    return snapshot.state is TransactionState.PREPARE_COMMIT


def _shards_of(snapshot: TransactionSnapshot | None) -> frozenset[str]:
    partitions = () if snapshot is None else snapshot.partitions
    return frozenset(each.shard for each in partitions)
