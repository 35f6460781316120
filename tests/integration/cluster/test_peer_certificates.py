"""Nodes that show each other certificates: who is believed, and what replaced files change."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from firnmq.cluster.peers import Certificates
from firnmq.errors import FirnError, InvalidArgument, NodeUnavailable
from tests.integration.cluster.nodes import wait_until
from tests.integration.cluster.test_peers import _WAIT_S, Peers, _echo
from tests.integration.security.conftest import Authority, Identity


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "nodes")


@pytest.fixture
def made() -> Iterator[Callable[..., Peers]]:
    with ExitStack() as stack:

        def make(**options: Any) -> Peers:
            return stack.enter_context(closing(Peers(_echo, **options)))

        yield make


def _shown(authority: Authority, identity: Identity) -> Certificates:
    return Certificates(authority.certificate, identity.certificate, identity.key)


def test_nodes_with_certificates_of_one_authority(
    made: Callable[..., Peers], authority: Authority
) -> None:
    both = (_shown(authority, authority.issue(name)) for name in ("one", "two"))
    peers = made(tls=tuple(both))
    assert peers.ask("hello") == "1 hello args/raw"
    large = "n" * 30_000
    assert peers.ask(large).startswith(f"1 {large}")


@pytest.mark.parametrize("side", ["asking", "answering"])
@pytest.mark.parametrize(
    ("which", "reason"),
    [
        ("of another authority", "certificate"),
        ("expired", "expired"),
        ("none", "TLS|record layer|wrong version|handshake"),
    ],
)
def test_a_node_that_is_not_believed(
    made: Callable[..., Peers],
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    side: str,
    which: str,
    reason: str,
) -> None:
    good = _shown(authority, authority.issue("good"))
    bad = {
        "of another authority": lambda: _shown(
            authority, Authority(tmp_path, "other").issue("bad")
        ),
        "expired": lambda: _shown(authority, authority.issue("bad", days=-5)),
        "none": lambda: None,
    }[which]()
    peers = made(tls=(bad, good) if side == "asking" else (good, bad))
    with pytest.raises(NodeUnavailable) as refused:
        peers.ask("hello")

    def is_told() -> bool:
        told = f"{refused.value} {caplog.text}".lower()
        return any(word.lower() in told for word in reason.split("|"))

    wait_until(is_told, "the reason at the node that asks or at the one that was asked")


def test_a_certificate_without_the_secret_is_not_enough(
    made: Callable[..., Peers], authority: Authority
) -> None:
    both = (_shown(authority, authority.issue(name)) for name in ("one", "two"))
    with pytest.raises(NodeUnavailable):
        made(tls=tuple(both), secret=b"x" * 32).ask("hello")


def test_strangers_at_the_port(
    made: Callable[..., Peers], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    both = tuple(_shown(authority, authority.issue(name)) for name in ("one", "two"))
    peers = made(tls=both)
    with socket.create_connection(peers.addresses[2], timeout=_WAIT_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        received = b""
        with suppress(ConnectionResetError):
            while part := plain.recv(4096):
                received += part
    assert len(received) < 20  # An alert of TLS at most: no greeting.
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        socket.create_connection(peers.addresses[2], timeout=_WAIT_S) as opened,
        context.wrap_socket(opened, server_hostname="127.0.0.1") as nameless,
        suppress(ssl.SSLError, ConnectionResetError),
    ):
        assert nameless.recv(4096) == b""
    assert peers.ask("hello") == "1 hello args/raw"
    assert sum("peer_refused" in each for each in caplog.messages) == 1


def test_a_process_in_between_with_a_certificate_of_its_own_is_not_believed(
    made: Callable[..., Peers], authority: Authority
) -> None:
    """It ends TLS on both sides and passes everything on; the proofs name other certificates."""
    between = authority.issue("between")
    both = tuple(_shown(authority, authority.issue(name)) for name in ("one", "two"))
    peers = made(tls=both)
    behind = peers.addresses[2]
    failures: list[FirnError] = []

    def ask() -> None:
        try:
            peers.ask("hello")
        except FirnError as error:
            failures.append(error)

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.create_default_context(cafile=str(authority.certificate))
    for context in (server, client):
        context.load_cert_chain(between.certificate, between.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers.addresses[2] = listener.getsockname()
        asking = threading.Thread(target=ask)
        asking.start()
        accepted, _ = listener.accept()
        with (
            server.wrap_socket(accepted, server_side=True) as near,
            socket.create_connection(behind, timeout=_WAIT_S) as opened,
            client.wrap_socket(opened, server_hostname="127.0.0.1") as far,
        ):
            near.sendall(far.recv(4096))  # The greeting.
            far.sendall(near.recv(4096))  # The introduction.
            with suppress(ConnectionResetError):
                assert far.recv(4096) == b""  # No welcome.
        asking.join()
    assert [type(each) for each in failures] == [NodeUnavailable]


def test_replaced_files_count_for_new_connections(
    made: Callable[..., Peers], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = authority.issue("one"), authority.issue("two")
    peers = made(tls=(_shown(authority, one), _shown(authority, two)))
    assert peers.ask("hello") == "1 hello args/raw"

    # 1. A file that cannot be used changes nothing.
    _replace(two.certificate, b"nothing")
    peers.asking.forget(2)
    assert peers.ask("hello") == "1 hello args/raw"
    assert "certificates_unusable" in caplog.text

    # 2. A certificate that has expired is refused; a new one is taken, both without a restart.
    late = authority.issue("late", days=-5)
    _replace(two.key, late.key.read_bytes())
    _replace(two.certificate, late.certificate.read_bytes())
    peers.asking.forget(2)
    with pytest.raises(NodeUnavailable):
        peers.ask("hello")
    fresh = authority.issue("fresh")
    _replace(two.key, fresh.key.read_bytes())
    _replace(two.certificate, fresh.certificate.read_bytes())
    peers.asking.forget(2)
    assert peers.ask("hello") == "1 hello args/raw"


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    os.replace(draft, path)


def test_files_that_cannot_be_used_are_refused(authority: Authority, tmp_path: Path) -> None:
    good = authority.issue("good")
    with pytest.raises(InvalidArgument, match=r"missing\.pem"):
        Certificates(tmp_path / "missing.pem", good.certificate, good.key)
    with pytest.raises(InvalidArgument, match="cannot be used"):
        Certificates(authority.certificate, good.certificate, authority.issue("other").key)


def test_the_fingerprint_is_of_the_node_s_own_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    node = authority.issue("node")
    own = ssl.PEM_cert_to_DER_cert(node.certificate.read_text())
    chain = tmp_path / "chain.pem"
    with chain.open("wb") as whole:
        for part in (node.key, node.certificate, authority.certificate):
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)
    side = Certificates(authority.certificate, chain, chain).accepting()
    assert side.fingerprint == hashlib.sha256(own).digest()
