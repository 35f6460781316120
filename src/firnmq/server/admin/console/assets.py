"""The files of the console's page, and the headers that they go with.

The page has no data in it, so it needs no token; everything it shows comes from the API. It loads
nothing from elsewhere, and the policy has the browser enforce that: no other source, no inline
script or style, no frame, and no string that becomes markup.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

POLICY: Final = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'"),
        *("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}
VIEWS: Final = (
    *("topics", "groups", "tiering", "lake", "users", "rules", "sql", "cluster", "sign-in"),
)
"""First parts of the addresses that show the page, besides `/`."""
_PAGE: Final = "index.html"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    raw: bytes
    packed: bytes
    """The same by gzip."""
    kind: str
    tag: str


def load_assets() -> Mapping[str, Asset]:
    """By name. Read once, when the listener starts."""
    found = {}
    for file in files("firnmq.server.admin.console").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _KINDS:
            raw = file.read_bytes()
            found[file.name] = Asset(
                raw=raw,
                packed=gzip.compress(raw, 9, mtime=0),
                kind=_KINDS[suffix],
                tag=f'"{hashlib.sha256(raw).hexdigest()[:20]}"',
            )
    return found


def page(assets: Mapping[str, Asset]) -> Asset:
    """What every view's address answers with."""
    return assets[_PAGE]
