"""Checks who clients are: users, mechanisms, and a throttle for failed logins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from firnmq.brokers.security.credentials import Digest, ScramCredential, decoy
from firnmq.brokers.security.login_throttle import WAIT_MAX_S, LoginThrottle
from firnmq.brokers.security.scram import AuthenticationFailed
from firnmq.brokers.security.users import USER_NAME_CHARS_MAX, UserStore
from firnmq.errors import FirnError

PLAIN = "PLAIN"
SCRAM_DIGESTS: Final[dict[str, Digest]] = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256"}
MECHANISMS = (*SCRAM_DIGESTS, PLAIN)
"""Those there are, the better ones first."""


class TooManyFailures(FirnError):
    """Too many logins of this user from this address have failed. The connection is closed without
    an answer, since clients take an answer for final and try again after a lost connection."""


class Authenticator:
    """Checks passwords and proofs against the users of the node. Owned by the event loop."""

    def __init__(
        self,
        users: UserStore,
        mechanisms: Sequence[str],
        *,
        wait_max_s: float = WAIT_MAX_S,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`wait_max_s`: how long a login may wait because others failed."""
        self._users = users
        self.mechanisms = tuple(mechanisms)
        self._decoy_secret = users.decoy_secret()
        self._throttle = LoginThrottle(wait_max_s)
        self._now_s = now_s
        self._sleep = sleep

    def find(self, name: str, digest: Digest = "sha256") -> ScramCredential:
        """The user's credential, or one that nothing matches: clients cannot learn who exists."""
        return self._users.get(name, digest) or decoy(name, self._decoy_secret, digest)

    def lacks(self, name: str, digest: Digest) -> bool:
        """Whether there is such a user, without a credential for the hash."""
        return self._users.get(name) is not None and self._users.get(name, digest) is None

    async def check(
        self,
        address: str,
        name: str,
        proves: Callable[[ScramCredential], bool],
        credential: ScramCredential,
    ) -> None:
        """Returns if the client is the user, who is still there. AuthenticationFailed if not, and
        TooManyFailures if the client must come back later."""
        user = name[:USER_NAME_CHARS_MAX]  # No user has a longer name.
        wait_s = self._throttle.reserve(address, user, self._now_s())
        if wait_s is None:
            raise TooManyFailures("too many failed logins of the user from this address")
        if wait_s:
            await self._sleep(wait_s)
        # Hashing takes milliseconds of one core, so a thread does it.
        loop = asyncio.get_running_loop()
        is_proven = await loop.run_in_executor(None, proves, credential)
        # The user may have been removed, or been given another password, in the meantime.
        if not is_proven or self.find(name, credential.digest) != credential:
            self._throttle.failed(address, user, self._now_s())
            raise AuthenticationFailed("user name or password is wrong")
        self._throttle.succeeded(address, user)
