"""The server's half of SCRAM (RFC 5802, RFC 7677): messages in, messages out."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from firnmq.brokers.security.credentials import ScramCredential
from firnmq.errors import FirnError

_NONCE_BYTES = 24


class AuthenticationFailed(FirnError):
    """The client did not prove who it is. The text says nothing that helps to guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramFinal:
    """A client's proof, and all that was said before it."""

    proof: bytes
    auth_message: bytes

    def is_proof(self, credential: ScramCredential) -> bool:
        return credential.is_proven_by(self.proof, self.auth_message)

    def answer(self, credential: ScramCredential) -> bytes:
        """The server's own proof, for a client whose proof was right."""
        return b"v=" + base64.b64encode(credential.signature(self.auth_message))


class ScramExchange:
    """One conversation: `first`, then `read_final`. Look-up and nonce are injected."""

    def __init__(
        self,
        find: Callable[[str], ScramCredential],
        new_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self._find = find
        self._new_nonce = new_nonce
        self._gs2_header = ""
        self._client_nonce = ""
        self._nonce = ""
        self._first_bare = ""
        self._server_first = ""
        self.credential: ScramCredential | None = None
        """What the client is measured against, once its first message has come."""
        self.user = ""

    def first(self, token: bytes) -> bytes:
        """The client's first message → salt, iterations and the nonce of both."""
        text = _text(token)
        # n,a=authzid,n=user,r=nonce: channel binding is not offered, so "p=" is refused.
        parts = text.split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise AuthenticationFailed("the first SCRAM message is not understood")
        flag, authorization, bare = parts
        fields = _fields(bare)
        client_nonce = fields.get("r", "")
        if "m" in fields or not fields.get("n") or not client_nonce:
            raise AuthenticationFailed("the first SCRAM message is not understood")
        self.user = _user_name(fields["n"])
        if authorization and _user_name(authorization.removeprefix("a=")) != self.user:
            raise AuthenticationFailed("acting for another user is not allowed")
        self.credential = self._find(self.user)
        self._gs2_header = f"{flag},{authorization},"
        self._first_bare = bare
        self._client_nonce = client_nonce
        self._nonce = client_nonce + self._new_nonce()
        salt = base64.b64encode(self.credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self.credential.iterations}"
        return self._server_first.encode()

    def read_final(self, token: bytes) -> ScramFinal:
        """The client's last message, which holds its proof. The proof has not been checked."""
        assert self.credential is not None, "first() comes first"
        text = _text(token)
        without_proof, found, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        try:
            binding = base64.b64decode(fields.get("c", ""), validate=True)
            proof = base64.b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            raise AuthenticationFailed("the last SCRAM message is not understood") from None
        # librdkafka before 2.6.1 puts its own nonce before the nonce of both. The proof covers what
        # it sends, which is one exact text and ends with the server's nonce: as safe as the other.
        nonces = (self._nonce, self._client_nonce + self._nonce)
        if not found or binding != self._gs2_header.encode() or fields.get("r") not in nonces:
            raise AuthenticationFailed("the last SCRAM message does not belong to the first")
        auth_message = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        return ScramFinal(proof=proof, auth_message=auth_message)


def _text(token: bytes) -> str:
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationFailed("a SCRAM message is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    """`n=user,r=nonce` as a dictionary; the value of a name that comes twice is the first."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if len(name) == 1 and equals:
            fields.setdefault(name, value)
    return fields


def _user_name(escaped: str) -> str:
    return escaped.replace("=2C", ",").replace("=3D", "=")
