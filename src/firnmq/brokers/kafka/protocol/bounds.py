"""How large a request of each kind may be, and how much of one is read or written at a time."""

from __future__ import annotations

from typing import Final

from firnmq.brokers.kafka.protocol.primitives import ELEMENT_COUNT_MAX
from firnmq.brokers.kafka.protocol.versions import ApiKey

REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of any request but Produce, which alone carries records. The largest of the others is an
OffsetCommit: 50,000 partitions take 2 MB, without what the client notes beside the offsets."""

_ELEMENT_COUNTS_MAX: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 10_000,
    ApiKey.JOIN_GROUP: 250,
    ApiKey.SYNC_GROUP: 20_000,
    ApiKey.LEAVE_GROUP: 3_000,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 50_000,
    ApiKey.CREATE_ACLS: 10_000,
    ApiKey.ALTER_CLIENT_QUOTAS: 5_000,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 500,
    ApiKey.DELETE_ACLS: 2_000,
}
"""Where less than for all others is enough. A produced batch is several objects while it waits for
the disk. Requests about groups are handled by a state machine in one step, which cannot give way;
their elements are protocols or members: clients know two or three protocols, and a group has some
thousand members. A heartbeat of a consumer group names topics and every partition that the member
owns. A cluster has 10,000 rules, each of which is compared with each filter."""

SHORT_ELEMENT_COUNT_MAX: Final = 1_000
"""Elements that are decoded or encoded in the event loop, about five milliseconds. A message
with more is left to a thread."""
SHORT_BYTES_MAX: Final = 64 * 1024
"""Bytes of a request without records that is decoded in the event loop: a Fetch of 2,000 partitions
takes as many."""


def element_count_max_of(api_key: int) -> int:
    """Array elements and tagged fields that a request of this API may have."""
    return _ELEMENT_COUNTS_MAX.get(api_key, ELEMENT_COUNT_MAX)


def bytes_max_of(api_key: int) -> int | None:
    """Bytes that a request of this API may have; None if only frames have a limit."""
    return None if api_key == ApiKey.PRODUCE else REQUEST_BYTES_MAX
