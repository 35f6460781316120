"""The meta store of one machine, in a file of SQLite."""

from firnmq.meta.sqlite.store import SqliteMetaStore, SqliteSession, SqliteWatch

__all__ = ["SqliteMetaStore", "SqliteSession", "SqliteWatch"]
