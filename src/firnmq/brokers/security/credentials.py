"""What is kept of a password: a salt and two keys that prove it but do not contain it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Literal

ITERATIONS = 8192
"""Rounds of hashing. Kafka's own range is 4,096 to 16,384, and clients outside it may refuse."""
SALT_BYTES = 16
PASSWORD_CHARS_MAX = 1024


Digest = Literal["sha256", "sha512"]
"""The hash that a SCRAM mechanism is named after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The server's side of a password, as SCRAM (RFC 5802, RFC 7677) needs it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    digest: Digest = "sha256"

    @classmethod
    def of_password(
        cls,
        password: str,
        *,
        salt: bytes | None = None,
        iterations: int = ITERATIONS,
        digest: Digest = "sha256",
    ) -> ScramCredential:
        """Takes milliseconds, on purpose."""
        salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
        return cls.of_salted(salted, salt=salt, iterations=iterations, digest=digest)

    @classmethod
    def of_salted(
        cls, salted: bytes, *, salt: bytes, iterations: int, digest: Digest
    ) -> ScramCredential:
        """From a password that the client has hashed."""
        return cls(
            salt=salt,
            iterations=iterations,
            stored_key=hashlib.new(digest, mac(salted, b"Client Key", digest)).digest(),
            server_key=mac(salted, b"Server Key", digest),
            digest=digest,
        )

    def matches(self, password: str) -> bool:
        """Whether this is the password. Takes as long for a wrong one as for the right one."""
        given = self.of_password(
            password, salt=self.salt, iterations=self.iterations, digest=self.digest
        )
        return hmac.compare_digest(given.stored_key, self.stored_key)

    def is_proven_by(self, proof: bytes, auth_message: bytes) -> bool:
        """Whether a SCRAM client's proof was made from the password."""
        signature = mac(self.stored_key, auth_message, self.digest)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self.digest, client_key).digest(), self.stored_key)

    def signature(self, auth_message: bytes) -> bytes:
        """The server's proof that it knows the password's keys."""
        return mac(self.server_key, auth_message, self.digest)


def decoy(name: str, secret: bytes, digest: Digest = "sha256") -> ScramCredential:
    """What an unknown user is measured against: nothing matches it, and it looks like any other.

    The salt follows from the name, so that asking twice does not tell that there is no such user.
    """
    size = hashlib.new(digest).digest_size
    return ScramCredential(
        salt=mac(secret, f"{digest} {name}".encode(), digest)[:SALT_BYTES],
        iterations=ITERATIONS,
        stored_key=secrets.token_bytes(size),
        server_key=secrets.token_bytes(size),
        digest=digest,
    )


def mac(key: bytes, message: bytes, digest: Digest) -> bytes:
    return hmac.digest(key, message, digest)
