"""Which process is the controller: the one that has put the controller's key under its session.

A state machine without I/O, and `Candidate`, the thread that acts for it. Being elected is only
permission to try: every transaction of a controller compares the create revision of its key, so one
that has been replaced and does not know it changes nothing.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from firnmq.clock import Clock, SystemClock
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta.api import Compare, CompareField, MetaStore, Session, SessionLapsed, TxnConflict

CONTROLLER_KEY = "controller"
"""Its value is the name of the process."""
TTL_S = 4.0
"""Of the controller's session. etcd elects its own leader in up to 1.5 s."""
_TICK_S = 0.25
_log = EventLogger("meta")


class Role(Enum):
    FOLLOWING = "following"
    CAMPAIGNING = "campaigning"
    LEADING = "leading"


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. `is_taken`: another process, or this one, has the key."""

    is_taken: bool


@dataclass(frozen=True, slots=True)
class Won:
    """The key is ours; `revision` is the one at which it was created."""

    revision: int
    asked_ms: int
    """When the session was begun or last kept alive, before the call."""


@dataclass(frozen=True, slots=True)
class NotWon:
    """Another process has the key, or the store did not answer."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The session was kept alive by a call that began at `asked_ms`."""

    asked_ms: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The session has lapsed, or a transaction found another controller."""


Event: TypeAlias = Tick | Won | NotWon | Kept | Lost


@dataclass(frozen=True, slots=True)
class Campaign:
    """Begin a session and put the key, if there is none."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Keep the session alive."""


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop acting as controller and end the session."""


Action: TypeAlias = Campaign | KeepAlive | StepDown


class Election:
    """One process's part in the election. Times are those of a steady clock."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self.role = Role.FOLLOWING
        self.revision = 0
        """Create revision of the key while leading."""
        self._confirmed_ms = 0
        """The session lasts at least until this plus its time to live."""
        self._asked_ms = 0

    def is_leading(self, now_ms: int) -> bool:
        """Whether this process may act: for three quarters of the time for which it is sure of its
        session, so that it stops before another one begins."""
        return self.role is Role.LEADING and now_ms - self._confirmed_ms < self._ttl_ms * 3 // 4

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        match event:
            case Tick(is_taken=is_taken):
                return self._tick(now_ms, is_taken=is_taken)
            case Won(revision=revision, asked_ms=asked_ms) if self.role is Role.CAMPAIGNING:
                self.role, self.revision = Role.LEADING, revision
                self._confirmed_ms = self._asked_ms = asked_ms
            case NotWon() if self.role is Role.CAMPAIGNING:
                self.role = Role.FOLLOWING
            case Kept(asked_ms=asked_ms) if self.role is Role.LEADING:
                self._confirmed_ms = max(self._confirmed_ms, asked_ms)
            case Lost() if self.role is Role.LEADING:
                return self._step_down()
            case _:
                pass  # An answer to something that is over.
        return []

    def _tick(self, now_ms: int, *, is_taken: bool) -> list[Action]:
        match self.role:
            case Role.FOLLOWING if not is_taken:
                self.role = Role.CAMPAIGNING
                return [Campaign()]
            case Role.LEADING if not self.is_leading(now_ms):
                return self._step_down()
            case Role.LEADING if now_ms - self._asked_ms >= self._ttl_ms // 4:
                self._asked_ms = now_ms
                return [KeepAlive()]
            case _:
                return []

    def _step_down(self) -> list[Action]:
        self.role, self.revision = Role.FOLLOWING, 0
        return [StepDown()]


class Candidate:
    """Takes part in the election until it is stopped. Safe with threads."""

    def __init__(
        self,
        store: MetaStore,
        name: str,
        *,
        is_taken: Callable[[], bool],
        key: str = CONTROLLER_KEY,
        clock: Clock | None = None,
        ttl_s: float = TTL_S,
        rng: random.Random | None = None,
    ) -> None:
        """`is_taken` says, from a cache, whether there is a controller; `key` is what it puts."""
        self._store = store
        self._key = key
        self._name = name
        self._is_taken = is_taken
        self._clock = clock or SystemClock()
        self._ttl_s = ttl_s
        self._rng = rng or random.Random()
        self._election = Election(int(ttl_s * 1000))
        self._session: Session | None = None
        self._lock = threading.Lock()
        """Guards the election's state."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="firn-election", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends it, and the session, so that another process can be elected at once."""
        self._stopping.set()
        self._thread.join()

    def guard(self) -> Compare | None:
        """What each of the controller's transactions compares; None if it is another process."""
        with self._lock:
            if not self._election.is_leading(self._now()):
                return None
            return Compare(
                key=self._key, revision=self._election.revision, field=CompareField.CREATE
            )

    def note_replaced(self) -> None:
        """A transaction has found another controller."""
        self._perform(self._handle(Lost()))

    def _run(self) -> None:
        while not self._stopping.wait(_TICK_S * self._rng.uniform(0.8, 1.2)):
            self._perform(self._handle(Tick(self._is_taken())))
        self._perform(self._handle(Lost()))

    def _handle(self, event: Event) -> list[Action]:
        with self._lock:
            return self._election.handle(event, self._now())

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Campaign():
                    self._campaign()
                case KeepAlive():
                    self._keep_alive()
                case StepDown():
                    _log.info("controller_steps_down", name=self._name)
                    self._end_session()

    def _campaign(self) -> None:
        asked_ms = self._now()
        try:
            self._session = session = self._store.session(self._ttl_s)
            absent = Compare.absent(self._key)
            revision = self._store.txn([absent], {self._key: self._name.encode()}, (), session)
        except TxnConflict:
            self._end_session()
            self._handle(NotWon())
        except FirnError as error:
            _log.warning("controller_election_failed", name=self._name, error=error)
            self._end_session()
            self._handle(NotWon())
        else:
            self._handle(Won(revision, asked_ms))
            _log.info("controller_elected", name=self._name, revision=revision)

    def _keep_alive(self) -> None:
        asked_ms, session = self._now(), self._session
        if session is None:
            return  # It has stepped down in the meantime.
        try:
            session.keep_alive()
        except SessionLapsed:
            self._perform(self._handle(Lost()))
        except FirnError as error:
            _log.warning("controller_not_confirmed", name=self._name, error=error)
        else:
            self._handle(Kept(asked_ms))

    def _end_session(self) -> None:
        """If the store does not answer, the session lapses by itself."""
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close()
            except FirnError:
                _log.info("controller_session_lapses", name=self._name)

    def _now(self) -> int:
        return self._clock.steady_ms()
