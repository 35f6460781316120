"""Users that administrators make with Kafka's calls."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages import clients
from firnmq.brokers.security.users import UserStore
from tests.unit.brokers.kafka.access.test_matrix import Judged, judged
from tests.unit.brokers.kafka.stage import Stage, on_stage

ROOT = "User:root"
ALTER, DESCRIBE = ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS


def upsertion(name: str, mechanism: int = 1, **changes: Any) -> clients.ScramUpsertion:
    digest = {1: "sha256", 2: "sha512"}.get(mechanism, "sha256")
    fields: dict[str, Any] = {
        "iterations": 4_096,
        "salt": b"salt",
        "salted_password": hashlib.pbkdf2_hmac(digest, b"secret", b"salt", 4_096),
    }
    return clients.ScramUpsertion(name=name, mechanism=mechanism, **(fields | changes))


async def alter(
    there: Judged,
    *upsertions: clients.ScramUpsertion,
    deletions: tuple[clients.ScramDeletion, ...] = (),
) -> dict[str, int]:
    request = clients.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    answer = await there.ask(ROOT, ALTER, 0, request)
    return {each.user: each.error_code for each in answer.results}


async def described(there: Judged, *names: str) -> dict[str, Any]:
    users = [clients.ScramUserName(name=name) for name in names] or None
    request = clients.DescribeUserScramCredentialsRequest(users=users)
    answer = await there.ask(ROOT, DESCRIBE, 0, request)
    return {
        each.user: each.error_code or [info.mechanism for info in each.credential_infos]
        for each in answer.results
    }


def users_of(stage: Stage) -> UserStore:
    return stage.node.broker._users


def test_users_are_made_changed_shown_and_removed(tmp_path: Path) -> None:
    async def act(there: Judged) -> None:
        users = users_of(there.stage)
        # 1. A user with one credential, and one with both.
        both = (upsertion("bob"), upsertion("bob", 2))
        assert await alter(there, upsertion("ann", 2), *both) == {"ann": 0, "bob": 0}
        assert await described(there) == {"ann": [2], "bob": [1, 2]}
        for name, digest in (("ann", "sha512"), ("bob", "sha256"), ("bob", "sha512")):
            credential = users.get(name, digest)  # type: ignore[arg-type]
            assert credential is not None
            assert credential.matches("secret")
        assert users.get("ann") is None
        # 2. One credential is taken away, then the user is gone.
        first = clients.ScramDeletion(name="bob", mechanism=1)
        second = clients.ScramDeletion(name="bob", mechanism=2)
        assert await alter(there, deletions=(first,)) == {"bob": 0}
        assert await described(there, "bob") == {"bob": [2]}
        gone = ErrorCode.RESOURCE_NOT_FOUND
        assert await alter(there, deletions=(first,)) == {"bob": gone}
        assert await alter(there, deletions=(second,)) == {"bob": 0}
        assert await described(there, "bob") == {"bob": gone}
        assert users.names() == ["ann"]
        # 3. A password that firn sets makes both credentials.
        users.put("ann", "other")
        assert await described(there, "ann", "ann") == {"ann": ErrorCode.DUPLICATE_RESOURCE}
        assert await described(there, "ann") == {"ann": [1, 2]}

    judged(tmp_path, act, ROOT)


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"iterations": 4_095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16_385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"short"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_bad_credentials_are_refused(
    changes: dict[str, Any], code: ErrorCode, tmp_path: Path
) -> None:
    async def act(there: Judged) -> None:
        bad = upsertion(**({"name": "ann"} | changes))
        assert await alter(there, bad) == {bad.name: code}
        twice = await alter(there, upsertion("ann"), upsertion("ann"))
        assert twice == {"ann": ErrorCode.DUPLICATE_RESOURCE}
        assert users_of(there.stage).names() == []

    judged(tmp_path, act, ROOT)


def test_without_rights_of_clients_no_client_makes_users(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        request = clients.AlterUserScramCredentialsRequest(
            deletions=[], upsertions=[upsertion("ann")]
        )
        stage.feed(stage.request(1, ALTER, request, 0))
        ((_, answer),) = await stage.answers(1)
        assert isinstance(answer, clients.AlterUserScramCredentialsResponse)
        assert answer.results[0].error_code == ErrorCode.SECURITY_DISABLED
        assert users_of(stage).names() == []

    on_stage(tmp_path, act)
