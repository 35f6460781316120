"""FirnMQ: a durable log in your process or on a node, queryable by offset, key, tag and time."""

from firnmq.engines import AdapterOffsetStrategy, Appended, Page
from firnmq.errors import FirnError
from firnmq.record import NewRecord, Record
from firnmq.server import AsyncStore, Store, open_async
from firnmq.server import open_store as open

__all__ = [
    "AdapterOffsetStrategy",
    "Appended",
    "AsyncStore",
    "FirnError",
    "NewRecord",
    "Page",
    "Record",
    "Store",
    "open",
    "open_async",
]
