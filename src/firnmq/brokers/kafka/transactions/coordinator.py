"""The driver of all transactions of a node: futures, timers, the store and the markers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, assert_never

from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions.config import TransactionConfig
from firnmq.brokers.kafka.transactions.machine import Transaction
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
from firnmq.brokers.kafka.transactions.shares import IdShares
from firnmq.brokers.kafka.transactions.snapshot import (
    GroupCommits,
    ShardOffsets,
    TransactionPartition,
    TransactionSnapshot,
)
from firnmq.brokers.kafka.transactions.state import PREPARED, TransactionState
from firnmq.brokers.kafka.transactions.store import TransactionStore
from firnmq.clock import Clock, SteadyClock
from firnmq.errors import Closed, FirnError, NotFound
from firnmq.eventlog import EventLogger

_log = EventLogger("transactions")

_SWEEP_S = 600.0
"""How often unused ids are looked for."""
_OFFSET_BYTES = 128
"""Of a group offset beside the name of its shard and its note."""
_STORE_ERRORS = (FirnError, OSError, TimeoutError)
"""What a store or a shard may fail with; anything else is a defect and ends the coordinator."""


class MarkerWriter(Protocol):
    """Ends transactions in shards."""

    async def write_marker(
        self, partition: TransactionPartition, producer_id: int, epoch: int, *, is_commit: bool
    ) -> None:
        """Returns when the marker is durable; NotFound if the shard no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStatistics:
    id_count: int
    ongoing_count: int
    prepared_count: int
    """Decided, with markers yet to be written."""


class Appends:
    """How many of a transaction's batches are being handed to their shards.

    A marker must not overtake them: what came after it would belong to no transaction.
    """

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *error: object) -> None:
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    @property
    def is_idle(self) -> bool:
        return self._count == 0

    async def wait_idle(self) -> None:
        await self._idle.wait()


class TransactionCoordinator:
    """All transactional ids of a node. An async context manager; used from one event loop.

    Entering it begins to carry out what was decided before a crash.
    """

    def __init__(
        self,
        store: TransactionStore,
        markers: MarkerWriter,
        new_producer_id: Callable[[], Awaitable[int]],
        *,
        clock: Clock,
        config: TransactionConfig | None = None,
        deliver: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`deliver` gives groups elsewhere the offsets of a transaction that is decided."""
        self._deliver = deliver
        self._store = store
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._clock = SteadyClock(clock)
        """A time-out must not last longer because the machine's clock was set back."""
        self._config = config or TransactionConfig()
        self._transactions: dict[str, Transaction] = {}
        self._appends: dict[str, Appends] = {}
        self._shares = IdShares(self._config)
        """Also of ids that are being begun."""
        self._with_offsets: dict[str, GroupCommits] = {}
        """Transactional id → its group offsets that are not decided yet."""
        self._pending: dict[str, dict[str, ShardOffsets]] = {}
        """The same by group → transactional id."""
        self._parked: dict[Token, asyncio.Future[Reply]] = {}
        self._tokens = itertools.count(1)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._tasks = asyncio.TaskGroup()
        self._marker_tasks: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def __aenter__(self) -> TransactionCoordinator:
        snapshots = await self._store.load_all()
        await self._tasks.__aenter__()
        self._is_open = True
        # The one used longest ago is the first to be forgotten.
        oldest_first = sorted(snapshots.items(), key=lambda item: item[1].updated_ms)
        for transactional_id, snapshot in oldest_first:
            transaction, actions = Transaction.restore(
                self._config, snapshot.seen_at(self._clock.now_ms())
            )
            self._transactions[transactional_id] = transaction
            self._shares.add(transactional_id, snapshot.owner)
            self._settle(transactional_id, transaction, actions)
        self._sweep()
        _log.info("transactions_loaded", count=len(snapshots))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """What is decided and not carried out is carried out after the next start."""
        self._is_open = False
        for timer in (*self._timers.values(), self._sweep_timer):
            if timer is not None:
                timer.cancel()
        for task in self._marker_tasks:
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)
        for future in self._parked.values():
            future.cancel()

    # What clients ask -------------------------------------------------------------------------

    async def init(
        self,
        transactional_id: str,
        request: InitRequest,
        owner: str = "",
        connection: Hashable | None = None,
    ) -> Reply:
        """A new instance of the producer. `owner` is the client that a new id is counted for.

        A `connection` that is open keeps an id without a transaction from being forgotten; its
        closing is told to `disconnected`.
        """
        error = self._judge_id(transactional_id, owner)
        if error is not ErrorCode.NONE:
            return Reply(token=Token(0), error=error)
        # The id counts from now on: others may ask while this request waits.
        self._shares.add(transactional_id, owner)
        if connection is not None:
            self._shares.hold(transactional_id, connection)
        transaction = self._transactions.get(transactional_id)
        if transaction is None or transaction.needs_producer_id:
            try:
                spare_id = await self._new_producer_id()
            except BaseException:
                if transactional_id not in self._transactions:
                    self._shares.remove(transactional_id)
                raise
            request = replace(request, spare_producer_id=spare_id, owner=owner)
            self._shares.add(transactional_id, owner)  # Another request that failed removed it.
        return await self._ask(transactional_id, request)

    def disconnected(self, connection: Hashable) -> None:
        """The connection is closed; that it has initialised nothing is no error."""
        self._shares.release(connection)

    async def add_partitions(
        self, transactional_id: str, request: AddPartitionsRequest
    ) -> ErrorCode:
        return (await self._ask(transactional_id, request)).error

    async def add_group(self, transactional_id: str, request: AddGroupRequest) -> ErrorCode:
        return (await self._ask(transactional_id, request)).error

    async def commit_offsets(
        self, transactional_id: str, request: CommitOffsetsRequest
    ) -> ErrorCode:
        if not self._shares.has_room(transactional_id, _offset_bytes({"": request.offsets})):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return (await self._ask(transactional_id, request)).error

    async def end(self, transactional_id: str, request: EndRequest) -> ErrorCode:
        """Commits or aborts; usually returns when every marker is written."""
        try:
            async with asyncio.timeout(self._config.end_wait_ms / 1000):
                return (await self._ask(transactional_id, request)).error
        except TimeoutError:
            transaction = self._transactions.get(transactional_id)
            is_decided = transaction is not None and transaction.state in PREPARED
            return ErrorCode.NONE if is_decided else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def judge_append(
        self, transactional_id: str | None, producer_id: int, epoch: int, shard: str
    ) -> ErrorCode | Appends:
        """Whether a transactional batch may go to a shard.

        If so the caller holds the result, a context manager, until the batch is in its queue.
        """
        transaction = None
        if transactional_id is not None:
            transaction = self._transactions.get(transactional_id)
        if transaction is None or transactional_id is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        error = transaction.judge_append(producer_id, epoch, shard)
        if error is not ErrorCode.NONE:
            return error
        appends = self._appends.get(transactional_id)
        if appends is None:
            appends = self._appends[transactional_id] = Appends()
        return appends

    def pending_offsets(self, group: str) -> tuple[ShardOffsets, ...]:
        """Offsets of the group that open transactions may still commit, as they are now: what
        becomes of a transaction later does not change them."""
        return tuple(self._pending.get(group, {}).values())

    def snapshots(self) -> list[tuple[str, TransactionSnapshot]]:
        """Every id that is known with what is saved of it."""
        return [
            (transactional_id, each.snapshot)
            for transactional_id, each in self._transactions.items()
            if each.snapshot is not None
        ]

    def snapshot_of(self, transactional_id: str) -> TransactionSnapshot | None:
        transaction = self._transactions.get(transactional_id)
        return None if transaction is None else transaction.snapshot

    def statistics(self) -> TransactionStatistics:
        states = [transaction.state for transaction in self._transactions.values()]
        return TransactionStatistics(
            id_count=len(states),
            ongoing_count=states.count(TransactionState.ONGOING),
            prepared_count=sum(state in PREPARED for state in states),
        )

    def tick(self) -> None:
        """Acts on every deadline that has passed."""
        for transactional_id in list(self._transactions):
            self._notify(transactional_id, Tick())

    def _judge_id(self, transactional_id: str, owner: str) -> ErrorCode:
        config = self._config
        if not 0 < len(transactional_id) <= config.id_chars_max:
            return ErrorCode.INVALID_REQUEST
        shares = self._shares
        if transactional_id in shares:
            return ErrorCode.NONE
        limit = shares.limit_reached_by(owner)
        if limit is not None:
            has_room = self._evict(shares.oldest_evictable(owner))
        else:
            limit = config.id_count_max
            has_room = len(shares) < limit or self._evict(shares.oldest_evictable())
        if has_room:
            return ErrorCode.NONE
        _log.warning("transactional_id_refused", client=owner, limit=limit)
        return ErrorCode.POLICY_VIOLATION

    def _evict(self, transactional_id: str | None) -> bool:
        """Begins to forget an id that makes room for another one; False if there is none."""
        if transactional_id is None:
            return False
        _log.info("unused_transactional_id_forgotten", id=transactional_id)
        self._notify(transactional_id, Evicted())
        return True

    # Events and actions -----------------------------------------------------------------------

    async def _ask(self, transactional_id: str, request: TransactionRequest) -> Reply:
        if not self._is_open:
            raise Closed("the transaction coordinator is closed")
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            # A blank one knows what to answer, and is kept only if there is something to keep.
            transaction = Transaction(self._config, None)
            self._transactions[transactional_id] = transaction
        token = Token(next(self._tokens))
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._parked[token] = future
        try:
            self._give(transactional_id, transaction, Asked(token=token, request=request))
            return await future
        finally:
            del self._parked[token]

    def _notify(self, transactional_id: str, event: TransactionEvent) -> None:
        transaction = self._transactions.get(transactional_id)
        if transaction is not None and self._is_open:
            self._give(transactional_id, transaction, event)

    def _give(
        self, transactional_id: str, transaction: Transaction, event: TransactionEvent
    ) -> None:
        actions = transaction.handle(event, self._clock.now_ms())
        self._settle(transactional_id, transaction, actions)

    def _settle(
        self, transactional_id: str, transaction: Transaction, actions: list[TransactionAction]
    ) -> None:
        """Files a transaction under what it is after an event, and acts."""
        if transaction.is_dead or transaction.is_blank:
            self._transactions.pop(transactional_id, None)
            self._appends.pop(transactional_id, None)
            self._shares.remove(transactional_id)
        snapshot = transaction.snapshot
        if snapshot is not None:
            self._shares.update(
                transactional_id, has_begun=snapshot.has_begun, is_idle=transaction.is_idle
            )
        if snapshot is not None and not transaction.is_dead:
            self._set_pending(transactional_id, snapshot.offsets)
        else:
            self._set_pending(transactional_id, {})
        self._arm(transactional_id, transaction.wake_ms)
        for action in actions:
            self._carry_out(transactional_id, action)

    def _set_pending(self, transactional_id: str, offsets: GroupCommits) -> None:
        """Notes the group offsets of the id's open transaction."""
        before = self._with_offsets.get(transactional_id, {})
        if offsets is before or not (offsets or before):
            return
        self._shares.set_pending(transactional_id, _offset_bytes(offsets))
        for group in before.keys() - offsets.keys():
            theirs = self._pending[group]
            del theirs[transactional_id]
            if not theirs:
                del self._pending[group]
        for group, by_shard in offsets.items():
            self._pending.setdefault(group, {})[transactional_id] = by_shard
        if offsets:
            self._with_offsets[transactional_id] = offsets
        else:
            del self._with_offsets[transactional_id]

    def _carry_out(self, transactional_id: str, action: TransactionAction) -> None:
        match action:
            case Reply():
                future = self._parked.get(action.token)
                if future is not None and not future.done():
                    future.set_result(action)
            case Save() | Erase():
                self._start(self._save(transactional_id, action))
            case WriteMarkers():
                task = self._start(self._write_markers(transactional_id, action))
                self._marker_tasks.add(task)
                task.add_done_callback(self._marker_tasks.discard)
            case _:
                assert_never(action)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

    async def _save(self, transactional_id: str, action: Save | Erase) -> None:
        try:
            if isinstance(action, Save):
                await self._store.save(transactional_id, action.snapshot, action.commits)
            else:
                await self._store.delete(transactional_id)
        except _STORE_ERRORS as error:
            _log.error("transaction_not_saved", id=transactional_id, error=repr(error))
            self._notify(transactional_id, SaveFailed())
        else:
            self._notify(transactional_id, Saved())

    async def _write_markers(self, transactional_id: str, action: WriteMarkers) -> None:
        appends = self._appends.get(transactional_id)
        if appends is not None:
            await appends.wait_idle()
        slots = asyncio.Semaphore(self._config.marker_concurrency_max)
        async with asyncio.TaskGroup() as tasks:
            for partition in action.partitions:
                tasks.create_task(self._write_marker(partition, action, slots))
            if self._deliver is not None:
                tasks.create_task(self._deliver_offsets(transactional_id, self._deliver))
        self._notify(transactional_id, MarkersWritten())

    async def _deliver_offsets(
        self, transactional_id: str, deliver: Callable[[str], Awaitable[None]]
    ) -> None:
        """Delivers a transaction's group offsets, however often it takes."""
        while True:
            try:
                await deliver(transactional_id)
                return
            except _STORE_ERRORS as error:
                _log.error("offsets_not_delivered", id=transactional_id, error=repr(error))
            await asyncio.sleep(self._config.retry_ms / 1000)

    async def _write_marker(
        self, partition: TransactionPartition, action: WriteMarkers, slots: asyncio.Semaphore
    ) -> None:
        """Writes one marker, however often it takes; a shard that is gone needs none."""
        while True:
            try:
                async with slots:
                    await self._markers.write_marker(
                        partition, action.producer_id, action.epoch, is_commit=action.is_commit
                    )
                return
            except NotFound:
                return
            except _STORE_ERRORS as error:
                _log.error("marker_not_written", shard=partition.shard, error=repr(error))
            await asyncio.sleep(self._config.retry_ms / 1000)

    # Timers -----------------------------------------------------------------------------------

    def _arm(self, transactional_id: str, wake_ms: int | None) -> None:
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        if wake_ms is None:
            return
        # One more, because the loop's clock and ours do not tick at the same instant.
        delay_s = (max(wake_ms - self._clock.now_ms(), 0) + 1) / 1000
        loop = asyncio.get_running_loop()
        self._timers[transactional_id] = loop.call_later(delay_s, self._ring, transactional_id)

    def _ring(self, transactional_id: str) -> None:
        self._timers.pop(transactional_id, None)
        self._notify(transactional_id, Tick())

    def _sweep(self) -> None:
        self.tick()
        self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)


def _offset_bytes(offsets: GroupCommits) -> int:
    """About what group offsets take in memory and in the store."""
    return sum(
        _OFFSET_BYTES + len(shard) + len(entry.metadata or "")
        for by_shard in offsets.values()
        for shard, entry in by_shard.items()
    )
