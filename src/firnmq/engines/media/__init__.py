"""Where the bytes of segments are: in memory, in RocksDB, in files."""
