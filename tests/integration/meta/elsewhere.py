"""A shared store whose changes another process makes, while this one reads and watches."""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firnmq.meta import Compare, Entry, Session, Snapshot, SqliteMetaStore, Watch
from firnmq.meta.sqlite import SqliteSession

ROOT = Path(__file__).resolve().parents[3]
_LENGTH = struct.Struct("<I")


class OtherProcess:
    """Does what it is told with a store of its own; one request at a time."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )

    def call(self, name: str, *arguments: object) -> Any:
        with self._lock:
            _send(self._control, (name, arguments))
            error, answer = _receive(self._control)
        if error is not None:
            raise _error_of(*error)
        return answer

    def stop(self) -> None:
        self._control.close()
        self._process.wait()


class StoreOfTwo:
    """A MetaStore: changes are made over there, everything else here."""

    def __init__(self, path: Path, other: OtherProcess) -> None:
        self._other = other
        other.call("open", path)
        self._here = SqliteMetaStore(path, is_shared=True)
        self.txn_ops_max = self._here.txn_ops_max

    def get(self, key: str) -> Entry | None:
        return self._here.get(key)

    def range(self, prefix: str) -> Snapshot:
        return self._here.range(prefix)

    def watch(self, prefix: str, from_revision: int) -> Watch:
        return self._here.watch(prefix, from_revision)

    def session(self, ttl_s: float) -> Session:
        return SqliteSession(self._here, self._other.call("session", ttl_s))

    def resume_session(self, session_id: int) -> Session:
        return SqliteSession(self._here, session_id)

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        number = None if session is None else session.session_id
        return int(self._other.call("txn", list(compares), puts, list(deletes), number))

    def compact(self, revision: int) -> None:
        self._other.call("compact", revision)

    def close(self) -> None:
        self._here.close()
        self._other.call("close")


class _Served:
    """The other process's side."""

    def __init__(self) -> None:
        self._store: SqliteMetaStore

    def open(self, path: Path) -> None:
        self._store = SqliteMetaStore(path, is_shared=True)

    def txn(
        self, compares: list[Compare], puts: Any, deletes: list[str], number: int | None
    ) -> int:
        session = None if number is None else SqliteSession(self._store, number)
        return self._store.txn(compares, puts, deletes, session)

    def session(self, ttl_s: float) -> int:
        return self._store.session(ttl_s).session_id

    def compact(self, revision: int) -> None:
        self._store.compact(revision)

    def close(self) -> None:
        self._store.close()


def _send(to: socket.socket, what: object) -> None:
    data = pickle.dumps(what)
    to.sendall(_LENGTH.pack(len(data)) + data)


def _receive(source: socket.socket) -> Any:
    header = source.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(header) < _LENGTH.size:
        raise EOFError
    return pickle.loads(source.recv(_LENGTH.unpack(header)[0], socket.MSG_WAITALL))


def _error_of(kind: type[Exception], arguments: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    """Errors take other arguments than the text that they pass on, so pickle cannot make them."""
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(fields)
    return error


def _serve(control: socket.socket) -> None:
    served = _Served()
    while True:
        try:
            name, arguments = _receive(control)
        except EOFError:
            return
        try:
            _send(control, (None, getattr(served, name)(*arguments)))
        except Exception as error:
            _send(control, ((type(error), error.args, error.__dict__), None))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
