"""Which hand-written path serves which API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from firnmq.brokers.kafka.protocol.hot import fetch, fetch_response, groups, produce
from firnmq.brokers.kafka.protocol.primitives import Part
from firnmq.brokers.kafka.protocol.schema import Message
from firnmq.brokers.kafka.protocol.versions import ApiKey

Parser: TypeAlias = Callable[[memoryview, int, int], Message | None]
"""Called with the frame, the position behind the header, and the version."""

Builder: TypeAlias = Callable[[Any, int, int], list[Part] | None]
"""Called with the API's response message, the correlation id, and the version."""

PARSERS: Final[dict[int, Parser]] = {
    ApiKey.PRODUCE: produce.parse_produce,
    ApiKey.FETCH: fetch.parse_fetch,
    ApiKey.HEARTBEAT: groups.parse_heartbeat,
    ApiKey.OFFSET_COMMIT: groups.parse_offset_commit,
}

BUILDERS: Final[dict[int, Builder]] = {
    ApiKey.PRODUCE: produce.build_produce_response,
    ApiKey.FETCH: fetch_response.build_fetch_response,
    ApiKey.HEARTBEAT: groups.build_heartbeat_response,
    ApiKey.OFFSET_COMMIT: groups.build_offset_commit_response,
}
