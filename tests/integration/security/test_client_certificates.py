"""Client certificates that are refused: the client gets no answer, and the log says why."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.brokers.kafka.protocol import ApiKey
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from tests.integration.admin.serving import Served
from tests.integration.security.conftest import Authority, Identity, tls_settings
from tests.integration.security.wire import Wire


@pytest.fixture
def node(tmp_path: Path, identity: Identity, authority: Authority) -> Iterator[Served]:
    certificate = {"FIRN_SECURITY_TLS_CLIENT_CA": str(authority.certificate)}
    served = Served(tmp_path / "data", settings={**tls_settings(identity), **certificate})
    try:
        yield served
    finally:
        assert served.stop() == 0


def connection(authority: Authority, shown: Identity | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


@pytest.mark.parametrize(
    ("which", "kind", "reason"),
    [
        ("of another authority", "client_certificate", "unable to get local issuer certificate"),
        ("expired", "client_certificate", "certificate has expired"),
        ("none", "tls_handshake", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
    ],
)
def test_a_refusal_is_logged_with_its_reason(
    node: Served, authority: Authority, tmp_path: Path, which: str, kind: str, reason: str
) -> None:
    shown = {
        "of another authority": lambda: Authority(tmp_path, "other").issue("client"),
        "expired": lambda: authority.issue("late", days=-5),
        "none": lambda: None,
    }[which]()
    for _ in range(3):
        with Wire(node, None) as opened:
            context = connection(authority, shown)
            opened._socket = context.wrap_socket(opened._socket, server_hostname="127.0.0.1")
            assert opened.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()) is None
    line = node.wait_for_log(lambda line: "connection_refused" in line)
    assert f"kind={kind} peer=127.0.0.1" in line
    assert reason in line
    with Wire(node, None) as opened:
        context = connection(authority, authority.issue("client"))
        opened._socket = context.wrap_socket(opened._socket, server_hostname="127.0.0.1")
        everything = MetadataRequest(topics=None)
        assert opened.ask(ApiKey.METADATA, 4, everything).cluster_id == "firn"
    assert sum("connection_refused" in each for each in node.log) == 1
