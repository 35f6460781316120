"""Calls to etcd: finds a member that answers, bounds every wait, and gives every failure a type.

Calls that change nothing are retried at the other members until their time is up. A transaction is
sent once: if its response is lost, the outcome is unknown, and StorageFailed says so. It is sent
only to a member that answered a moment ago, so that a member that is down seldom causes that.

A member that does not answer is left for another one after a second. If none answers, all of them
may be slow: they get more time from then on, up to that of a whole call.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import grpc

from firnmq.errors import Closed, DiskFull, FirnError, InvalidArgument, TimedOut, storage_failure
from firnmq.eventlog import EventLogger
from firnmq.meta.etcd import etcd_rpc_pb2 as rpc
from firnmq.meta.etcd_versions import EtcdRefused, checked_version

WHERE = "the meta store"
CALL_S = 5.0
"""How long a call may take. etcd elects a new leader in about a second."""
_PATIENCE_S = 1.0
"""How long a member may take for an answer before another one is tried, if etcd is not slow."""
_PAUSE_S = 0.05
_LOGGED_AFTER_S = 1.0
"""A wait that is longer than this is logged while it lasts."""
_OPTIONS = [
    ("grpc.keepalive_time_ms", 5_000),  # The shortest interval that etcd allows by default.
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    ("grpc.max_receive_message_length", 512 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),  # A closed client leaves no connection behind.
]
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
    is_stream: bool = False
    """Of such a call, `ask` sends one request and takes one answer."""


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
    "Lease/LeaseKeepAlive", rpc.LeaseKeepAliveResponse, is_stream=True
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
    password: str = field(default="", repr=False)
    call_s: float = CALL_S
    """How long a member is looked for, and then how long a call may take."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidArgument("endpoints", "etcd needs at least one, such as 10.0.0.1:2379")
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgument("certificate_file", "and key_file are given together or not")
        if self.certificate_file is not None and self.ca_file is None:
            raise InvalidArgument("ca_file", "is missing: certificate_file is for TLS")


class EtcdError(FirnError):
    """etcd answered with an error; `code` says which kind."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(f"etcd: {text}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Stream:
    """A streaming call."""

    answers: Any
    """An iterator of responses, with `cancel`."""
    give_up: Callable[[], None]
    """Has its member tried last from now on: the stream broke."""


class _NoAnswer(Exception):
    """A member cannot serve a call; another one, or the same one later, may."""

    def __init__(self, member: Member, reason: str, *, is_late: bool = False) -> None:
        super().__init__(f"{member.endpoint}: {reason}")
        self.is_late = is_late


class _Wait:
    """One caller's wait for etcd: logged once, if it is long."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._is_logged = False

    def note(self, why: str) -> None:
        if not self._is_logged and time.monotonic() - self._began >= _LOGGED_AFTER_S:
            self._is_logged = True
            _log.warning("meta_waits", waits_for="etcd", because=why)

    def end(self, member: Member) -> None:
        if self._is_logged:
            waited_s = f"{time.monotonic() - self._began:.1f}"
            _log.info("meta_goes_on", endpoint=member.endpoint, waited_s=waited_s)


class Member:
    """One endpoint and its connection."""

    def __init__(self, endpoint: str, channel: grpc.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self._answered_at = -math.inf

    def has_answered_within(self, seconds: float) -> bool:
        """gRPC's own connectivity states are not used: it polls them in a thread that raises when
        the channel is closed."""
        return time.monotonic() - self._answered_at < seconds

    def note_answer(self) -> None:
        self._answered_at = time.monotonic()

    def note_failure(self) -> None:
        self._answered_at = -math.inf


class EtcdClient:
    """Safe with threads."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        """Guards everything below."""
        self._members = [Member(each, _channel(each, settings)) for each in settings.endpoints]
        self._patience_s = min(_PATIENCE_S, settings.call_s)
        self._cluster_id = 0
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
        wait = _Wait()
        while True:
            member = self._member(deadline, wait)
            until = max(deadline, time.monotonic() + self._patience_s)
            try:
                return self._call(member, method, request, until)
            except grpc.RpcError as error:
                self._give_up_on(member)
                if error.code() not in _PASSING:
                    raise _typed(error) from error
                wait.note(f"{member.endpoint}: {_described(error)}")
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise self._unavailable(_described(error)) from error
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
            failure = storage_failure(WHERE, OSError(_described(error)))
            failure.is_outcome_unknown = True
            raise failure from error

    def stream(self, method: Method[Asked, Told], requests: Iterator[Asked]) -> Stream:
        """A streaming call. etcd ends it if its member loses the majority: it would else be silent
        while others go on."""
        deadline = time.monotonic() + self._settings.call_s
        member = self._member(deadline)
        if self._settings.user:  # A stream would end with a token that has lapsed.
            try:
                self._authenticate(member, deadline)
            except grpc.RpcError as error:
                self._give_up_on(member)
                raise self._unavailable(_described(error)) from error
        start = member.channel.stream_stream(
            f"/etcdserverpb.{method.name}",
            request_serializer=_serialized,
            response_deserializer=method.answer.FromString,  # type: ignore[attr-defined]
        )
        metadata = [*self._metadata(), ("hasleader", "true")]
        return Stream(
            answers=start(requests, metadata=metadata),
            give_up=lambda: self._give_up_on(member),
        )

    @property
    def silence_s(self) -> float:
        """How long a stream that was asked for an answer may be silent before it counts as broken;
        longer while etcd is slow."""
        return 3 * self._patience_s

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
        channel = member.channel
        start = (channel.stream_stream if method.is_stream else channel.unary_unary)(
            f"/etcdserverpb.{method.name}",
            request_serializer=_serialized,
            response_deserializer=method.answer.FromString,  # type: ignore[attr-defined]
        )
        left = max(deadline - time.monotonic(), 0.001)
        answer: Told
        if method.is_stream:
            answers = start(iter([request]), timeout=left, metadata=metadata)
            try:
                answer = next(answers)
            except StopIteration:
                raise storage_failure(WHERE, OSError("etcd ended a call")) from None
            finally:
                answers.cancel()
        else:
            answer = start(request, timeout=left, metadata=metadata)
        member.note_answer()
        return answer

    # Members

    def _member(self, deadline: float, wait: _Wait | None = None) -> Member:
        """A member that answers and knows a leader; the last good one if it still does."""
        wait = wait or _Wait()
        while True:
            with self._lock:
                if self._is_closed:
                    raise Closed("the meta store is closed")
                members = list(self._members)
            if members[0].has_answered_within(self._patience_s):
                return members[0]
            failures: list[_NoAnswer] = []
            for member in members:
                try:
                    self._probe(member, deadline)
                except _NoAnswer as failure:
                    failures.append(failure)
                    continue
                self._prefer(member)
                wait.end(member)
                return member
            if any(each.is_late for each in failures):
                self._patience_s = min(3 * self._patience_s, self._settings.call_s)
            why = "; ".join(map(str, failures))
            wait.note(why)
            if time.monotonic() + _PAUSE_S >= deadline:
                raise self._unavailable(why)
            time.sleep(_PAUSE_S)

    def _probe(self, member: Member, deadline: float) -> None:
        """_NoAnswer if the member cannot serve a call now."""
        began = time.monotonic()
        until = min(deadline, began + self._patience_s)
        try:
            status = self._call(member, STATUS, rpc.StatusRequest(), until)
        except grpc.RpcError as error:
            if error.code() not in _PASSING:
                raise _typed(error) from error
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise _NoAnswer(member, _described(error), is_late=is_late) from error
        took_s = time.monotonic() - began
        self._patience_s = min(max(2 * took_s, _PATIENCE_S), self._settings.call_s)
        self._check_version(member, status.version)
        self._check_cluster(member, int(status.header.cluster_id))
        if not status.leader:
            member.note_failure()  # It answers, but cannot serve a call.
            raise _NoAnswer(member, "it knows no leader")

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
        numbers = checked_version(version, member.endpoint)
        if numbers < (3, 6) and member.endpoint not in self._warned_of:
            self._warned_of.add(member.endpoint)
            _log.warning("etcd_is_old", endpoint=member.endpoint, version=version, wanted="3.6")

    def _check_cluster(self, member: Member, cluster_id: int) -> None:
        """Members of two clusters would hold two different sets of metadata."""
        with self._lock:
            if self._cluster_id == 0:
                self._cluster_id = cluster_id
            if cluster_id == self._cluster_id:
                return
        raise EtcdRefused(
            f"etcd at {member.endpoint} belongs to another cluster ({cluster_id:x}) than the "
            f"members that answered before ({self._cluster_id:x}); check the endpoints"
        )

    def _unavailable(self, why: str) -> TimedOut:
        where = ", ".join(self._settings.endpoints)
        return TimedOut(
            f"no member of etcd at {where} answered within {self._settings.call_s:g} s ({why}); "
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
    credentials = grpc.ssl_channel_credentials(
        _file("ca_file", settings.ca_file),
        _file("key_file", settings.key_file),
        _file("certificate_file", settings.certificate_file),
    )
    return grpc.secure_channel(endpoint, credentials, options=_OPTIONS)


def _file(setting: str, path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise InvalidArgument(setting, f"{path} cannot be read: {error.strerror}") from error


def _serialized(request: Wire) -> bytes:
    return request.SerializeToString()


def _described(error: grpc.RpcError) -> str:
    return f"{error.code().name.lower()}: {error.details()}"


def _typed(error: grpc.RpcError) -> FirnError:
    match error.code():
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return DiskFull(WHERE, OSError(_described(error)))
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return EtcdRefused(f"etcd does not let us in: {_described(error)}")
        case _:
            return EtcdError(error.code(), str(error.details()))
