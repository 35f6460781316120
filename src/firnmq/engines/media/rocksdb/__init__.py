"""The RocksDB engine: shards as rows of the node's key-value store."""

from firnmq.engines.media.rocksdb.engine import RowLayout, rocksdb_engine

__all__ = ["RowLayout", "rocksdb_engine"]
