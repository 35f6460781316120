"""FirnMQ: a durable log in your process or on a node, queryable by offset, key, tag and time."""

# Names are imported when they are first used: the command line must be able to answer --help
# without loading storage engines.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firnmq.engines import AdapterOffsetStrategy, Appended, Page
    from firnmq.errors import FirnError
    from firnmq.record import NewRecord, Record
    from firnmq.server import AsyncStore, Store, open_async
    from firnmq.server import open_store as open
    from firnmq.version import __version__

__all__ = [
    "AdapterOffsetStrategy",
    "Appended",
    "AsyncStore",
    "FirnError",
    "NewRecord",
    "Page",
    "Record",
    "Store",
    "__version__",
    "open",
    "open_async",
]

_SOURCES = {
    "AdapterOffsetStrategy": ("firnmq.engines", "AdapterOffsetStrategy"),
    "Appended": ("firnmq.engines", "Appended"),
    "AsyncStore": ("firnmq.server", "AsyncStore"),
    "FirnError": ("firnmq.errors", "FirnError"),
    "NewRecord": ("firnmq.record", "NewRecord"),
    "Page": ("firnmq.engines", "Page"),
    "Record": ("firnmq.record", "Record"),
    "Store": ("firnmq.server", "Store"),
    "__version__": ("firnmq.version", "__version__"),
    "open": ("firnmq.server", "open_store"),
    "open_async": ("firnmq.server", "open_async"),
}


def __getattr__(name: str) -> object:
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _SOURCES[name]
    found: object = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
