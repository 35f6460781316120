"""The tables of a SQLite meta store, and their rows as values of the API."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from firnmq.errors import Corruption, DiskFull, FirnError, TimedOut, storage_failure
from firnmq.meta.api import Entry, Event

WHERE = "the meta store"

SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    create_revision INTEGER NOT NULL,
    mod_revision INTEGER NOT NULL,
    session INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_of_sessions ON entries (session) WHERE session > 0;
CREATE TABLE IF NOT EXISTS changes (
    revision INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB,
    create_revision INTEGER NOT NULL,
    PRIMARY KEY (revision, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ttl_ms INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO counters VALUES ('format', 1), ('revision', 0), ('oldest', 1);
"""
FORMAT = 1
IS_ALIVE = "deadline_ms > ?1 AND deadline_ms <= ?1 + ttl_ms"
"""Deadlines are by the steady clock, which restarts with the machine: a deadline that is farther
away than a session lasts is from before the restart, and so is its session."""


@contextmanager
def transaction(db: sqlite3.Connection, kind: str) -> Iterator[None]:
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")
        raise


def get(db: sqlite3.Connection, key: str) -> Entry | None:
    row = db.execute(
        "SELECT key, value, create_revision, mod_revision FROM entries WHERE key = ?", (key,)
    ).fetchone()
    return None if row is None else entry(row)


def format_of(db: sqlite3.Connection) -> int | None:
    """The format of the database; 0 if it is not ours, None if it is empty."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    columns = {column for _, column, *_ in db.execute("PRAGMA table_info(counters)")}
    if not {"name", "value"} <= columns:
        return 0
    row = db.execute("SELECT value FROM counters WHERE name = 'format'").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def explained(version: int | None) -> str:
    if not version:
        return "is a database of another program; choose another directory"
    return (
        f"has format {version}, this version of firnmq reads {FORMAT}; "
        "open the directory with the version that made it"
    )


def counter(db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
    return int(row[0])


def compact(db: sqlite3.Connection, oldest: int) -> None:
    if oldest > counter(db, "oldest"):
        db.execute("DELETE FROM changes WHERE revision < ?", (oldest,))
        db.execute("UPDATE counters SET value = ? WHERE name = 'oldest'", (oldest,))


def entry(row: tuple[str, bytes, int, int]) -> Entry:
    key, value, create_revision, mod_revision = row
    return Entry(key=key, value=value, create_revision=create_revision, mod_revision=mod_revision)


def event(row: tuple[int, str, bytes | None, int]) -> Event:
    revision, key, value, created = row
    if value is None:
        return Event(key=key, revision=revision, entry=None)
    made = Entry(key=key, value=value, create_revision=created, mod_revision=revision)
    return Event(key=key, revision=revision, entry=made)


def after(prefix: str) -> str:
    """Above every key with the prefix: keys are printable ASCII."""
    return prefix + "\x7f"


def typed(error: sqlite3.Error, path: Path) -> FirnError:
    code: Any = getattr(error, "sqlite_errorcode", None)
    match code & 0xFF if isinstance(code, int) else None:
        case sqlite3.SQLITE_FULL:
            return DiskFull(WHERE, error)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Corruption(str(error), where=str(path))
        case sqlite3.SQLITE_BUSY:
            return TimedOut(f"another process has {path} locked; nothing was changed")
        case _:
            return storage_failure(WHERE, error)
