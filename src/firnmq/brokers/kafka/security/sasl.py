"""SASL on a connection: which messages are allowed when, and who is there in the end."""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import Sequence

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.security.credentials import ScramCredential, decoy
from firnmq.brokers.kafka.security.scram import AuthenticationFailed, ScramExchange
from firnmq.brokers.kafka.security.users import UserStore

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
MECHANISMS = (SCRAM_SHA_256, PLAIN)
"""Those there are, the better one first."""


class Authenticator:
    """Checks passwords and proofs against the users of the node."""

    def __init__(self, users: UserStore, mechanisms: Sequence[str]) -> None:
        self._users = users
        self.mechanisms = tuple(mechanisms)
        self._decoy_secret = secrets.token_bytes(32)

    def find(self, name: str) -> ScramCredential:
        """The user's credential, or one that nothing matches: nobody learns who exists."""
        return self._users.get(name) or decoy(name, self._decoy_secret)

    async def check_password(self, name: str, password: str) -> bool:
        """Hashing takes milliseconds of one core, so a thread does it."""
        matches = self.find(name).matches
        return await asyncio.get_running_loop().run_in_executor(None, matches, password)


class SaslState(enum.Enum):
    HANDSHAKE = "no mechanism has been chosen"
    FIRST = "waiting for the mechanism's first message"
    FINAL = "waiting for the client's proof"
    DONE = "the client is who it says"
    FAILED = "the client is not who it says"


class SaslSession:
    """One connection's way through SASL. A step that is not due fails the session."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._state = SaslState.HANDSHAKE
        self._mechanism = ""
        self._scram: ScramExchange | None = None
        self.takes_raw_tokens = False
        """After a handshake of version 0 the mechanism's messages come without a header."""
        self.user = ""

    @property
    def is_done(self) -> bool:
        return self._state is SaslState.DONE

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
                self._scram = ScramExchange(self._authenticator.find)
                answer = self._scram.first(token)
                self._state = SaslState.FINAL
                return answer
            if self._state is SaslState.FINAL:
                assert self._scram is not None
                answer = self._scram.final(token)
                self._become_done(self._scram.user)
                return answer
            raise AuthenticationFailed(f"no message is due: {self._state.value}")
        except AuthenticationFailed:
            self._become_failed()
            raise

    async def _plain(self, token: bytes) -> bytes:
        try:
            authorization, name, password = token.decode("utf-8").split("\0")
        except ValueError:  # Not UTF-8, or not three parts.
            raise AuthenticationFailed("the PLAIN message is not understood") from None
        if authorization not in ("", name):
            raise AuthenticationFailed("acting for another user is not allowed")
        if not await self._authenticator.check_password(name, password):
            raise AuthenticationFailed("user name or password is wrong")
        self._become_done(name)
        return b""

    def _become_done(self, user: str) -> None:
        self._state = SaslState.DONE
        self.takes_raw_tokens = False
        self.user = user

    def _become_failed(self) -> None:
        self._state = SaslState.FAILED
        self.takes_raw_tokens = False
