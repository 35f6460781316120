"""The log as Arrow batches, read by executors from wherever its segments are."""
