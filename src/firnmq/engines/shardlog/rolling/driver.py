"""Performs rolls outside of turns: syncs and metadata transactions hold up the rolling log alone.

The log's lock is held for each step of the machine and for what changes the log, and never while a
disk or the metadata is waited for.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Protocol

from firnmq.disk import Ticket, run_blocking
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.shardlog.log import STORAGE_ERRORS, ShardLog
from firnmq.engines.shardlog.rolling import steps
from firnmq.engines.shardlog.rolling.machine import (
    Action,
    AskDriver,
    AwaitShown,
    Begun,
    CloseLog,
    Decide,
    Decided,
    Event,
    Failed,
    Install,
    Refused,
    RollMachine,
    Shown,
    Sync,
    Synced,
    Thaw,
    Wanted,
)
from firnmq.engines.shardlog.rolling.state import RollState
from firnmq.engines.shardlog.rolling.steps import Move
from firnmq.errors import Closed, FirnError, TimedOut
from firnmq.eventlog import EventLogger

ROLL_THREADS = 4
"""Rolls under way at the same time, besides those that callers ask for and wait for. Each is mostly
waiting for a sync or for the metadata."""

_log = EventLogger("engine")


class Placing(Protocol):
    """Decides where the next segments of logs go. Its calls may wait."""

    def begin(self, spec: ShardSpec) -> Move | None:
        """The move that a roll becomes; None if the log stays. Every move has one `end`."""

    def end(self, spec: ShardSpec, move: Move, error: FirnError | None) -> None:
        """The move has happened, or why not."""


class RollDriver:
    """Rolls the logs of a store. Safe with threads."""

    def __init__(self, threads: Executor | None = None) -> None:
        self.placing: Placing | None = None
        """Where the next segments of logs go; None: they stay."""
        self._threads = threads or ThreadPoolExecutor(ROLL_THREADS, thread_name_prefix="firn-roll")

    def want(self, log: ShardLog) -> None:
        """Has a thread roll the log, unless one is about to. The lock is held."""
        for action in log.rolling.handle(Wanted(), monotonic()):
            assert isinstance(action, AskDriver)
            self._threads.submit(self._roll_wanted, log)

    def roll(self, log: ShardLog, move: steps.Move | None = None) -> None:
        """Rolls the log in the calling thread; an empty segment stays, unless the log moves to
        another node. Closed logs raise, and a log that has moved is one."""
        if move is None and log.tail.position and self._moves_instead(log):
            return
        with steps.unchanging(log):
            if log.refusal is not None:
                raise log.refusal
            if log.tail.position == 0 and move is None:
                return
            machine, action = log.rolling, _begin(log)
        self._perform(log, machine, action, move)

    def _moves_instead(self, log: ShardLog) -> bool:
        """Whether the log has moved to a node that has less to do. If that node is not ready, the
        log is to be rolled here."""
        placing, spec = self.placing, log.spec
        move = None if placing is None else placing.begin(spec)
        if placing is None or move is None:
            return False
        refusal: FirnError | None = None
        try:
            self.roll(log, move)
        except FirnError as error:
            refusal = error
            if log.refusal is not None:
                raise
        finally:
            placing.end(spec, move, refusal)
        return refusal is None

    def close(self) -> None:
        """Finishes the rolls that are wanted or under way."""
        self._threads.shutdown()

    def _roll_wanted(self, log: ShardLog) -> None:
        try:
            if log.rolling.state is RollState.WANTED and self._moves_instead(log):
                return
            with steps.unchanging(log):
                if log.rolling.state is not RollState.WANTED:
                    return  # A caller has rolled it, or the log was closed.
                machine, action = log.rolling, _begin(log)
            self._perform(log, machine, action)
        except (FirnError, OSError) as error:
            _log.warning("roll_failed", shard=log.spec.name, error=str(error))

    def _perform(
        self,
        log: ShardLog,
        machine: RollMachine,
        action: Action,
        move: steps.Move | None = None,
    ) -> None:
        """Performs a roll that has begun. Raises what has kept it from happening, when the log was
        closed or takes appends again."""
        seal: steps.Seal | None = None
        refusal: FirnError | None = None
        while True:
            event: Event
            try:
                match action:
                    case AwaitShown():
                        event = run_blocking(_await_shown(log, action))
                    case Sync():
                        steps.sync(log, machine)
                        refusal = _hand_over(log, move)
                        event = Synced() if refusal is None else Refused()
                    case Decide():
                        with log.lock:
                            seal = steps.seal_of(log, move)
                        try:
                            seal = steps.decide(log, seal)
                            event = Decided()
                        except TimedOut as error:
                            if log.replica is None:
                                raise  # Whether the metadata has changed is unknown.
                            refusal, event = error, Refused()
                    case _:
                        raise AssertionError(f"{action} is not for a roll under way")
            except STORAGE_ERRORS as error:
                event = Failed(error=error)
            except Exception as defect:  # Supervisor: the log must not stay frozen.
                _log.error("roll_failed", shard=log.spec.name, error=repr(defect))
                event = Failed(error=defect)
            with log.lock:
                if log.rolling is not machine:  # It does not lead any more.
                    assert log.replica is not None
                    raise log.refusal or log.replica.refused
                following = machine.handle(event, monotonic())
                if following and isinstance(following[0], AwaitShown | Sync | Decide):
                    (action,) = following
                    continue
                try:
                    _end(log, following, seal, move, refusal)
                finally:
                    steps.end_roll(log)
            steps.drop_old_snapshots(log)
            return


def _begin(log: ShardLog) -> Action:
    """Freezes the log. The lock is held."""
    event = Begun(end_offset=log.tail.next_offset, shown_offset=log.view.end_offset)
    (action,) = log.rolling.handle(event, monotonic())
    return action


def _hand_over(log: ShardLog, move: steps.Move | None) -> FirnError | None:
    """Prepares the next leader of a log that moves; why it is not ready, if so."""
    if move is not None:
        try:
            steps.hand_over(log, move)
        except FirnError as error:
            return error
    return None


def _end(
    log: ShardLog,
    actions: list[Action],
    seal: steps.Seal | None,
    move: steps.Move | None,
    refusal: FirnError | None,
) -> None:
    """Performs what a roll ends with; raises unless the log was rolled. The lock is held since the
    machine's last step: an append must not come between the two."""
    match actions:
        case [Install()] if move is not None:
            steps.leave(log, move)
        case [Install()]:
            assert seal is not None
            try:
                steps.install(log, seal)
            except STORAGE_ERRORS as error:
                raise log.fail(error) from error
        case [Thaw()] if refusal is not None:
            raise refusal
        case [Thaw()]:
            raise TimedOut(f"{log.spec.name} was not rolled: its replicas are behind")
        case [CloseLog(error=error)]:
            raise log.fail(error) from error
        case _ if move is not None and seal is not None and seal.is_decided:
            pass  # This node has read in the metadata that another one leads, and closed the log.
        case _:  # The log was closed in the meantime.
            raise log.refusal or Closed("the log is closed")


async def _await_shown(log: ShardLog, action: AwaitShown) -> Shown:
    ticket: Ticket[None] = Ticket()
    if log.watch(ticket, action.offset - 1):
        with suppress(TimeoutError):
            await ticket.within(action.deadline_s)
        log.watchers.remove(ticket)
    return Shown(shown_offset=log.view.end_offset)


def roll_in_memory(log: ShardLog) -> None:
    """Rolls a log whose rolls are not in the metadata: nothing is waited for. The lock is held."""
    log.show_all_pending()
    try:
        _begin(log)
        steps.commit(log)
        log.rolling.handle(Synced(), 0.0)
        seal = steps.seal_of(log)
        seal = steps.decide(log, seal)
        log.rolling.handle(Decided(), 0.0)
        steps.install(log, seal)
    except BaseException:
        log.rolling = RollMachine()  # The log is as it was.
        raise
