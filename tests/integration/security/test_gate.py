"""What a client may do before it has authenticated: as good as nothing, and not for long."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from firnmq.brokers.kafka.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.integration.admin.serving import Served, firn
from tests.integration.security.conftest import (
    PASSWORD,
    USER,
    Authority,
    Identity,
    tls_settings,
)
from tests.integration.security.wire import Wire

EVERYTHING = MetadataRequest(topics=None)


@pytest.fixture
def wire(secured: Served, authority: Authority):
    with Wire(secured, authority) as opened:
        yield opened


def plain(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def test_versions_may_be_asked_and_nothing_else(wire: Wire) -> None:
    answer = wire.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
    assert answer is not None
    assert answer.error_code == 0
    assert wire.ask(ApiKey.METADATA, 4, EVERYTHING) is None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_plain_in_every_version(wire: Wire, version: int) -> None:
    agreed = wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
    assert (agreed.error_code, set(agreed.mechanisms)) == (
        0,
        {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"},
    )
    request = SaslAuthenticateRequest(auth_bytes=plain(USER, PASSWORD))
    assert wire.ask(ApiKey.SASL_AUTHENTICATE, version, request).error_code == 0
    assert wire.ask(ApiKey.METADATA, 4, EVERYTHING).cluster_id == "firn"
    # Who has authenticated cannot do so again.
    again = wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
    assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert wire.is_closed()


def test_tokens_without_a_header_after_the_oldest_handshake(wire: Wire) -> None:
    wire.ask(ApiKey.SASL_HANDSHAKE, 0, SaslHandshakeRequest(mechanism="PLAIN"))
    token = plain(USER, PASSWORD)
    wire.send(len(token).to_bytes(4, "big") + token)
    assert wire.frame() == b""
    assert wire.ask(ApiKey.METADATA, 4, EVERYTHING).cluster_id == "firn"


@pytest.mark.parametrize(
    "token", [plain(USER, "wrong"), plain("nobody", PASSWORD), b"\0\0", b"", b"\xff\0a\0b"]
)
def test_refusals_of_plain_are_typed_and_final(wire: Wire, token: bytes) -> None:
    wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
    request = SaslAuthenticateRequest(auth_bytes=token)
    answer = wire.ask(ApiKey.SASL_AUTHENTICATE, 1, request)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message
    assert wire.is_closed()


def test_a_wrong_token_without_a_header_ends_the_connection(wire: Wire) -> None:
    wire.ask(ApiKey.SASL_HANDSHAKE, 0, SaslHandshakeRequest(mechanism="PLAIN"))
    wire.send(b"\0\0\0\0")
    assert wire.is_closed()


def test_an_unknown_mechanism_is_refused_with_those_there_are(wire: Wire) -> None:
    answer = wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="GSSAPI"))
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert set(answer.mechanisms) == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert wire.is_closed()


def test_authentication_needs_a_handshake_first(wire: Wire) -> None:
    request = SaslAuthenticateRequest(auth_bytes=plain(USER, PASSWORD))
    answer = wire.ask(ApiKey.SASL_AUTHENTICATE, 1, request)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.is_closed()


def test_an_unknown_user_looks_like_any_other_until_the_proof(
    secured: Served, authority: Authority
) -> None:
    """The salt of a user who does not exist is there, and is the same when asked again."""

    def first(user: str) -> str:
        with Wire(secured, authority) as opened:
            opened.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
            token = f"n,,n={user},r=abc".encode()
            request = SaslAuthenticateRequest(auth_bytes=token)
            answer = opened.ask(ApiKey.SASL_AUTHENTICATE, 1, request)
            assert answer.error_code == 0
            fields = dict(part.split("=", 1) for part in answer.auth_bytes.decode().split(","))
            assert fields["r"].startswith("abc")
            # A proof made up for the salt is refused.
            last = f"c=biws,r={fields['r']}"
            proof = base64.b64encode(b"\0" * 32).decode()
            request = SaslAuthenticateRequest(auth_bytes=f"{last},p={proof}".encode())
            answer = opened.ask(ApiKey.SASL_AUTHENTICATE, 1, request)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert opened.is_closed()
            return f"{fields['s']} {fields['i']}"

    assert first("nobody") == first("nobody") != first("noone")
    assert first("nobody").split()[1] == first(USER).split()[1]


def test_the_node_proves_itself_too(wire: Wire) -> None:
    wire.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
    first = f"n={USER},r=abc"
    request = SaslAuthenticateRequest(auth_bytes=f"n,,{first}".encode())
    challenge = wire.ask(ApiKey.SASL_AUTHENTICATE, 1, request).auth_bytes.decode()
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", PASSWORD.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    last = f"c=biws,r={fields['r']}"
    message = f"{first},{challenge},{last}".encode()
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    token = f"{last},p={base64.b64encode(proof).decode()}".encode()
    answer = wire.ask(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=token))
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    expected = base64.b64encode(hmac.digest(server_key, message, "sha256"))
    assert answer.auth_bytes == b"v=" + expected


def test_strangers_may_not_send_large_frames(wire: Wire) -> None:
    wire.send((1_000_000).to_bytes(4, "big"))
    assert wire.is_closed()


def test_strangers_may_not_stay(secured: Served, wire: Wire) -> None:
    before = secured.metric('firn_connections_limited_total{limit="handshake_timeout"}')
    assert wire.is_closed()
    after = secured.metric('firn_connections_limited_total{limit="handshake_timeout"}')
    assert after > before, "others may be strangers too"


def test_without_tls_nobody_is_understood(secured: Served) -> None:
    with Wire(secured, None) as opened:
        assert opened.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()) is None


def test_a_user_added_while_the_node_runs_can_log_in(secured: Served, authority: Authority) -> None:
    node = {"FIRN_NODE": secured.url, "FIRN_DATA": secured.said["data"]}
    firn("user", "add", "eve", "--password-file", "-", stdin="x\n", **node)

    def log_in() -> int:
        with Wire(secured, authority) as opened:
            opened.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            request = SaslAuthenticateRequest(auth_bytes=plain("eve", "x"))
            return int(opened.ask(ApiKey.SASL_AUTHENTICATE, 1, request).error_code)

    assert log_in() == 0
    firn("user", "remove", "eve", **node)
    assert log_in() == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_removed_user_is_cut_off(secured: Served, authority: Authority) -> None:
    """Connections of others, also of one who is called nearly the same, stay."""
    for user in ("mallory", "mallory2"):
        assert secured.call("PUT", f"/v1/users/{user}", {"password": "x"}).status == 200
    with Wire(secured, authority) as theirs, Wire(secured, authority) as other:
        for opened, user in ((theirs, "mallory"), (other, "mallory2")):
            opened.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            request = SaslAuthenticateRequest(auth_bytes=plain(user, "x"))
            assert opened.ask(ApiKey.SASL_AUTHENTICATE, 1, request).error_code == 0
            assert opened.ask(ApiKey.METADATA, 4, EVERYTHING).cluster_id == "firn"
        assert secured.call("DELETE", "/v1/users/mallory").status == 200
        assert theirs.is_closed()
        assert other.ask(ApiKey.METADATA, 4, EVERYTHING).cluster_id == "firn"
        secured.call("DELETE", "/v1/users/mallory2")


def test_a_failed_login_is_logged_with_the_name(secured: Served, authority: Authority) -> None:
    name = "no\nbody=1"
    with Wire(secured, authority) as opened:
        opened.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        request = SaslAuthenticateRequest(auth_bytes=plain(name, "x"))
        assert opened.ask(ApiKey.SASL_AUTHENTICATE, 1, request).error_code != 0
    secured.wait_for_log(lambda line: "authentication_failed" in line and r"no\nbody=1" in line)


def test_a_node_without_sasl_says_so(tmp_path, identity: Identity, authority: Authority) -> None:
    """TLS alone, with certificates for clients: one without is not let in."""
    import ssl

    settings = {
        **tls_settings(identity),
        "FIRN_SECURITY_TLS_CLIENT_CA": str(authority.certificate),
    }
    served = Served(tmp_path / "data", settings=settings)
    try:
        with Wire(served, authority) as opened:
            assert opened.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()) is None
        context = ssl.create_default_context(cafile=str(authority.certificate))
        mine = authority.issue("client")
        context.load_cert_chain(mine.certificate, mine.key)
        with Wire(served, None) as opened:
            opened._socket = context.wrap_socket(opened._socket, server_hostname="127.0.0.1")
            assert opened.ask(ApiKey.METADATA, 4, EVERYTHING).cluster_id == "firn"
            answer = opened.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert opened.is_closed()
    finally:
        assert served.stop() == 0
