"""A node's registration: its listing lasts as long as its session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from firnmq.errors import Closed, FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta import MetaStore, NodeIdentity, Session, SessionLapsed, TxnConflict
from firnmq.meta.records import NodeRecord, encode, node_key

_log = EventLogger("cluster")

SESSION_TTL_S = 4.0
_RENEWALS = 4
"""Per time to live."""


def monotonic_ms() -> int:
    """This process's steady clock."""
    return time.monotonic_ns() // 1_000_000


class Registration:
    """Keeps a node listed from a thread of its own. Close it when done."""

    def __init__(
        self,
        store: MetaStore,
        identity: NodeIdentity,
        record: NodeRecord,
        on_superseded: Callable[[], None],
        on_renewal: Callable[[FirnError | None], None] = lambda error: None,
        *,
        ttl_s: float = SESSION_TTL_S,
    ) -> None:
        """Returns with the node listed. `on_superseded` is called, once, when another process has
        registered the same node: this one must stop. `on_renewal` is told after every attempt
        why it failed, if it did."""
        self._store = store
        self._identity = identity
        self._record = record
        self._on_superseded = on_superseded
        self._on_renewal = on_renewal
        self._ttl_s = ttl_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        """Held while the session is renewed or replaced."""
        self.renewed_ms = 0
        """Before the session was last prolonged, by the clock of `monotonic_ms`."""
        self.session: Session = self._list()
        self._thread = threading.Thread(target=self._keep, name="firn-registration", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the listing. Closing twice is no error."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join()
        try:
            self.session.close()
        except FirnError as error:
            _log.warning("registration_left_behind", error=str(error), lapses_s=self._ttl_s)

    def replace(self, lapsed: Session) -> None:
        """Lists the node with a new session, unless that has happened since `lapsed` was used."""
        with self._lock:
            if self.session is not lapsed or self._stopping.is_set():
                return
            try:
                self._replace()
            except TxnConflict as error:  # The registration's thread will find it, and stop us.
                raise Closed("another process has become this node") from error

    def _replace(self) -> None:
        self.session = self._list()
        _log.warning("session_renewed", node=self._identity.node, cause="it had lapsed")

    def _list(self) -> Session:
        """Lists the node with a new session; TxnConflict if another process has registered it."""
        asked_ms = monotonic_ms()
        session = self._store.session(self._ttl_s)
        key = node_key(self._identity.node)
        self._store.txn([self._identity.guard], {key: encode(self._record)}, session=session)
        self.renewed_ms = asked_ms
        return session

    def _keep(self) -> None:
        while not self._stopping.wait(self._ttl_s / _RENEWALS):
            try:
                with self._lock:
                    self._renew()
            except TxnConflict:
                _log.error("node_superseded", node=self._identity.node)
                self._on_superseded()
                return
            except FirnError as error:
                self._on_renewal(error)
            else:
                self._on_renewal(None)

    def _renew(self) -> None:
        entry = self._store.get(self._identity.guard.key)
        if entry is None or entry.mod_revision != self._identity.guard.revision:
            raise TxnConflict(self._identity.guard, 0 if entry is None else entry.mod_revision)
        asked_ms = monotonic_ms()
        try:
            self.session.keep_alive()
            self.renewed_ms = asked_ms
        except SessionLapsed:
            self._replace()
