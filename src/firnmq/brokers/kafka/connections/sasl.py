"""SASL on a connection: which messages are allowed when, and who is there in the end."""

from __future__ import annotations

import enum

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.security import (
    PLAIN,
    SCRAM_DIGESTS,
    AuthenticationFailed,
    Authenticator,
    TooManyFailures,
)
from firnmq.brokers.security.scram import ScramExchange


class SaslState(enum.Enum):
    HANDSHAKE = "no mechanism has been chosen"
    FIRST = "waiting for the mechanism's first message"
    FINAL = "waiting for the client's proof"
    DONE = "the client is who it says"
    FAILED = "the client is not who it says"


class SaslSession:
    """One connection's way through SASL. A step that is not due fails the session."""

    def __init__(self, authenticator: Authenticator, address: str = "") -> None:
        """`address`: where the client is."""
        self._authenticator = authenticator
        self._address = address
        self._state = SaslState.HANDSHAKE
        self._mechanism = ""
        self._scram: ScramExchange | None = None
        self.takes_raw_tokens = False
        """After a handshake of version 0 the mechanism's messages come without a header."""
        self.user = ""
        """Who the client is or, until it is done, says it is."""

    @property
    def is_done(self) -> bool:
        return self._state is SaslState.DONE

    @property
    def hint(self) -> str:
        """What the operator should do about a failed login, if it is known. Not for the client."""
        digest = SCRAM_DIGESTS.get(self._mechanism)
        if digest is None or not self.user or not self._authenticator.lacks(self.user, digest):
            return ""
        return (
            f"the user was added by a version without {self._mechanism}; "
            "give the user the password again with firn user add"
        )

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return self._authenticator.mechanisms

    def choose(self, mechanism: str, version: int) -> ErrorCode:
        """The handshake: the client names the mechanism it wants."""
        if self._state is not SaslState.HANDSHAKE:
            self._become_failed()
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self._authenticator.mechanisms:
            self._become_failed()
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._mechanism = mechanism
        self._state = SaslState.FIRST
        self.takes_raw_tokens = version == 0
        return ErrorCode.NONE

    async def respond(self, token: bytes) -> bytes:
        """The answer to one of the mechanism's messages; AuthenticationFailed ends the session."""
        try:
            if self._state is SaslState.FIRST and self._mechanism == PLAIN:
                return await self._plain(token)
            if self._state is SaslState.FIRST:
                digest = SCRAM_DIGESTS[self._mechanism]
                self._scram = ScramExchange(lambda name: self._authenticator.find(name, digest))
                answer = self._scram.first(token)
                self.user = self._scram.user
                self._state = SaslState.FINAL
                return answer
            if self._state is SaslState.FINAL:
                return await self._scram_final(token)
            raise AuthenticationFailed(f"no message is due: {self._state.value}")
        except (AuthenticationFailed, TooManyFailures):
            self._become_failed()
            raise

    async def _scram_final(self, token: bytes) -> bytes:
        assert self._scram is not None
        credential = self._scram.credential
        assert credential is not None
        final = self._scram.read_final(token)
        await self._authenticator.check(self._address, self.user, final.is_proof, credential)
        self._become_done(self.user)
        return final.answer(credential)

    async def _plain(self, token: bytes) -> bytes:
        try:
            authorization, name, password = token.decode("utf-8").split("\0")
        except ValueError:  # Not UTF-8, or not three parts.
            raise AuthenticationFailed("the PLAIN message is not understood") from None
        self.user = name
        if authorization not in ("", name):
            raise AuthenticationFailed("acting for another user is not allowed")
        await self._authenticator.check(
            self._address, name, lambda each: each.matches(password), self._authenticator.find(name)
        )
        self._become_done(name)
        return b""

    def _become_done(self, user: str) -> None:
        self._state = SaslState.DONE
        self.takes_raw_tokens = False
        self.user = user

    def _become_failed(self) -> None:
        self._state = SaslState.FAILED
        self.takes_raw_tokens = False
