"""The users of a node, kept in its key-value store."""

from __future__ import annotations

import secrets

import msgspec

from firnmq.brokers.security.credentials import (
    PASSWORD_CHARS_MAX,
    Digest,
    ScramCredential,
)
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import Corruption, InvalidArgument, NotFound

_USER = b"u"
_AFTER_USERS = b"v"
_DECOY_SECRET = b"S"
_SECRET_BYTES = 32
USER_NAME_CHARS_MAX = 255


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
        return ScramCredential(
            salt=self.salt,
            iterations=self.iterations,
            stored_key=self.stored_key,
            server_key=self.server_key,
        )


class UserStore:
    """Users by name. A change is synced before it is acknowledged, and holds for the next
    authentication."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv

    def put(self, name: str, password: str) -> bool:
        """Adds a user or gives one another password; returns whether the user is new."""
        if not 0 < len(password) <= PASSWORD_CHARS_MAX:
            raise InvalidArgument("password", f"must have 1 to {PASSWORD_CHARS_MAX} characters")
        key = _key(name)
        is_new = self._kv.get(Family.STATE, key) is None
        plain = ScramCredential.of_password(password)
        record = UserRecord(
            salt=plain.salt,
            iterations=plain.iterations,
            stored_key=plain.stored_key,
            server_key=plain.server_key,
            sha512=ScramCredential.of_password(password, digest="sha512"),
        )
        with self._kv.batch() as batch:
            batch.put(Family.STATE, key, msgspec.msgpack.encode(record))
        self._kv.sync()
        return is_new

    def get(self, name: str, digest: Digest = "sha256") -> ScramCredential | None:
        """The credential for a hash; None if there is no such user, or none for this hash."""
        value = self._kv.get(Family.STATE, _USER + name.encode())
        if value is None:
            return None
        try:
            return msgspec.msgpack.decode(value, type=UserRecord).credential(digest)
        except msgspec.MsgspecError as error:
            raise Corruption(str(error), where=f"user entry {name!r}") from error

    def remove(self, name: str) -> None:
        key = _key(name)
        if self._kv.get(Family.STATE, key) is None:
            raise UserNotFound(name)
        with self._kv.batch() as batch:
            batch.delete(Family.STATE, key)
        self._kv.sync()

    def decoy_secret(self) -> bytes:
        """What salts of unknown users are made of. It is kept, since a salt that changes with a
        restart would tell that there is no such user."""
        kept = self._kv.get(Family.STATE, _DECOY_SECRET)
        if kept is not None:
            return kept
        made = secrets.token_bytes(_SECRET_BYTES)
        with self._kv.batch() as batch:
            batch.put(Family.STATE, _DECOY_SECRET, made)
        self._kv.sync()
        return made

    def names(self) -> list[str]:
        rows = self._kv.items(Family.STATE, _USER, _AFTER_USERS)
        return sorted(key[len(_USER) :].decode() for key, _ in rows)


def _key(name: str) -> bytes:
    return _USER + check_user_name(name).encode()
