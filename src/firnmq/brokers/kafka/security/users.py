"""The users of a node, kept in its key-value store."""

from __future__ import annotations

import msgspec

from firnmq.brokers.kafka.security.credentials import PASSWORD_CHARS_MAX, ScramCredential
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import Corruption, InvalidArgument, NotFound

_USER = b"u"
_AFTER_USERS = b"v"
USER_NAME_CHARS_MAX = 255


class UserNotFound(NotFound):
    kind = "user"


def check_user_name(name: str) -> str:
    if not 0 < len(name) <= USER_NAME_CHARS_MAX or not name.isprintable():
        raise InvalidArgument(
            "user", f"must be 1 to {USER_NAME_CHARS_MAX} printable characters, not {name!r}"
        )
    return name


class UserStore:
    """Users by name. A change is synced before it is acknowledged, and holds for the next
    authentication; connections that are open stay open."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv

    def put(self, name: str, password: str) -> bool:
        """Adds a user or gives one another password; returns whether the user is new."""
        if not 0 < len(password) <= PASSWORD_CHARS_MAX:
            raise InvalidArgument("password", f"must have 1 to {PASSWORD_CHARS_MAX} characters")
        key = _key(name)
        is_new = self._kv.get(Family.STATE, key) is None
        credential = ScramCredential.of_password(password)
        with self._kv.batch() as batch:
            batch.put(Family.STATE, key, msgspec.msgpack.encode(credential))
        self._kv.sync()
        return is_new

    def get(self, name: str) -> ScramCredential | None:
        value = self._kv.get(Family.STATE, _USER + name.encode())
        if value is None:
            return None
        try:
            return msgspec.msgpack.decode(value, type=ScramCredential)
        except msgspec.MsgspecError as error:
            raise Corruption(str(error), where=f"user entry {name!r}") from error

    def remove(self, name: str) -> None:
        key = _key(name)
        if self._kv.get(Family.STATE, key) is None:
            raise UserNotFound(name)
        with self._kv.batch() as batch:
            batch.delete(Family.STATE, key)
        self._kv.sync()

    def names(self) -> list[str]:
        rows = self._kv.items(Family.STATE, _USER, _AFTER_USERS)
        return sorted(key[len(_USER) :].decode() for key, _ in rows)


def _key(name: str) -> bytes:
    return _USER + check_user_name(name).encode()
