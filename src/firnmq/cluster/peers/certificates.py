"""Certificates of connections between nodes. Files that were replaced count for new connections."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import NamedTuple

from firnmq.errors import InvalidArgument
from firnmq.eventlog import EventLogger

_log = EventLogger("peers")
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

_Signature = tuple[tuple[int, int, int], ...]


class TlsSide(NamedTuple):
    """How one connection begins TLS."""

    context: ssl.SSLContext
    is_server: bool
    fingerprint: bytes
    """Of the certificate that this node shows."""


class Certificates:
    """A node's certificate, its key, and the authority that signs those of all nodes."""

    def __init__(self, ca_file: Path, certificate_file: Path, key_file: Path) -> None:
        """InvalidArgument if the files cannot be used."""
        self._ca_file = ca_file
        self._certificate_file = certificate_file
        self._key_file = key_file
        self._signature = self._stat()
        self._load()

    def accepting(self) -> TlsSide:
        """For a connection that another node opens."""
        self._follow_files()
        return TlsSide(self._server, True, self._fingerprint)

    def connecting(self) -> TlsSide:
        """For a connection to another node."""
        self._follow_files()
        return TlsSide(self._client, False, self._fingerprint)

    def _follow_files(self) -> None:
        try:
            signature = self._stat()
            if signature == self._signature:
                return
            self._signature = signature
            self._load()
        except InvalidArgument as error:
            _log.error("certificates_unusable", error=error, effect="the earlier ones are used")
        else:
            _log.info("certificates_reread", file=self._certificate_file)

    def _load(self) -> None:
        try:
            text = self._certificate_file.read_text("ascii", "replace")
            server = self._context(ssl.PROTOCOL_TLS_SERVER)
            client = self._context(ssl.PROTOCOL_TLS_CLIENT)
        except OSError as error:  # ssl.SSLError is one.
            files = f"{self._ca_file}, {self._certificate_file}, {self._key_file}"
            text = f"one of {files} cannot be used: {error}"
            raise InvalidArgument("cluster.certificate_file", text) from error
        self._server, self._client = server, client
        first = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
        self._fingerprint = fingerprint(ssl.PEM_cert_to_DER_cert(first))

    def _context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Both sides prove in the handshake which node they are and which certificates they see, so
        # a certificate need not name the address at which its node is reached today.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self._ca_file)
        # An encrypted key is refused: asking for its password would stop a node without terminal.
        context.load_cert_chain(self._certificate_file, self._key_file, password=lambda: "")
        return context

    def _stat(self) -> _Signature:
        try:
            found = [
                path.stat() for path in (self._ca_file, self._certificate_file, self._key_file)
            ]
        except OSError as error:
            text = f"{error.filename}: {error.strerror}"
            raise InvalidArgument("cluster.certificate_file", text) from error
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def fingerprint(certificate: bytes) -> bytes:
    """Of a certificate in DER form."""
    return hashlib.sha256(certificate).digest()
