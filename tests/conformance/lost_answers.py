"""Commits of the metadata that are reported as failed, whether they happened or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from firnmq.errors import StorageFailed
from firnmq.meta import MetaStore, SqliteMetaStore


class _Connection:
    """A connection to the real database whose commits fail."""

    def __init__(self, db: sqlite3.Connection, plan: LostAnswers) -> None:
        self._db = db
        self._plan = plan
        self._is_writing = False

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql.startswith("BEGIN"):
            self._is_writing = sql.endswith("IMMEDIATE")
        if sql == "COMMIT" and self._is_writing and self._plan.is_next():
            self._db.execute("COMMIT" if self._plan.happens else "ROLLBACK")
            self._plan.lost_count += 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(sql, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class LostAnswers:
    """What becomes of commits meanwhile."""

    def __init__(self, *, happens: bool, is_blind: bool, after: int) -> None:
        self._passed_left = after
        self.happens = happens
        self.is_blind = is_blind
        """Whether the database cannot be opened after a commit has failed."""
        self.is_on = True
        self.lost_count = 0

    def is_next(self) -> bool:
        """Whether this commit fails."""
        self._passed_left -= 1
        return self.is_on and self._passed_left < 0


@contextmanager
def lost_answers(
    store: MetaStore, *, happens: bool, is_blind: bool = False, after: int = 0
) -> Iterator[LostAnswers]:
    """Makes commits fail, but for some first ones; they happen nevertheless, or do not."""
    assert isinstance(store, SqliteMetaStore)
    plan = LostAnswers(happens=happens, is_blind=is_blind, after=after)
    connect = store._connect

    def connected() -> Any:
        if plan.is_on and plan.is_blind and plan.lost_count:
            raise StorageFailed("the meta store", OSError(5, "Input/output error"))
        return _Connection(connect(), plan)

    is_one = store._write_db is store._db
    store._write_db = _Connection(store._write_db, plan)  # type: ignore[assignment]
    if is_one:
        store._db = store._write_db
    store._connect = connected  # type: ignore[method-assign]
    try:
        yield plan
    finally:
        plan.is_on = False
        store._connect = connect  # type: ignore[method-assign]
