"""DescribeUserScramCredentials and AlterUserScramCredentials."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.clients import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialInfo,
    ScramUpsertion,
)
from firnmq.brokers.net.loop_turns import Turns
from firnmq.brokers.security.credentials import Digest, ScramCredential
from firnmq.brokers.security.users import UserNotFound, UserStore
from firnmq.errors import FirnError, InvalidArgument

_MECHANISMS: Final[dict[int, Digest]] = {1: "sha256", 2: "sha512"}
"""Kafka's numbers of SCRAM-SHA-256 and SCRAM-SHA-512."""
_DIGEST_BYTES: Final = {"sha256": 32, "sha512": 64}
_ITERATIONS = range(4_096, 16_385)
_SALT_BYTES_MAX = 1_024
_NO_RULES = (
    "users can be changed only where clients have rights: set security.authorization, or use"
    " firn user"
)


class UserHandler:
    def __init__(
        self,
        users: UserStore,
        turns: Turns,
        close_user: Callable[[str], int],
        *,
        may_alter: bool,
    ) -> None:
        """`may_alter`: there is an authorizer. Without one every client could make itself users,
        so that a user that it stole a password of could not be shut out."""
        self._users = users
        self._turns = turns
        self._close_user = close_user
        self._may_alter = may_alter

    async def describe(
        self, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        users = self._users
        loop = asyncio.get_running_loop()
        names = [each.name for each in request.users or ()]
        known = set(await loop.run_in_executor(None, users.names))
        counts = Counter(names or known)
        results = []
        async for name in self._turns.over(sorted(counts)):
            if counts[name] > 1:
                results.append(_refused(name, ErrorCode.DUPLICATE_RESOURCE, "is named twice"))
            elif name not in known:
                results.append(
                    _refused(name, ErrorCode.RESOURCE_NOT_FOUND, "there is no such user")
                )
            else:
                infos = []
                for mechanism, digest in _MECHANISMS.items():
                    found = await loop.run_in_executor(None, users.get, name, digest)
                    if found is not None:
                        infos.append(
                            ScramCredentialInfo(mechanism=mechanism, iterations=found.iterations)
                        )
                results.append(DescribedScramUser(user=name, credential_infos=infos))
        return DescribeUserScramCredentialsResponse(results=results)

    async def alter(
        self, request: AlterUserScramCredentialsRequest
    ) -> AlterUserScramCredentialsResponse:
        changes: dict[str, list[tuple[int, ScramUpsertion | None]]] = {}
        async for each in self._turns.over(request.deletions):
            changes.setdefault(each.name, []).append((each.mechanism, None))
        async for upsertion in self._turns.over(request.upsertions):
            changes.setdefault(upsertion.name, []).append((upsertion.mechanism, upsertion))
        return AlterUserScramCredentialsResponse(
            results=[
                await self._alter(name, wanted)
                async for name, wanted in self._turns.over(changes.items())
            ]
        )

    async def _alter(
        self, name: str, wanted: list[tuple[int, ScramUpsertion | None]]
    ) -> AlteredScramUser:
        code, text = _problem(name, wanted)
        if not self._may_alter:
            code, text = ErrorCode.SECURITY_DISABLED, _NO_RULES
        if code is not ErrorCode.NONE:
            return AlteredScramUser(user=name, error_code=code, error_message=text)
        store = self._users

        def change() -> bool:
            for mechanism, upsertion in wanted:
                digest = _MECHANISMS[mechanism]
                credential = None
                if upsertion is not None:
                    credential = ScramCredential.of_salted(
                        bytes(upsertion.salted_password),
                        salt=bytes(upsertion.salt),
                        iterations=upsertion.iterations,
                        digest=digest,
                    )
                store.put_credential(name, credential, digest)
            return name not in store.names()

        try:
            is_gone = await asyncio.get_running_loop().run_in_executor(None, change)
        except UserNotFound as error:
            return AlteredScramUser(
                user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=str(error)
            )
        except FirnError as error:
            code = ErrorCode.UNACCEPTABLE_CREDENTIAL
            code = code if isinstance(error, InvalidArgument) else code_of(error)
            return AlteredScramUser(user=name, error_code=code, error_message=str(error))
        if is_gone:
            self._close_user(name)
        return AlteredScramUser(user=name)


def _problem(name: str, wanted: list[tuple[int, ScramUpsertion | None]]) -> tuple[ErrorCode, str]:
    mechanisms = [mechanism for mechanism, _ in wanted]
    if not set(mechanisms) <= _MECHANISMS.keys():
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if len(set(mechanisms)) < len(mechanisms):
        return ErrorCode.DUPLICATE_RESOURCE, f"a credential of user {name!r} is changed twice"
    for mechanism, upsertion in wanted:
        if upsertion is None:
            continue
        if upsertion.iterations not in _ITERATIONS:
            text = f"iterations must be {_ITERATIONS.start} to {_ITERATIONS.stop - 1}"
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, text
        is_salted = 0 < len(upsertion.salt) <= _SALT_BYTES_MAX
        if not is_salted or len(upsertion.salted_password) != _DIGEST_BYTES[_MECHANISMS[mechanism]]:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the salt or the salted password is malformed"
    return ErrorCode.NONE, ""


def _refused(name: str, code: ErrorCode, text: str) -> DescribedScramUser:
    return DescribedScramUser(
        user=name, error_code=code, error_message=f"user {name!r}: {text}", credential_infos=[]
    )
