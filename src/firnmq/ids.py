"""Types for plain numbers that must not be mixed up."""

from __future__ import annotations

from typing import NewType

Offset = NewType("Offset", int)
"""Logical number of a record in its shard."""

ShardUid = NewType("ShardUid", int)
"""Number of a shard, unique in a data directory and never used again."""

SegmentSeq = NewType("SegmentSeq", int)
"""Ordinal of a segment in its shard, from 0."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since 1970-01-01 UTC."""

Epoch = NewType("Epoch", int)
"""Fencing number of a segment's metadata."""
