"""SASL: agreeing on a mechanism, and the mechanism's own messages carried as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.schema import Bytes, Int16, Int64, Message, String, since


class SaslHandshakeRequest(Message):
    mechanism: String


class SaslHandshakeResponse(Message):
    error_code: Int16 = 0
    mechanisms: Sequence[String]


class SaslAuthenticateRequest(Message):
    auth_bytes: Bytes


class SaslAuthenticateResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, since(1)] = 0
