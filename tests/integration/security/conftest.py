"""A certificate authority, certificates it signed, and a node that asks who is there."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.integration.admin.serving import Served, firn

USER, PASSWORD = "ann", "pass, word=é"
"""A comma, an equals sign and a letter beyond ASCII: what SCRAM must escape or hash rightly."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """kafka-python's own deprecation warnings are not ours to mend."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.certificate = folder / f"{name}-ca.pem"
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        signed = builder.sign(self._key, hashes.SHA256())
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, days: int = 2) -> Identity:
        """Valid for so many days from now on; negative: expired so long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = _builder(_name(name), self._name, key.public_key(), days)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        made = Identity(certificate=self._folder / f"{name}.pem", key=self._folder / f"{name}.key")
        made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int = 2
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"), "firn")


@pytest.fixture(scope="session")
def identity(authority: Authority) -> Identity:
    return authority.issue("node")


def tls_settings(identity: Identity) -> dict[str, str]:
    return {
        "FIRN_SECURITY_TLS_CERTIFICATE": str(identity.certificate),
        "FIRN_SECURITY_TLS_KEY": str(identity.key),
    }


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory, identity: Identity) -> Iterator[Served]:
    """A node with TLS and all mechanisms, whose one user was added before it started."""
    data = tmp_path_factory.mktemp("secured") / "data"
    added = firn(
        "user", "add", USER, "--data", str(data), "--password-file", "-", stdin=f"{PASSWORD}\n"
    )
    assert added.stdout == f"added user {USER}\n", added.stderr
    served = Served(
        data,
        settings={
            **tls_settings(identity),
            "FIRN_SECURITY_SASL_MECHANISMS": "SCRAM-SHA-256, SCRAM-SHA-512, PLAIN",
            "FIRN_KAFKA_HANDSHAKE_TIMEOUT_S": "5",
            "FIRN_GROUPS_INITIAL_REBALANCE_DELAY_MS": "0",
        },
    )
    try:
        yield served
        assert served.process.poll() is None, served.log
    finally:
        assert served.stop() == 0
