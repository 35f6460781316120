"""Reading a log: records by offset, key, tag and time, stored batches, surveys."""
