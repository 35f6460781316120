"""How the rows of many tasks become one write, exactly once, whatever crashes in between.

Every task writes in a transaction of its own and leaves it open. The driver then

1. becomes the query's only committer: a new epoch of the transactional id `spark/{query}`, which
   fences the committer before it;
2. reads the query's note: which batch was written last, by which transactions, and whether all of
   them have been ended;
3. makes sure that every transaction of this batch is still open;
4. notes the batch and its transactions, in a transaction of the committer's own;
5. ends each of them;
6. notes that the batch is done.

A batch that Spark runs again finds the note. If it is done, the new transactions are aborted; if
not, the noted ones are ended, and the new ones aborted. Before step 4 nothing of the batch can be
visible, after it all of it will be. Only a driver that stays away between 4 and 6 for longer than
the transactions' time-out can be too late; it says so instead of writing anything twice.

The note is the text of a group's committed offset, the offset being the number of the batch. A
long one continues in further groups; they change in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import msgspec

from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.lake.plans.wire import NodeRefused, NodeUnreachable, WireClient
from firnmq.lake.spark.producing import Coordinator, NotOpen, Transaction

_log = EventLogger("lake")

_TEXT_CHARS_MAX: Final = 4000
"""Of one committed offset; brokers allow 4,096."""
_PARTS_MAX: Final = 1000
_COMMITTER_TIMEOUT_MS: Final = 60_000
_THREADS_MAX: Final = 8

Step = Literal["begun", "checked", "noted", "ended one", "ended", "done"]
"""Where a test may look in, or end the process."""


class WriteExpired(FirnError):
    """Transactions of a batch were aborted before it could be committed; nothing was written."""

    def __init__(self, batch: int, lost: int, total: int) -> None:
        super().__init__(
            f"batch {batch}: {lost} of {total} transactions were aborted before the batch was "
            "complete, probably because it took longer than transactionTimeoutMs; nothing was "
            "written. Make batches smaller, or let transactions take longer (the node's limit is "
            "transactions.timeout_max_ms)"
        )
        self.batch = batch


class WritePartlyLost(FirnError):
    """A batch was decided to be written, but some of its transactions timed out before."""

    def __init__(self, query: str, batch: int, lost: int, total: int) -> None:
        super().__init__(
            f"batch {batch} of {query!r}: {lost} of {total} transactions had timed out when the "
            "batch was to be finished after a crash, so that a part of it is written and a part is "
            f"not. Delete the group {_group(query, 0)!r} to have all of it written once more"
        )
        self.query = query
        self.batch = batch


class WriteOutdated(FirnError):
    """Another run of the same query has already gone further."""

    def __init__(self, query: str, batch: int, newest: int) -> None:
        super().__init__(
            f"batch {batch} of {query!r} is behind batch {newest}, which was written before: is "
            "another run of the query going on, or was its checkpoint set back?"
        )
        self.query = query
        self.batch = batch
        self.newest = newest


class TaskWrite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task has written, as its transaction."""

    id: str
    producer_id: int
    epoch: int
    shard: int = 0
    """One that it wrote to: to ask whether it is open still."""

    @property
    def transaction(self) -> Transaction:
        return Transaction(id=self.id, producer_id=self.producer_id, epoch=self.epoch)


class _Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    batch: int
    is_done: bool = False
    tasks: tuple[TaskWrite, ...] = ()


class BatchCommitter:
    """Commits and aborts what tasks have written for one query."""

    def __init__(
        self,
        connect: Callable[[], WireClient],
        topic: str,
        query: str | None,
        *,
        observe: Callable[[Step], None] | None = None,
    ) -> None:
        self._connect = connect
        self._topic = topic
        self._query = query or ""
        """Empty for a write that cannot be repeated: nothing is noted of it."""
        self._observe = observe or (lambda step: None)

    def commit(self, batch: int, tasks: Sequence[TaskWrite]) -> bool:
        """Makes the tasks' rows visible; False if the batch had been written before."""
        with self._connect() as client:
            coordinator = Coordinator(client)
            if not self._query:
                self._check_open(coordinator, batch, tasks)
                if not self._finish(_Note(batch=batch, tasks=tuple(tasks))):
                    raise WriteExpired(batch, len(tasks), len(tasks))
                return True
            committer = coordinator.begin(f"spark/{self._query}", _COMMITTER_TIMEOUT_MS)
            self._observe("begun")
            note = self._read(coordinator)
            if note is not None and note.batch > batch:
                self._abort_all(coordinator, tasks)
                raise WriteOutdated(self._query, batch, note.batch)
            note = self._finished(coordinator, committer, note, batch)
            if note is not None and note.is_done and note.batch == batch:
                self._abort_all(coordinator, tasks)
                _log.info("lake_batch_written_before", query=self._query, batch=batch)
                return False
            if not tasks:
                return True
            self._check_open(coordinator, batch, tasks)
            self._observe("checked")
            self._write(coordinator, committer, _Note(batch=batch, tasks=tuple(tasks)))
            self._observe("noted")
            if not self._finish(_Note(batch=batch, tasks=tuple(tasks))):
                raise WriteExpired(batch, len(tasks), len(tasks))
            self._observe("ended")
            self._write(coordinator, committer, _Note(batch=batch, is_done=True))
            self._observe("done")
            return True

    def abort(self, batch: int, tasks: Sequence[TaskWrite]) -> None:
        """Aborts transactions that the note does not name. Those in the note stay open: the next
        run finishes them.

        Without a reachable node nothing is done; open transactions time out.
        """
        if not tasks:
            return
        try:
            with self._connect() as client:
                coordinator = Coordinator(client)
                if not self._query:
                    self._abort_all(coordinator, tasks)
                    return
                # A committer that may be noting these transactions now is fenced first.
                coordinator.begin(f"spark/{self._query}", _COMMITTER_TIMEOUT_MS)
                note = self._read(coordinator)
                kept = () if note is None else note.tasks
                self._abort_all(coordinator, [task for task in tasks if task not in kept])
        except (NodeRefused, NodeUnreachable) as error:
            _log.warning("lake_abort_failed", query=self._query, batch=batch, error=str(error))

    def _finished(
        self, coordinator: Coordinator, committer: Transaction, note: _Note | None, batch: int
    ) -> _Note | None:
        """The note after its batch is finished, or unchanged if the batch is written again."""
        if note is None or note.is_done:
            return note
        if self._finish(note):
            note = _Note(batch=note.batch, is_done=True)
            self._write(coordinator, committer, note)
        elif note.batch != batch:  # Spark took it for written, and will not run it again.
            raise WritePartlyLost(self._query, note.batch, len(note.tasks), len(note.tasks))
        return note

    def _finish(self, note: _Note) -> bool:
        """Ends the noted transactions. False if none of them was left to be committed."""
        lost, is_certain = self._end_all(note.tasks)
        if lost == 0:
            return True
        if lost == len(note.tasks) and is_certain:
            return False
        raise WritePartlyLost(self._query, note.batch, lost, len(note.tasks))

    def _end_all(self, tasks: Sequence[TaskWrite]) -> tuple[int, bool]:
        """How many could not be committed any more, and whether it is certain they never were."""
        if not tasks:
            return 0, True
        threads = min(_THREADS_MAX, len(tasks))
        shares = [tasks[index::threads] for index in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            lost = [error for share in pool.map(self._end_some, shares) for error in share]
        return len(lost), not any(error.is_forgotten for error in lost)

    def _end_some(self, tasks: Sequence[TaskWrite]) -> list[NotOpen]:
        lost = []
        with self._connect() as client:
            coordinator = Coordinator(client)
            for task in tasks:
                try:
                    coordinator.end(task.transaction, commit=True)
                except NotOpen as error:
                    _log.error("lake_transaction_lost", transaction=task.id, error=str(error))
                    lost.append(error)
                self._observe("ended one")
        return lost

    def _check_open(self, coordinator: Coordinator, batch: int, tasks: Sequence[TaskWrite]) -> None:
        lost = 0
        for task in tasks:
            try:
                coordinator.add_shards(task.transaction, self._topic, [task.shard])
            except NotOpen:
                lost += 1
        if lost:
            self._abort_all(coordinator, tasks)
            raise WriteExpired(batch, lost, len(tasks))

    def _abort_all(self, coordinator: Coordinator, tasks: Sequence[TaskWrite]) -> None:
        for task in tasks:
            try:
                coordinator.end(task.transaction, commit=False)
            except NotOpen:
                pass  # Another committer has already done it.

    def _read(self, coordinator: Coordinator) -> _Note | None:
        found = coordinator.noted(_group(self._query, 0), self._topic)
        if found is None or not found[1]:
            return None
        count, _, text = found[1].partition("|")
        parts = [text]
        for index in range(1, int(count)):
            more = coordinator.noted(_group(self._query, index), self._topic)
            parts.append("" if more is None else more[1])
        return msgspec.json.decode("".join(parts), type=_Note)

    def _write(self, coordinator: Coordinator, committer: Transaction, note: _Note) -> None:
        text = msgspec.json.encode(note).decode()
        parts = [
            text[begin : begin + _TEXT_CHARS_MAX] for begin in range(0, len(text), _TEXT_CHARS_MAX)
        ]
        assert len(parts) <= _PARTS_MAX, "Spark runs no such number of tasks at once"
        for index, part in enumerate(parts):
            content = f"{len(parts)}|{part}" if index == 0 else part
            group = _group(self._query, index)
            coordinator.note(committer, group, self._topic, note.batch, content)
        coordinator.end(committer, commit=True)


def _group(query: str, index: int) -> str:
    return f"spark/{query}" if index == 0 else f"spark/{query}/{index}"
