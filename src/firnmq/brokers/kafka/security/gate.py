"""What a client may say before it has said who it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.protocol import (
    ApiKey,
    ErrorCode,
    Message,
    Part,
    UnsupportedVersion,
    api_versions_response,
    decode_request,
    encode_response,
    refuse_api_versions,
)
from firnmq.brokers.kafka.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from firnmq.brokers.kafka.security.sasl import SaslSession
from firnmq.brokers.kafka.security.scram import AuthenticationFailed
from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.eventlog import EventLogger

if TYPE_CHECKING:
    from firnmq.brokers.kafka.connection import KafkaConnection

_ALLOWED = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

_log = EventLogger("security")


class SaslGate:
    """Answers requests of clients that have not authenticated yet."""

    def __init__(self, config: KafkaConfig, statistics: BrokerStatistics) -> None:
        self._config = config
        self._statistics = statistics

    async def begin(
        self, frame: bytearray, client: KafkaConnection, session: SaslSession
    ) -> list[Part]:
        """The response; raises if the connection must be closed without one."""
        if session.takes_raw_tokens:
            return await self._raw(frame, client, session)
        # The key is looked at before anything is decoded: strangers get no more code than needed.
        api_key = int.from_bytes(frame[:2], "big", signed=True)
        if api_key not in _ALLOWED:
            raise AuthenticationFailed(f"API {api_key} is not allowed before authentication")
        try:
            header, request = decode_request(frame)
        except UnsupportedVersion as error:
            if error.api_key != ApiKey.API_VERSIONS:
                raise
            return refuse_api_versions(error.correlation_id)
        response: Message
        if isinstance(request, SaslHandshakeRequest):
            code = session.choose(request.mechanism, header.api_version)
            response = SaslHandshakeResponse(error_code=code, mechanisms=list(session.mechanisms))
            if code is not ErrorCode.NONE:
                self._refused(client, f"mechanism {request.mechanism[:40]!r}: {code.name}")
                client.close_when_answered()
        elif isinstance(request, SaslAuthenticateRequest):
            response = await self._authenticate(request, client, session)
        else:
            response = api_versions_response()
        return encode_response(header, response)

    async def _authenticate(
        self, request: SaslAuthenticateRequest, client: KafkaConnection, session: SaslSession
    ) -> SaslAuthenticateResponse:
        try:
            answer = await session.respond(bytes(request.auth_bytes))
        except AuthenticationFailed as error:
            self._refused(client, str(error))
            client.close_when_answered()
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=str(error),
                auth_bytes=b"",
            )
        self._admit(client, session)
        return SaslAuthenticateResponse(auth_bytes=answer)

    async def _raw(
        self, frame: bytearray, client: KafkaConnection, session: SaslSession
    ) -> list[Part]:
        """The oldest form, which has no way to say what is wrong but to hang up."""
        try:
            answer = await session.respond(bytes(frame))
        except AuthenticationFailed as error:
            self._refused(client, str(error))
            raise
        self._admit(client, session)
        return [len(answer).to_bytes(4, "big") + answer]

    def _admit(self, client: KafkaConnection, session: SaslSession) -> None:
        if session.is_done:
            client.frame_bytes_max = self._config.frame_bytes_max
            _log.info("client_authenticated", peer=client.peer, user=session.user)

    def _refused(self, client: KafkaConnection, reason: str) -> None:
        self._statistics.authentication_failed_count += 1
        _log.warning("authentication_failed", peer=client.peer, reason=reason)
