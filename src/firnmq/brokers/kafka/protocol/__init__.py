"""The Kafka protocol: frames to messages and back, at the level of Kafka 4.3.

No input and output here, and no state: bytes in, messages out. The messages themselves are in
`messages`, by area.
"""

from firnmq.brokers.kafka.protocol.codec import (
    decode_request,
    decode_response,
    decode_short_request,
    encode_request,
    encode_response,
    encode_short_response,
    refuse_api_versions,
)
from firnmq.brokers.kafka.protocol.errors import (
    ErrorCode,
    MalformedRequest,
    RequestTooLong,
    TopicIdNotFound,
    UnsupportedVersion,
)
from firnmq.brokers.kafka.protocol.header import RequestHeader
from firnmq.brokers.kafka.protocol.primitives import ZERO_UUID, Part, Parts
from firnmq.brokers.kafka.protocol.schema import Message
from firnmq.brokers.kafka.protocol.versions import (
    ADVERTISED,
    PRODUCE_VERSION_SERVED_MIN,
    ApiKey,
    api_versions_response,
    is_supported,
)
from firnmq.disk import FileRange

__all__ = [
    "ADVERTISED",
    "PRODUCE_VERSION_SERVED_MIN",
    "ZERO_UUID",
    "ApiKey",
    "ErrorCode",
    "FileRange",
    "MalformedRequest",
    "Message",
    "Part",
    "Parts",
    "RequestHeader",
    "RequestTooLong",
    "TopicIdNotFound",
    "UnsupportedVersion",
    "api_versions_response",
    "decode_request",
    "decode_response",
    "decode_short_request",
    "encode_request",
    "encode_response",
    "encode_short_response",
    "is_supported",
    "refuse_api_versions",
]
