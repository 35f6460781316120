"""What is kept of shards beside their records: specs, segments, deletions, transactions."""
