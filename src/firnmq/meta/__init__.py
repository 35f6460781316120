"""Meta: the small, ordered, watched store of what exists, and a node's cache of it."""

from firnmq.meta.api import (
    Changes,
    Compacted,
    Compare,
    Entry,
    Event,
    MetaStore,
    Session,
    SessionLapsed,
    Snapshot,
    TxnConflict,
    Watch,
)
from firnmq.meta.cache import CacheBehind, MetaCache
from firnmq.meta.nodes import NodeIdentity, register_node
from firnmq.meta.opening import open_meta_store
from firnmq.meta.shards import MetaShards
from firnmq.meta.sqlite import SqliteMetaStore

__all__ = [
    "CacheBehind",
    "Changes",
    "Compacted",
    "Compare",
    "Entry",
    "Event",
    "MetaCache",
    "MetaShards",
    "MetaStore",
    "NodeIdentity",
    "Session",
    "SessionLapsed",
    "Snapshot",
    "SqliteMetaStore",
    "TxnConflict",
    "Watch",
    "open_meta_store",
    "register_node",
]
