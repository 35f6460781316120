"""Sessions of the console: what a browser shows in place of a bearer token.

A session has two halves. The *cookie* is HttpOnly and SameSite=Strict, so that no script reads it
and no other site sends it. The *proof* is told to the page that signs in, which keeps it for its
origin and sends it in a header. Browsers send cookies to every port of a host, so another program
of the machine can get the cookie; without the proof it is worth nothing. A page of another origin
cannot know the proof either, so a change that carries it was made by our own page.

Both are codes under a key that is derived from the token. Nothing is kept: every process of a
machine knows a session, and a session ends when its token is changed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple

from firnmq.server.admin.http.token import ANYBODY, Caller, TokenOf, Tokens

PROOF_HEADER: Final = "x-firn-proof"
SESSION_S: Final = 12 * 3600
_NONCE_BYTES: Final = 16
_COOKIE_CHARS_MAX: Final = 200
_OPEN: Final = TokenOf(b"", ANYBODY)
"""Of a listener that requires no token. Its key is known to all: only the cookie, which a page
cannot read, keeps the proof from pages of other origins."""


class Opened(NamedTuple):
    """A new session."""

    cookie: str
    """Value of the header Set-Cookie."""
    proof: str
    caller: Caller


class Sessions:
    """The sessions of one listener."""

    def __init__(self, tokens: Tokens, now_s: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._now_s = now_s

    def open(self, host: str, token: bytes) -> Opened | None:
        """A session for whom the token belongs to; None if it is not one of the listener's."""
        entry = self._tokens.find(token) if self._tokens.are_required else _OPEN
        if entry is None:
            return None
        text = f"{int(self._now_s()) + SESSION_S}.{secrets.token_hex(_NONCE_BYTES)}"
        value = f"{text}.{_code(entry, 'session', text)}"
        cookie = _set_cookie(host, value, SESSION_S)
        return Opened(cookie, _code(entry, "proof", text), entry.caller)

    def closed(self, host: str) -> str:
        """The header that has the browser forget the session."""
        return _set_cookie(host, "", 0)

    def caller(self, host: str, cookies: str, proof: str) -> Caller | None:
        """Whose session it is; None if a half is missing, wrong or too old."""
        text, _, code = _value_of(cookies, cookie_name(host)).rpartition(".")
        until = text.partition(".")[0]
        if not (until.isascii() and until.isdigit()) or int(until) <= self._now_s():
            return None
        found = None
        entries = self._tokens.all if self._tokens.are_required else (_OPEN,)
        for entry in entries:  # Every one is compared, so that the time tells nothing.
            has_cookie = _equal(code, _code(entry, "session", text))
            has_proof = _equal(proof, _code(entry, "proof", text))
            if has_cookie and has_proof:
                found = entry.caller
        return found


def cookie_name(host: str) -> str:
    """By port, so that nodes on one machine do not take each other's."""
    port = host.rpartition(":")[2]
    return f"firn-session-{port if port.isdigit() else 80}"


def _set_cookie(host: str, value: str, age_s: int) -> str:
    name = cookie_name(host)
    return f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict"


def _value_of(cookies: str, name: str) -> str:
    try:
        found = SimpleCookie(cookies).get(name)
    except CookieError:
        return ""
    return "" if found is None or len(found.value) > _COOKIE_CHARS_MAX else found.value


def _code(entry: TokenOf, purpose: str, text: str) -> str:
    key = hmac.digest(entry.token, b"firn console", "sha256")
    return hmac.new(key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
