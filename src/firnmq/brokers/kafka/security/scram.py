"""The server's half of SCRAM-SHA-256 (RFC 5802, RFC 7677): messages in, messages out."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable

from firnmq.brokers.kafka.security.credentials import ScramCredential, mac
from firnmq.errors import FirnError

_NONCE_BYTES = 24


class AuthenticationFailed(FirnError):
    """The client did not prove who it is. The text says nothing that helps to guess."""


class ScramExchange:
    """One conversation: `first`, then `final`. Look-up and nonce are injected."""

    def __init__(
        self,
        find: Callable[[str], ScramCredential],
        new_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self._find = find
        self._new_nonce = new_nonce
        self._gs2_header = ""
        self._nonce = ""
        self._first_bare = ""
        self._server_first = ""
        self._credential: ScramCredential | None = None
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
        self._credential = self._find(self.user)
        self._gs2_header = f"{flag},{authorization},"
        self._first_bare = bare
        self._nonce = client_nonce + self._new_nonce()
        salt = base64.b64encode(self._credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._server_first.encode()

    def final(self, token: bytes) -> bytes:
        """The client's proof → ours, once theirs has been checked."""
        assert self._credential is not None, "first() comes first"
        text = _text(token)
        without_proof, found, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        try:
            binding = base64.b64decode(fields.get("c", ""), validate=True)
            proof = base64.b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            raise AuthenticationFailed("the last SCRAM message is not understood") from None
        if not found or binding != self._gs2_header.encode() or fields.get("r") != self._nonce:
            raise AuthenticationFailed("the last SCRAM message does not belong to the first")
        auth_message = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        if not self._credential.is_proven_by(proof, auth_message):
            raise AuthenticationFailed("user name or password is wrong")
        signature = mac(self._credential.server_key, auth_message)
        return b"v=" + base64.b64encode(signature)


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
