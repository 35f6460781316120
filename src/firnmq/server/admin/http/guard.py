"""Accepts or refuses HTTP requests by their headers, before anything else is done.

The listener is often local and without a token, and web pages in the operator's browser can send
requests to it. A request of a page is recognised by its Origin, by a Host that is not the
listener's, or by a body that is not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from firnmq.config import AdminConfig, is_loopback, parsed_address
from firnmq.server.admin.errors import Refused
from firnmq.server.admin.http.sessions import PROOF_HEADER, Sessions
from firnmq.server.admin.http.token import ADMINISTRATOR, ANYBODY, Caller, Role, TokenOf, Tokens

JSON: Final = "application/json"
_CHANGES: Final = ("POST", "PUT", "PATCH")
_HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:/@?#\s]+))(?::[0-9]*)?")
"""An address in brackets or a host, and a port."""


class AccessGuard:
    """The rules of one listener. Requests need a token, if there is one."""

    def __init__(self, config: AdminConfig, tokens: Tokens | bytes | None) -> None:
        """`tokens`: may be one that may do everything."""
        if not isinstance(tokens, Tokens):
            tokens = Tokens(() if tokens is None else (TokenOf(tokens, ADMINISTRATOR),))
        self._tokens = tokens
        self.sessions = Sessions(tokens)
        self._is_local = is_loopback(config.host)
        self._names = {name.lower() for name in (config.host, *config.host_names)}

    def check(
        self,
        method: str,
        headers: Iterable[tuple[str, str]],
        *,
        http_version: str = "1.1",
        needs_token: bool,
    ) -> Caller:
        """Returns who asks, or raises Refused. The headers are all that were sent; their names are
        in lower case."""
        found: dict[str, list[str]] = {}
        for name, value in headers:
            found.setdefault(name, []).append(value)
        hosts = found.get("host", [""])
        host = hosts[0]
        if len(hosts) > 1 or (not host and http_version != "1.0"):
            raise Refused(400, "a request needs one Host header that is not empty")
        if not self._is_called(host):
            raise Refused(
                421,
                f"this listener is not called {host!r}; use its address, or let admin.host_names "
                "have the name",
            )
        for origin in found.get("origin", ()):
            if not host or origin.lower() != f"http://{host}".lower():
                raise Refused(403, f"pages of {origin!r} may not use this listener")
        if method in _CHANGES:
            kind = found.get("content-type", [""])[0].partition(";")[0].strip()
            if kind != JSON:
                raise Refused(415, f"send {JSON}")
        if not needs_token:
            return ANYBODY
        is_page = "origin" in found and method not in ("GET", "HEAD")
        if not self._tokens.are_required and not is_page:
            return ANYBODY
        return self._caller(found, host)

    def _caller(self, headers: dict[str, list[str]], host: str) -> Caller:
        """By a bearer token, or by both halves of a session: browsers send cookies by themselves,
        so a cookie alone permits nothing."""
        if "authorization" in headers and self._tokens.are_required:
            given = headers["authorization"][0].removeprefix("Bearer ")
            caller = self._tokens.caller(given.encode())
            if caller is None:
                raise Refused(401, "the bearer token is missing or wrong")
            return caller
        cookies, proof = "; ".join(headers.get("cookie", ())), headers.get(PROOF_HEADER, [""])[0]
        caller = self.sessions.caller(host, cookies, proof)
        if caller is None and self._tokens.are_required:
            raise Refused(401, "the bearer token is missing or wrong")
        if caller is None:
            raise Refused(
                403,
                f"a page's change needs its session: POST /v1/session, and the "
                f"header {PROOF_HEADER} with the proof from its answer",
            )
        return caller

    def _is_called(self, host_header: str) -> bool:
        """Whether the listener accepts this host. Any address is accepted, since only a name can be
        rebound. With a token any name is accepted, since a page does not know the token."""
        if not host_header:
            return True  # HTTP/1.0; every browser sends one.
        match = _HOST.fullmatch(host_header)
        if match is None:
            return False
        host = (match[1] or match[2]).lower()
        if host in self._names or is_loopback(host):
            return True
        if self._is_local:
            return False
        return self._tokens.are_required or parsed_address(host) is not None


def check_role(caller: Caller, needed: Role) -> None:
    """Raises Refused if the caller may not."""
    if caller.role < needed:
        raise Refused(
            403,
            f"this needs the role {needed.name.lower()}, and the token of {caller.name!r} has "
            f"{caller.role.name.lower()}",
        )
