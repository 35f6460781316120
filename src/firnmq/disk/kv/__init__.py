"""The key-value store: RocksDB and its journal."""

from firnmq.disk.kv.batch import Family, KeyRange, KvBatch
from firnmq.disk.kv.store import KeyValueStore

__all__ = ["Family", "KeyRange", "KeyValueStore", "KvBatch"]
