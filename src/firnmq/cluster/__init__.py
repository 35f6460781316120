"""Several nodes as one: replication of segments, and what decides about it."""
