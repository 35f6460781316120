"""The leader of a segment: marks, waiting requests, in-sync replicas, planned seals."""
