"""What a client may say before it has said who it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.connections.codec_thread import CodecThread
from firnmq.brokers.kafka.connections.sasl import SaslSession
from firnmq.brokers.kafka.protocol import (
    ApiKey,
    ErrorCode,
    Message,
    Part,
    RequestTooLong,
    UnsupportedVersion,
    api_versions_response,
    encode_response,
    refuse_api_versions,
)
from firnmq.brokers.kafka.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.brokers.security import AuthenticationFailed, TooManyFailures
from firnmq.brokers.security.users import USER_NAME_CHARS_MAX
from firnmq.eventlog import EventLogger

if TYPE_CHECKING:
    from firnmq.brokers.kafka.connections.connection import KafkaConnection

_ALLOWED = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

_log = EventLogger("security")


class SaslGate:
    """Answers requests of clients that have not authenticated yet."""

    def __init__(
        self,
        config: KafkaConfig,
        statistics: BrokerStatistics,
        frames: CodecThread,
        admitted: Callable[[KafkaConnection, str], None],
    ) -> None:
        """`admitted` is told of every client that has authenticated, and of its user."""
        self._frames = frames
        self._admitted = admitted
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
            header, request, _ = await self._frames.decode(frame)
        except UnsupportedVersion as error:
            if error.api_key != ApiKey.API_VERSIONS:
                raise
            return refuse_api_versions(error.correlation_id)
        except RequestTooLong as error:
            self._statistics.limit_hit(error.limit)
            raise
        response: Message
        if isinstance(request, SaslHandshakeRequest):
            code = session.choose(request.mechanism, header.api_version)
            response = SaslHandshakeResponse(error_code=code, mechanisms=list(session.mechanisms))
            if code is not ErrorCode.NONE:
                reason = f"mechanism {request.mechanism[:40]!r}: {code.name}"
                self._refused(client, reason, session)
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
            self._refused(client, str(error), session)
            client.close_when_answered()
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=str(error),
                auth_bytes=b"",
            )
        except TooManyFailures as error:
            self._refused(client, str(error), session)
            raise
        self._admit(client, session)
        return SaslAuthenticateResponse(auth_bytes=answer)

    async def _raw(
        self, frame: bytearray, client: KafkaConnection, session: SaslSession
    ) -> list[Part]:
        """The oldest form, which has no way to say what is wrong but to hang up."""
        try:
            answer = await session.respond(bytes(frame))
        except (AuthenticationFailed, TooManyFailures) as error:
            self._refused(client, str(error), session)
            raise
        self._admit(client, session)
        return [len(answer).to_bytes(4, "big") + answer]

    def _admit(self, client: KafkaConnection, session: SaslSession) -> None:
        if session.is_done:
            client.limit_frames(self._config.frame_bytes_max)
            self._admitted(client, session.user)
            _log.info("client_authenticated", peer=client.peer, user=session.user)

    def _refused(self, client: KafkaConnection, reason: str, session: SaslSession) -> None:
        self._statistics.authentication_failed_count += 1
        fields = {"hint": session.hint} if session.hint else {}
        user = session.user[:USER_NAME_CHARS_MAX]
        _log.warning("authentication_failed", peer=client.peer, user=user, reason=reason, **fields)
