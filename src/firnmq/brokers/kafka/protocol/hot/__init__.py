"""Hand-written paths for the calls that a broker spends its time on.

They are an optimization and nothing else: a parser gives the very message that the table-driven
codec would give, or None if anything about the bytes is unusual (tagged fields, damage, too many
elements), and then the table-driven codec judges. A builder likewise gives the same bytes or None.
So the rules of the protocol, and the error messages, exist once.
"""

from firnmq.brokers.kafka.protocol.hot.fetch import parse_fetch
from firnmq.brokers.kafka.protocol.hot.fetch_response import build_fetch_response
from firnmq.brokers.kafka.protocol.hot.groups import (
    build_heartbeat_response,
    build_offset_commit_response,
    parse_heartbeat,
    parse_offset_commit,
)
from firnmq.brokers.kafka.protocol.hot.header import parse_request_header
from firnmq.brokers.kafka.protocol.hot.produce import build_produce_response, parse_produce
from firnmq.brokers.kafka.protocol.hot.tables import BUILDERS, PARSERS, Builder, Parser

__all__ = [
    "BUILDERS",
    "PARSERS",
    "Builder",
    "Parser",
    "build_fetch_response",
    "build_heartbeat_response",
    "build_offset_commit_response",
    "build_produce_response",
    "parse_fetch",
    "parse_heartbeat",
    "parse_offset_commit",
    "parse_produce",
    "parse_request_header",
]
