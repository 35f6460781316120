"""Which client began each transactional id, and which ids may be forgotten to make room.

Only an id that never had a transaction and whose producer's connection is closed may be forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from firnmq.brokers.kafka.transactions.config import TransactionConfig


@dataclass(slots=True)
class _Entry:
    owner: str
    has_begun: bool = False
    """It has had a transaction."""
    is_idle: bool = False
    """It is saved and no save is under way."""
    connections: set[Hashable] = field(default_factory=set)
    """Open connections whose newest transactional id is this one."""
    pending_bytes: int = 0
    """Of group offsets in its open transaction."""

    @property
    def is_evictable(self) -> bool:
        return self.is_idle and not self.has_begun and not self.connections


class IdShares:
    """Counts of ids by client. Plain values that one event loop owns.

    A client is an authenticated user or, without authentication, an address. Every operation
    takes the same time however many ids and clients there are.
    """

    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self._entries: dict[str, _Entry] = {}
        self._owned_count: Counter[str] = Counter()
        self._unused_count: Counter[str] = Counter()
        """Client → its ids that never had a transaction."""
        self._evictable: dict[str, dict[str, None]] = {}
        """Client → ids, the one that has been evictable for longest first."""
        self._clients_with: dict[int, dict[str, None]] = {}
        """Number of evictable ids → the clients that have so many."""
        self._most = 0
        """The greatest number of evictable ids that a client has."""
        self._id_of: dict[Hashable, str] = {}
        """Open connection → the id that it initialised last."""
        self._pending_bytes: Counter[str] = Counter()
        self._total_pending_bytes = 0

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def limit_reached_by(self, owner: str) -> int | None:
        """The limit per client that keeps the client from beginning another id; None if none."""
        config = self._config
        if self._owned_count[owner] >= config.client_id_count_max:
            return config.client_id_count_max
        if self._unused_count[owner] >= config.client_unused_id_count_max:
            return config.client_unused_id_count_max
        return None

    def oldest_evictable(self, owner: str | None = None) -> str | None:
        """The client's id that has been evictable for longest; without a client, the one of the
        client that has most of them."""
        if owner is None:
            if not self._most:
                return None
            owner = next(iter(self._clients_with[self._most]))
        return next(iter(self._evictable.get(owner, ())), None)

    def has_room(self, transactional_id: str, size: int) -> bool:
        """Whether so many bytes of group offsets may be added to a transaction."""
        entry, config = self._entries.get(transactional_id), self._config
        if entry is None:
            return True  # The transaction answers that there is no such id.
        of_client = self._pending_bytes[entry.owner] + size
        of_all = self._total_pending_bytes + size
        return of_client <= config.client_offset_bytes_max and of_all <= config.offset_bytes_max

    def set_pending(self, transactional_id: str, size: int) -> None:
        """The id's open transaction has so many bytes of group offsets."""
        entry = self._entries.get(transactional_id)
        if entry is not None and size != entry.pending_bytes:
            more = size - entry.pending_bytes
            entry.pending_bytes = size
            self._total_pending_bytes += more
            _add(self._pending_bytes, entry.owner, more)

    def add(self, transactional_id: str, owner: str) -> None:
        """Counts an id from now on, unless it is counted already."""
        if transactional_id not in self._entries:
            self._entries[transactional_id] = _Entry(owner)
            self._owned_count[owner] += 1
            self._unused_count[owner] += 1

    def remove(self, transactional_id: str) -> None:
        entry = self._entries.get(transactional_id)
        if entry is None:
            return
        self._update(transactional_id, entry, has_begun=entry.has_begun, is_idle=False)
        self.set_pending(transactional_id, 0)
        del self._entries[transactional_id]
        _add(self._owned_count, entry.owner, -1)
        if not entry.has_begun:
            _add(self._unused_count, entry.owner, -1)
        for connection in entry.connections:
            del self._id_of[connection]

    def update(self, transactional_id: str, *, has_begun: bool, is_idle: bool) -> None:
        """Notes what has become of an id."""
        entry = self._entries.get(transactional_id)
        if entry is not None:
            self._update(transactional_id, entry, has_begun=has_begun, is_idle=is_idle)

    def hold(self, transactional_id: str, connection: Hashable) -> None:
        """An open connection initialises the id, which stays until the connection is closed or
        initialises another one: a client could hold its whole share with one connection."""
        if self._id_of.get(connection) != transactional_id:
            self.release(connection)
            entry = self._entries[transactional_id]
            self._id_of[connection] = transactional_id
            entry.connections.add(connection)
            self._file(transactional_id, entry)

    def release(self, connection: Hashable) -> None:
        """The connection is closed."""
        transactional_id = self._id_of.pop(connection, None)
        if transactional_id is not None:
            entry = self._entries[transactional_id]
            entry.connections.discard(connection)
            self._file(transactional_id, entry)

    def _update(
        self, transactional_id: str, entry: _Entry, *, has_begun: bool, is_idle: bool
    ) -> None:
        if has_begun and not entry.has_begun:
            _add(self._unused_count, entry.owner, -1)
            entry.has_begun = True
        entry.is_idle = is_idle
        self._file(transactional_id, entry)

    def _file(self, transactional_id: str, entry: _Entry) -> None:
        """Puts the id where `oldest_evictable` finds it, or takes it from there."""
        owner = entry.owner
        theirs = self._evictable.get(owner, {})
        if entry.is_evictable is (transactional_id in theirs):
            return
        before = len(theirs)
        if entry.is_evictable:
            self._evictable[owner] = theirs
            theirs[transactional_id] = None
        else:
            del theirs[transactional_id]
            if not theirs:
                del self._evictable[owner]
        self._move(owner, before, len(theirs))

    def _move(self, owner: str, before: int, after: int) -> None:
        """The client has one evictable id more or less."""
        if before:
            peers = self._clients_with[before]
            del peers[owner]
            if not peers:
                del self._clients_with[before]
        if after:
            self._clients_with.setdefault(after, {})[owner] = None
        if after > self._most or (before == self._most and before not in self._clients_with):
            self._most = after


def _add(counts: Counter[str], owner: str, number: int) -> None:
    counts[owner] += number
    if not counts[owner]:
        del counts[owner]
