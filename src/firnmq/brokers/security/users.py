"""The users of a node that is alone, kept in its key-value store; those of a cluster, kept in the
metadata that its nodes share."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from firnmq.brokers.security.credentials import (
    PASSWORD_CHARS_MAX,
    Digest,
    ScramCredential,
)
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import Corruption, InvalidArgument, NotFound
from firnmq.eventlog import EventLogger
from firnmq.meta import Event, MetaCache, MetaStore
from firnmq.meta.records import USERS, UserEntry, decode, encode

_USER = b"u"
_AFTER_USERS = b"v"
_DECOY_SECRET = b"S"
_SECRET_BYTES = 32
_SEEN_WITHIN_S = 30.0
"""Seconds until the node's cache of the metadata must show a change."""
USER_NAME_CHARS_MAX = 255
DIGESTS: Final[tuple[Digest, ...]] = ("sha256", "sha512")
_log = EventLogger("security")


class UserNotFound(NotFound):
    kind = "user"


def check_user_name(name: str) -> str:
    if not 0 < len(name) <= USER_NAME_CHARS_MAX or not name.isprintable():
        raise InvalidArgument(
            "user", f"must be 1 to {USER_NAME_CHARS_MAX} printable characters, not {name!r}"
        )
    return name


class UserRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a user: the credential of SCRAM-SHA-256, and beside it that of SCRAM-SHA-512,
    which users of earlier versions lack until they are given a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    sha512: ScramCredential | None = None

    def credential(self, digest: Digest) -> ScramCredential | None:
        if digest == "sha512":
            return self.sha512
        if not self.stored_key:  # Made by a client that gave only the other one.
            return None
        return ScramCredential(
            salt=self.salt,
            iterations=self.iterations,
            stored_key=self.stored_key,
            server_key=self.server_key,
        )


class UserRows(Protocol):
    """Where users are kept. A change returns once it is durable."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def user_keys(self) -> list[bytes]: ...


class KvUserRows:
    """UserRows of a node that is alone."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv

    def get(self, key: bytes) -> bytes | None:
        return self._kv.get(Family.STATE, key)

    def put(self, key: bytes, value: bytes) -> None:
        with self._kv.batch() as batch:
            batch.put(Family.STATE, key, value)
        self._kv.sync()

    def delete(self, key: bytes) -> None:
        with self._kv.batch() as batch:
            batch.delete(Family.STATE, key)
        self._kv.sync()

    def user_keys(self) -> list[bytes]:
        return [key for key, _ in self._kv.items(Family.STATE, _USER, _AFTER_USERS)]

    def shared(self) -> dict[str, bytes]:
        """The same rows as the metadata of a cluster has them."""
        found = {}
        for key in (*self.user_keys(), _DECOY_SECRET):
            value = self.get(key)
            if value is not None:
                found[_shared_key(key)] = encode(UserEntry(key=key, value=value))
        return found


class MetaUserRows:
    """UserRows of a cluster. Safe with threads."""

    def __init__(self, meta: MetaStore, cache: MetaCache) -> None:
        self._meta = meta
        self._cache = cache
        self._entries: dict[str, UserEntry] = {}
        self.on_removed: Callable[[str], None] = lambda name: None
        """Told of users that are gone, in the cache's thread."""
        cache.listen(USERS, self._follow)

    def get(self, key: bytes) -> bytes | None:
        found = self._entries.get(_shared_key(key))
        return None if found is None else found.value

    def put(self, key: bytes, value: bytes) -> None:
        entry = encode(UserEntry(key=key, value=value))
        revision = self._meta.txn((), {_shared_key(key): entry})
        self._cache.wait_for_revision(revision, _SEEN_WITHIN_S)

    def delete(self, key: bytes) -> None:
        revision = self._meta.txn((), None, [_shared_key(key)])
        self._cache.wait_for_revision(revision, _SEEN_WITHIN_S)

    def user_keys(self) -> list[bytes]:
        found = [entry.key for entry in list(self._entries.values())]
        return [key for key in found if key.startswith(_USER)]

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            if event.entry is not None:
                try:
                    self._entries[event.key] = decode(event.entry, UserEntry)
                except Corruption as error:  # Other users can still log in.
                    self._entries.pop(event.key, None)
                    _log.error("user_unreadable", key=event.key, error=str(error))
                continue
            gone = self._entries.pop(event.key, None)
            if gone is not None and gone.key.startswith(_USER):
                self.on_removed(gone.key[len(_USER) :].decode())


def _shared_key(key: bytes) -> str:
    """Names may have any characters, keys of the metadata only few."""
    return f"{USERS}{hashlib.sha256(key).hexdigest()}"


class UserStore:
    """Users by name. A change is synced before it is acknowledged, and holds for the next
    authentication."""

    def __init__(self, rows: UserRows | KeyValueStore) -> None:
        self._rows: UserRows = KvUserRows(rows) if isinstance(rows, KeyValueStore) else rows

    def put(self, name: str, password: str) -> bool:
        """Adds a user or gives one another password; returns whether the user is new."""
        if not 0 < len(password) <= PASSWORD_CHARS_MAX:
            raise InvalidArgument("password", f"must have 1 to {PASSWORD_CHARS_MAX} characters")
        key = _key(name)
        is_new = self._rows.get(key) is None
        plain = ScramCredential.of_password(password)
        record = UserRecord(
            salt=plain.salt,
            iterations=plain.iterations,
            stored_key=plain.stored_key,
            server_key=plain.server_key,
            sha512=ScramCredential.of_password(password, digest="sha512"),
        )
        self._rows.put(key, msgspec.msgpack.encode(record))
        return is_new

    def put_credential(self, name: str, credential: ScramCredential | None, digest: Digest) -> None:
        """Gives a user another credential for one hash, or, with None, takes it away; a user
        without any is removed. UserNotFound if there is nothing to take away."""
        kept = {each: self.get(name, each) for each in DIGESTS}
        if credential is None and kept[digest] is None:
            raise UserNotFound(name)
        kept[digest] = credential
        first, other = kept["sha256"], kept["sha512"]
        if first is None and other is None:
            self._rows.delete(_key(name))
            return
        record = UserRecord(
            salt=b"" if first is None else first.salt,
            iterations=0 if first is None else first.iterations,
            stored_key=b"" if first is None else first.stored_key,
            server_key=b"" if first is None else first.server_key,
            sha512=other,
        )
        self._rows.put(_key(name), msgspec.msgpack.encode(record))

    def get(self, name: str, digest: Digest = "sha256") -> ScramCredential | None:
        """The credential for a hash; None if there is no such user, or none for this hash."""
        value = self._rows.get(_USER + name.encode())
        if value is None:
            return None
        try:
            return msgspec.msgpack.decode(value, type=UserRecord).credential(digest)
        except msgspec.MsgspecError as error:
            raise Corruption(str(error), where=f"user entry {name!r}") from error

    def remove(self, name: str) -> None:
        key = _key(name)
        if self._rows.get(key) is None:
            raise UserNotFound(name)
        self._rows.delete(key)

    def decoy_secret(self) -> bytes:
        """What salts of unknown users are made of. It is kept, since a salt that changes with a
        restart would tell that there is no such user."""
        kept = self._rows.get(_DECOY_SECRET)
        if kept is not None:
            return kept
        made = secrets.token_bytes(_SECRET_BYTES)
        self._rows.put(_DECOY_SECRET, made)
        return made

    def names(self) -> list[str]:
        return sorted(key[len(_USER) :].decode() for key in self._rows.user_keys())


def _key(name: str) -> bytes:
    return _USER + check_user_name(name).encode()
