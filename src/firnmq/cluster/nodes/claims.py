"""Claims of topics: a node that changes a topic keeps other nodes from changing it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from firnmq.clock import Clock
from firnmq.cluster.nodes.registration import Registration
from firnmq.errors import Closed, FirnError, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.meta import Compare, MetaStore, SessionLapsed, TxnConflict
from firnmq.meta.records import topic_claim_key

_log = EventLogger("cluster")

_ATTEMPTS = 3
_LATE_MS = 60_000
"""A transaction whose outcome is unknown may still happen for this long."""


class TopicClaims:
    """Keys of the node's session. Safe with threads."""

    def __init__(
        self,
        store: MetaStore,
        holder: str,
        registration: Callable[[], Registration | None],
        clock: Clock,
    ) -> None:
        """`holder` names this process."""
        self._store = store
        self._holder = holder
        self._registration = registration
        self._clock = clock
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._left: dict[tuple[str, bytes], int] = {}
        """Claims that may have stayed in the store after their end, each with the time from which
        on it cannot come back."""

    @contextmanager
    def claim(self, name: str, refusal: FirnError) -> Iterator[None]:
        """Keeps other nodes from making, deleting or growing a topic of this name until the exit,
        or until this node's session ends. `refusal` if another node does already."""
        key = topic_claim_key(name)
        value = f"{self._holder} {next(self._numbers)}".encode()
        revision = self._put(key, value, refusal)
        try:
            yield
        finally:
            try:
                self._store.txn([Compare(key=key, revision=revision)], {}, [key])
            except TxnConflict:
                _log.warning("topic_claim_lapsed", topic=name)
            except FirnError as error:
                _log.warning("topic_claim_left_behind", topic=name, error=str(error))
                self._leave(key, value)

    def release_left(self) -> None:
        """Removes claims that have stayed after their end, because the store did not answer."""
        with self._lock:
            left = list(self._left.items())
        for (key, value), until_ms in left:
            is_over = self._clock.steady_ms() >= until_ms
            entry = self._store.get(key)
            if entry is not None and entry.value == value:
                self._store.txn([Compare.unchanged(entry)], {}, [key])
                _log.info("topic_claim_removed", key=key)
                is_over = True
            if is_over:
                with self._lock:
                    self._left.pop((key, value), None)

    def _put(self, key: str, value: bytes, refusal: FirnError) -> int:
        """Puts a key of this node's session, which may have ended while the node stood still."""
        registration = self._registration()
        if registration is None:
            raise Closed("the node is not registered yet, or not any more; try again")
        for _ in range(_ATTEMPTS):
            session = registration.session
            try:
                return self._store.txn([Compare.absent(key)], {key: value}, session=session)
            except TxnConflict:
                if not self._is_left(key):
                    raise refusal from None
                self.release_left()
            except SessionLapsed:
                registration.replace(session)
            except FirnError:
                self._leave(key, value)
                raise
        raise TimedOut("the node's session has ended and could not be begun again; try again")

    def _leave(self, key: str, value: bytes) -> None:
        with self._lock:
            self._left[key, value] = self._clock.steady_ms() + _LATE_MS

    def _is_left(self, key: str) -> bool:
        with self._lock:
            return any(left == key for left, _ in self._left)
