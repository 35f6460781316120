"""SCRAM-SHA-256 against the example of RFC 7677, and against what a client must not do."""

from __future__ import annotations

import base64
import hashlib

import pytest

from firnmq.brokers.security.credentials import ScramCredential, decoy, mac
from firnmq.brokers.security.scram import AuthenticationFailed, ScramExchange

# The example of RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}"
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.fixture
def exchange() -> ScramExchange:
    credential = ScramCredential.of_password("pencil", salt=SALT, iterations=4096)
    return ScramExchange(lambda _: credential, lambda: SERVER_NONCE)


def finished(exchange: ScramExchange, message: str) -> str:
    """The answer to the client's last message."""
    assert exchange.credential is not None
    final = exchange.read_final(message.encode())
    if not final.is_proof(exchange.credential):
        raise AuthenticationFailed
    return final.answer(exchange.credential).decode()


def test_the_example_of_the_standard(exchange: ScramExchange) -> None:
    assert exchange.first(CLIENT_FIRST.encode()).decode() == SERVER_FIRST
    assert finished(exchange, CLIENT_FINAL) == SERVER_FINAL
    assert exchange.user == "user"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "n",
        "n,,",
        "n,,n=user",
        "n,,r=abc",
        "n,,n=,r=abc",
        "n,,m=ext,n=user,r=abc",
        "p=tls-unique,,n=user,r=abc",
        "x,,n=user,r=abc",
        "n,a=other,n=user,r=abc",
    ],
)
def test_first_messages_that_are_refused(exchange: ScramExchange, message: str) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange.first(message.encode())


def test_a_first_message_that_is_not_text(exchange: ScramExchange) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange.first(b"n,,n=\xff,r=abc")


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("c=biws", "c=eSws"),
        ("c=biws", "c=!"),
        (SERVER_NONCE, ""),
        (SERVER_NONCE, SERVER_NONCE + "x"),
        (",p=", ",q="),
        ("p=dHzb", "p=dHzc"),
        ("p=dHzb", "p="),
        ("AndVQ=", "AndVQ"),
    ],
)
def test_last_messages_that_are_refused(exchange: ScramExchange, part: str, other: str) -> None:
    exchange.first(CLIENT_FIRST.encode())
    assert part in CLIENT_FINAL
    with pytest.raises(AuthenticationFailed):
        finished(exchange, CLIENT_FINAL.replace(part, other))


def test_names_with_commas_and_equals_signs() -> None:
    asked: list[str] = []

    def find(name: str) -> ScramCredential:
        asked.append(name)
        return decoy(name, b"secret")

    ScramExchange(find).first(b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc")
    assert asked == ["a,b=c"]


def test_passwords_match_themselves_only() -> None:
    credential = ScramCredential.of_password("pa\u00df", iterations=10)
    assert credential.matches("pa\u00df")
    assert not credential.matches("pass")
    assert b"pa" not in credential.salt + credential.stored_key + credential.server_key
    assert ScramCredential.of_password("x", iterations=10) != ScramCredential.of_password(
        "x", iterations=10
    )


def test_nothing_matches_a_decoy() -> None:
    first, second = decoy("nobody", b"secret"), decoy("nobody", b"secret")
    assert first.salt == second.salt != decoy("noone", b"secret").salt
    assert not first.matches("")
    assert not first.is_proven_by(b"\0" * 32, b"message")
    assert not first.is_proven_by(b"", b"message")


def test_the_doubled_nonce_of_old_librdkafka() -> None:
    """Before 2.6.1 it repeats its own nonce; the proof covers that. No other text will do."""
    credential = ScramCredential.of_password("pencil", salt=SALT, iterations=4096)

    def answered(nonce: str) -> bool:
        exchange = ScramExchange(lambda _: credential, lambda: SERVER_NONCE)
        exchange.first(CLIENT_FIRST.encode())
        without_proof = f"c=biws,r={nonce}"
        message = ",".join((CLIENT_FIRST.removeprefix("n,,"), SERVER_FIRST, without_proof))
        salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
        client_key = mac(salted, b"Client Key", "sha256")
        signature = mac(credential.stored_key, message.encode(), "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        final = f"{without_proof},p={base64.b64encode(proof).decode()}"
        try:
            return finished(exchange, final).startswith("v=")
        except AuthenticationFailed:
            return False

    both = CLIENT_NONCE + SERVER_NONCE
    assert answered(both)
    assert answered(CLIENT_NONCE + both)
    for other in (SERVER_NONCE, both + both, CLIENT_NONCE * 2 + both, "x" + both, CLIENT_NONCE):
        assert not answered(other)
