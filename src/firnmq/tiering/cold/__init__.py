"""Reading segments that are only in the object store: medium, index, cache, read-ahead."""
