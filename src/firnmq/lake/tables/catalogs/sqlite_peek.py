"""A look into the embedded catalog without PyIceberg, whose import takes longer than most plans.

Whether a topic has a table, and of which mode, is asked of every read. The catalog is a SQLite
file with the layout that Iceberg's JDBC catalogs share; whatever is not as expected there is left
to PyIceberg to find out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from firnmq.errors import FirnError
from firnmq.lake.plans.plan import TablePlace
from firnmq.lake.tables.catalogs.catalog import CATALOG_NAME, TOPICS, table_name, warehouse_store

SQLITE: Final = "sqlite:///"
_FILE: Final = "file://"
_BUSY_S: Final = 5.0
_QUERY: Final = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)


class Peeked(Enum):
    """What a look can find, besides a place."""

    NO_TABLE = "no table"
    NOT_KNOWN = "not known"


class _Properties(msgspec.Struct):
    mode: str = msgspec.field(name="firn.mode")


class _Metadata(msgspec.Struct):
    """Of a table, as far as it matters here."""

    properties: _Properties


def peek_table(place: TablePlace, topic: str) -> str | Peeked:
    """Where the newest metadata of the topic's table is."""
    if not place.catalog.startswith(SQLITE):
        return Peeked.NOT_KNOWN
    path = Path(place.catalog.removeprefix(SQLITE)).absolute()
    wanted = (CATALOG_NAME, TOPICS, table_name(topic))
    try:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        ) as opened:
            row = opened.execute(_QUERY, wanted).fetchone()
    except sqlite3.Error:
        return Peeked.NOT_KNOWN
    return Peeked.NO_TABLE if row is None else str(row[0])


def peek_mode(place: TablePlace, topic: str, options: Mapping[str, str]) -> str | Peeked:
    """What the topic's table holds: `raw` or `typed`."""
    found = peek_table(place, topic)
    if isinstance(found, Peeked):
        return found
    try:
        raw = _content(found, options)
        return msgspec.json.decode(raw, type=_Metadata).properties.mode
    except (FirnError, OSError, msgspec.MsgspecError):
        return Peeked.NOT_KNOWN


def _content(address: str, options: Mapping[str, str]) -> bytes:
    if address.startswith(_FILE):
        return Path(address.removeprefix(_FILE)).read_bytes()
    location, folder, name = address.rsplit("/", 2)
    with closing(warehouse_store(location, options)) as store:
        key = f"{folder}/{name}"
        return bytes(store.get_range(key, 0, store.head(key).size))
