"""Calls to etcd: finds a member that answers, bounds every wait, and gives every failure a type.

Calls that change nothing are retried at the other members until their time is up. A transaction is
sent once: if its response is lost, the outcome is unknown, and StorageFailed says so. It is sent
only to a member that answered a moment ago, so that a member that is down seldom causes that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import grpc

from firnmq.errors import Closed, DiskFull, FirnError, InvalidArgument, TimedOut, storage_failure
from firnmq.eventlog import EventLogger
from firnmq.meta.etcd import etcd_rpc_pb2 as rpc

WHERE = "the meta store"
CALL_S = 5.0
"""How long a call may take. etcd elects a new leader in about a second."""
_PROBE_S = 1.0
_FRESH_S = 1.0
"""A member that answered within this time gets calls without being probed first."""
_PAUSE_S = 0.05
_OPTIONS = [
    ("grpc.keepalive_time_ms", 5_000),  # The shortest interval that etcd allows by default.
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    ("grpc.max_receive_message_length", 512 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),  # A closed client leaves no connection behind.
]
_VERSION_MIN = (3, 4, 22)
_VERSIONS_THAT_LOSE_DATA = {(3, 5, 0), (3, 5, 1), (3, 5, 2)}
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}
"""Another member, or the same one a moment later, may answer."""
_log = EventLogger("meta")


class Wire(Protocol):
    """The common interface of requests and responses."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802


Asked = TypeVar("Asked", bound=Any)
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True)
class Method(Generic[Asked, Told]):
    name: str
    answer: type[Told]


RANGE: Method[rpc.RangeRequest, rpc.RangeResponse] = Method("KV/Range", rpc.RangeResponse)
TXN: Method[rpc.TxnRequest, rpc.TxnResponse] = Method("KV/Txn", rpc.TxnResponse)
COMPACT: Method[rpc.CompactionRequest, rpc.CompactionResponse] = Method(
    "KV/Compact", rpc.CompactionResponse
)
WATCH: Method[rpc.WatchRequest, rpc.WatchResponse] = Method("Watch/Watch", rpc.WatchResponse)
GRANT: Method[rpc.LeaseGrantRequest, rpc.LeaseGrantResponse] = Method(
    "Lease/LeaseGrant", rpc.LeaseGrantResponse
)
REVOKE: Method[rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse] = Method(
    "Lease/LeaseRevoke", rpc.LeaseRevokeResponse
)
KEEP_ALIVE: Method[rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse] = Method(
    "Lease/LeaseKeepAlive", rpc.LeaseKeepAliveResponse
)
STATUS: Method[rpc.StatusRequest, rpc.StatusResponse] = Method(
    "Maintenance/Status", rpc.StatusResponse
)
AUTHENTICATE: Method[rpc.AuthenticateRequest, rpc.AuthenticateResponse] = Method(
    "Auth/Authenticate", rpc.AuthenticateResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Addresses and credentials of etcd."""

    endpoints: tuple[str, ...]
    """`host:port` of each member; any number of them may be down as long as a majority is not."""
    ca_file: Path | None = None
    """CA certificates. With them, connections use TLS."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    user: str = ""
    password: str = ""
    call_s: float = CALL_S


class EtcdRefused(FirnError):
    """etcd refuses our credentials, or has an unsafe version. An operator must act."""


class EtcdError(FirnError):
    """etcd answered with an error; `code` says which kind."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(f"etcd: {text}")
        self.code = code


class Member:
    """One endpoint and its connection."""

    def __init__(self, endpoint: str, channel: grpc.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self._answered_at = -math.inf

    @property
    def is_ready(self) -> bool:
        """Whether it answered a moment ago. gRPC's own connectivity states are not used: it polls
        them in a thread that raises when the channel is closed."""
        return time.monotonic() - self._answered_at < _FRESH_S

    def note_answer(self) -> None:
        self._answered_at = time.monotonic()

    def note_failure(self) -> None:
        self._answered_at = -math.inf


class EtcdClient:
    """Safe with threads."""

    def __init__(self, settings: EtcdSettings) -> None:
        if not settings.endpoints:
            raise InvalidArgument("endpoints", "etcd needs at least one, such as 10.0.0.1:2379")
        self._settings = settings
        self._lock = threading.Lock()
        """Guards everything below."""
        self._members = [Member(each, _channel(each, settings)) for each in settings.endpoints]
        self._token: str | None = None
        self._is_closed = False
        self._warned_of: set[str] = set()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for member in self._members:
            member.channel.close()

    # Calls

    def ask(self, method: Method[Asked, Told], request: Asked) -> Told:
        """An idempotent call: retried until its time is up."""
        deadline = time.monotonic() + self._settings.call_s
        while True:
            member = self._member(deadline)
            try:
                return self._call(member, method, request, deadline)
            except grpc.RpcError as error:
                self._give_up_on(member)
                if error.code() not in _PASSING:
                    raise _typed(error) from error
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise self._unavailable(error) from error
                time.sleep(_PAUSE_S)

    def send(self, method: Method[Asked, Told], request: Asked) -> Told:
        """A call that is sent once. TimedOut: not sent. StorageFailed: the outcome is unknown."""
        member = self._member(time.monotonic() + self._settings.call_s)
        try:
            return self._call(member, method, request, time.monotonic() + self._settings.call_s)
        except grpc.RpcError as error:
            if error.code() not in _PASSING:
                raise _typed(error) from error
            self._give_up_on(member)
            failure = storage_failure(WHERE, _described(error))
            failure.is_outcome_unknown = True
            raise failure from error

    def stream(
        self, method: Method[Asked, Told], requests: Iterator[Asked], timeout_s: float | None = None
    ) -> Any:
        """A streaming call: an iterator of responses, with `cancel`."""
        member = self._member(time.monotonic() + self._settings.call_s)
        start = member.channel.stream_stream(
            f"/etcdserverpb.{method.name}",
            request_serializer=_serialized,
            response_deserializer=method.answer.FromString,  # type: ignore[attr-defined]
        )
        return start(requests, timeout=timeout_s, metadata=self._metadata())

    def _call(
        self, member: Member, method: Method[Asked, Told], request: Asked, deadline: float
    ) -> Told:
        try:
            return self._unary(member, method, request, deadline, self._metadata())
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED or not self._settings.user:
                raise
        self._authenticate(member, deadline)  # Tokens lapse; the call was refused, so not made.
        return self._unary(member, method, request, deadline, self._metadata())

    def _unary(
        self,
        member: Member,
        method: Method[Asked, Told],
        request: Asked,
        deadline: float,
        metadata: list[tuple[str, str]],
    ) -> Told:
        call = member.channel.unary_unary(
            f"/etcdserverpb.{method.name}",
            request_serializer=_serialized,
            response_deserializer=method.answer.FromString,  # type: ignore[attr-defined]
        )
        left = max(deadline - time.monotonic(), 0.001)
        answer: Told = call(request, timeout=left, metadata=metadata)
        member.note_answer()
        return answer

    # Members

    def _member(self, deadline: float) -> Member:
        """A member that answers and knows a leader; the last good one if it still does."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise Closed("the meta store is closed")
                members = list(self._members)
            for member in members:
                if member.is_ready and member is members[0]:
                    return member
                if self._probe(member, deadline):
                    self._prefer(member)
                    return member
            if time.monotonic() + _PAUSE_S >= deadline:
                raise self._unavailable(None)
            time.sleep(_PAUSE_S)

    def _probe(self, member: Member, deadline: float) -> bool:
        until = min(deadline, time.monotonic() + _PROBE_S)
        try:
            status = self._call(member, STATUS, rpc.StatusRequest(), until)
        except grpc.RpcError as error:
            if error.code() not in _PASSING:
                raise _typed(error) from error
            return False
        self._check_version(member, status.version)
        if not status.leader:
            member.note_failure()  # It answers, but cannot serve a call.
            return False
        return True

    def _prefer(self, member: Member) -> None:
        with self._lock:
            self._members.remove(member)
            self._members.insert(0, member)

    def _give_up_on(self, member: Member) -> None:
        """Tries the other members first from now on."""
        with self._lock:
            member.note_failure()
            self._members.remove(member)
            self._members.append(member)

    def _check_version(self, member: Member, version: str) -> None:
        numbers = tuple(int(each) for each in version.split("-", maxsplit=1)[0].split("."))
        if numbers < _VERSION_MIN or numbers in _VERSIONS_THAT_LOSE_DATA:
            raise EtcdRefused(
                f"etcd {version} at {member.endpoint} can lose data; run 3.6 or newer "
                "(make etcd builds it)"
            )
        if numbers < (3, 6) and member.endpoint not in self._warned_of:
            self._warned_of.add(member.endpoint)
            _log.warning("etcd_is_old", endpoint=member.endpoint, version=version, wanted="3.6")

    def _unavailable(self, error: grpc.RpcError | None) -> TimedOut:
        where = ", ".join(self._settings.endpoints)
        why = f" ({_described(error)})" if error is not None else ""
        return TimedOut(
            f"no member of etcd at {where} answered within {self._settings.call_s:g} s{why}; "
            "nothing was changed"
        )

    # Who we are

    def _authenticate(self, member: Member, deadline: float) -> None:
        request = rpc.AuthenticateRequest(
            name=self._settings.user, password=self._settings.password
        )
        try:
            answer = self._unary(member, AUTHENTICATE, request, deadline, [])
        except grpc.RpcError as error:
            if error.code() in _PASSING:
                raise
            raise EtcdRefused(
                f"etcd refuses user {self._settings.user!r}: {_described(error)}"
            ) from error
        with self._lock:
            self._token = answer.token

    def _metadata(self) -> list[tuple[str, str]]:
        with self._lock:
            token = self._token
        if token is None and self._settings.user:
            token = "none yet"  # Refused as any other that is not valid, and replaced then.
        return [] if token is None else [("token", token)]


def _channel(endpoint: str, settings: EtcdSettings) -> grpc.Channel:
    if settings.ca_file is None:
        return grpc.insecure_channel(endpoint, options=_OPTIONS)
    key, certificate = settings.key_file, settings.certificate_file
    credentials = grpc.ssl_channel_credentials(
        settings.ca_file.read_bytes(),
        None if key is None else key.read_bytes(),
        None if certificate is None else certificate.read_bytes(),
    )
    return grpc.secure_channel(endpoint, credentials, options=_OPTIONS)


def _serialized(request: Wire) -> bytes:
    return request.SerializeToString()


def _described(error: grpc.RpcError) -> OSError:
    return OSError(f"{error.code().name.lower()}: {error.details()}")


def _typed(error: grpc.RpcError) -> FirnError:
    match error.code():
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return DiskFull(WHERE, _described(error))
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return EtcdRefused(f"etcd does not let us in: {_described(error)}")
        case _:
            return EtcdError(error.code(), str(error.details()))
