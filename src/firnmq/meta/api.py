"""What a meta store does: versioned keys, transactions with compares, watches, sessions.

Revisions number the changes of the whole store. Every transaction that changes something takes the
next one, so a reader that has seen revision N and watches from N + 1 misses nothing. The interface
is a subset of etcd's, under the same names (mod_revision, create_revision, leases) and within
etcd's limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from firnmq.errors import FirnError

KEY_BYTES_MAX = 1024
VALUE_BYTES_MAX = 1024 * 1024
"""etcd refuses requests above 1.5 MiB."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A key's value and its revisions."""

    key: str
    value: bytes
    create_revision: int
    """Revision at which the key was last created."""
    mod_revision: int
    """Revision at which the value was written."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Entries as they were at one revision, in key order."""

    revision: int
    entries: tuple[Entry, ...]


class CompareField(Enum):
    """The revision of a key that a condition compares."""

    MOD = "mod_revision"
    CREATE = "create_revision"


class Compare(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A condition of a transaction: the key's revision is this one; 0 means there is no key."""

    key: str
    revision: int
    field: CompareField = CompareField.MOD

    @classmethod
    def absent(cls, key: str) -> Compare:
        return cls(key=key, revision=0)

    @classmethod
    def unchanged(cls, entry: Entry) -> Compare:
        return cls(key=entry.key, revision=entry.mod_revision)

    @classmethod
    def same_life(cls, entry: Entry) -> Compare:
        """The key was not deleted and recreated since; its value may have changed."""
        return cls(key=entry.key, revision=entry.create_revision, field=CompareField.CREATE)


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One key's change: its new entry, or None where it was deleted."""

    key: str
    revision: int
    entry: Entry | None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """All changes of the watched keys up to a revision, in order."""

    revision: int
    """The watcher has now seen every change up to here."""
    events: tuple[Event, ...]


class TxnConflict(FirnError):
    """A compare failed; nothing was changed. Read again and retry."""

    def __init__(self, compare: Compare, found: int) -> None:
        super().__init__(
            f"{compare.key} has {compare.field.value} {found}, expected {compare.revision}"
        )
        self.compare = compare
        self.found = found


class Compacted(FirnError):
    """The changes asked for are no longer kept; read a snapshot and watch from there."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"changes from revision {asked} are gone, the oldest kept is {oldest}")
        self.asked = asked
        self.oldest = oldest


class SessionLapsed(FirnError):
    """The session's time to live ran out, or it was closed: its keys are deleted. Begin another."""

    def __init__(self, session_id: int) -> None:
        super().__init__(f"session {session_id} has lapsed; what it had put is deleted")
        self.session_id = session_id


class Session(Protocol):
    """A lease: keys put with it are deleted when it is closed or lapses."""

    @property
    def session_id(self) -> int: ...

    def keep_alive(self) -> None:
        """Restarts the time to live; SessionLapsed if it has run out."""

    def close(self) -> None:
        """Ends it now. Closing twice is no error."""


class Watch(Protocol):
    """A position in the sequence of changes. Not safe with threads."""

    def take(self, timeout_s: float) -> Changes | None:
        """The changes since the last call; None if there are none within the time.

        Raises Compacted when those changes are no longer kept, Closed after close.
        """

    def close(self) -> None: ...


class MetaStore(Protocol):
    """Safe with threads; every call blocks until its answer is durable."""

    @property
    def txn_ops_max(self) -> int:
        """Puts, deletes and compares that fit one transaction; etcd's default is 128 of each."""

    def get(self, key: str) -> Entry | None: ...

    def range(self, prefix: str) -> Snapshot:
        """Every key with the prefix, all at one revision."""

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        """Changes all or nothing and returns the revision; TxnConflict if a compare fails.

        Keys that are put belong to the session, if one is given. Deleting a missing key is no
        error. After an error nothing has changed, unless it is a StorageFailed with
        `is_outcome_unknown`: then the next successful read shows the outcome.
        """

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """Every change of keys with the prefix from the revision on.

        Raises Compacted when those changes are no longer kept.
        """

    def session(self, ttl_s: float) -> Session: ...

    def resume_session(self, session_id: int) -> Session:
        """A session that was begun elsewhere. Whether it goes on is found when it is used."""

    def close(self) -> None: ...
