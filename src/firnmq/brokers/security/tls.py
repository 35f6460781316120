"""The TLS context of a listener."""

from __future__ import annotations

import ssl
from pathlib import Path

from firnmq.errors import InvalidArgument


def server_context(
    certificate: Path, key: Path | None = None, client_ca: Path | None = None
) -> ssl.SSLContext:
    """TLS 1.2 or newer. With `client_ca`, clients must show a certificate that it signed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An encrypted key is refused: asking for its password would hang a node without terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        what = f"{certificate}" if key is None else f"{certificate} and {key}"
        raise InvalidArgument("tls_certificate", f"{what} cannot be used: {error}") from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument("tls_client_ca", f"{client_ca}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
