"""A client of the meta service: it asks one process after the other until one answers."""

from __future__ import annotations

import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from firnmq.errors import (
    Closed,
    CreationTimedOut,
    FirnError,
    InvalidArgument,
    StorageFailed,
    TimedOut,
)
from firnmq.eventlog import EventLogger
from firnmq.meta.api import Changes, Entry, Snapshot
from firnmq.meta.cache import CacheBehind, MetaCache
from firnmq.meta.service import answers
from firnmq.meta.service import meta_service_pb2 as pb
from firnmq.meta.service.controller import CREATION_S
from firnmq.meta.service.errors import ERROR_KEY, MetaServiceFailed, error_of
from firnmq.meta.service.server import SERVICE, ServiceFiles
from firnmq.meta.shards import SHARDS_WAIT_S

CALL_S = 10.0
_PATIENCE_S = 2.0
"""How long a process may take before another one is asked. If one after the other is late, the
store is slow, and they get more time."""
_AWAIT_S = 2.0
"""How long a process is asked to wait for a topic at a time: it may stand still."""
_SILENCE_S = 4.0
"""A stream that is silent for so long is given up: its process sends something every second."""
_SLICE_S = 0.5
_PAUSE_S = 0.05
_QUEUED_ANSWERS = 64
_WATCH_BEGINS_S = 3.0
_OPTIONS = [
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
]
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
}
_ONCE = "DeleteTopic"
_ANSWERS: dict[str, Any] = {
    "RegisterNode": pb.RegisteredNode,
    "Heartbeat": pb.HeartbeatResponse,
    "LeaveNode": pb.Done,
    "ListNodes": pb.NodeList,
    "CreateTopic": pb.Topic,
    "AwaitTopic": pb.Topic,
    "AbandonTopic": pb.Done,
    "DeleteTopic": pb.Done,
    "DescribeTopic": pb.Topic,
    "ListTopics": pb.TopicList,
    "ListShards": pb.ShardList,
    "ListSegments": pb.SegmentList,
    "CommitOffsets": pb.Done,
    "GetOffsets": pb.Offsets,
    "GetController": pb.Controller,
}
_log = EventLogger("meta")


class MetaServiceClient:
    """Safe with threads. Calls are repeated at the next address, also after an unknown outcome:
    all but the deletion of a topic may be made twice."""

    def __init__(
        self, addresses: Sequence[str], *, tls: ServiceFiles | None = None, call_s: float = CALL_S
    ) -> None:
        if not addresses:
            raise InvalidArgument("addresses", "the meta service needs at least one host:port")
        self._call_s = call_s
        self._lock = threading.Lock()
        """Guards everything below."""
        self._channels = [(address, _channel(address, tls)) for address in addresses]
        self._patience_s = _PATIENCE_S
        self._late_count = 0
        """Processes that were late one after the other."""
        self._is_closed = False

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for _, channel in self._channels:
            channel.close()

    def call(
        self, name: str, request: Any, *, call_s: float | None = None, wait_s: float = 0.0
    ) -> Any:
        """The answer of the first process that gives one, of which each may take `wait_s` longer
        than usual. TimedOut if none answers in time."""
        deadline = time.monotonic() + (self._call_s if call_s is None else call_s)
        while True:
            address, channel = self._first()
            began = time.monotonic()
            left = max(min(deadline - began, self._patience_s + wait_s), 0.001)
            ask = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=_serialized,
                response_deserializer=_ANSWERS[name].FromString,
            )
            try:
                answer = ask(request, timeout=left)
            except grpc.RpcError as error:
                failure = _typed(error)
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._note_late()
            except ValueError as error:  # The channel was closed beneath the call.
                raise Closed("the client of the meta service is closed") from error
            else:
                self._note_answer(time.monotonic() - began - wait_s)
                return answer
            if isinstance(failure, StorageFailed) and failure.is_outcome_unknown:
                if name == _ONCE or time.monotonic() + _PAUSE_S >= deadline:
                    raise failure
            elif not isinstance(failure, _TryAnother):
                raise failure
            elif time.monotonic() + _PAUSE_S >= deadline:
                raise failure.as_time_out(self._addresses())
            self._give_up_on(address)
            time.sleep(_PAUSE_S)

    def _first(self) -> tuple[str, Any]:
        with self._lock:
            if self._is_closed:
                raise Closed("the client of the meta service is closed")
            return self._channels[0]

    def _note_late(self) -> None:
        with self._lock:
            self._late_count += 1
            if self._late_count >= len(self._channels):
                self._late_count = 0
                self._patience_s = min(2 * self._patience_s, self._call_s)

    def _note_answer(self, took_s: float) -> None:
        with self._lock:
            self._late_count = 0
            self._patience_s = min(max(2 * took_s, _PATIENCE_S), self._call_s)

    def _give_up_on(self, address: str) -> None:
        with self._lock:
            if self._channels[0][0] == address:
                self._channels.append(self._channels.pop(0))

    def _addresses(self) -> str:
        return ", ".join(sorted(address for address, _ in self._channels))

    # Topics

    def create_topic(
        self,
        name: str,
        shard_count: int,
        options: Mapping[str, str],
        cache: MetaCache,
        *,
        topic_wait_s: float = CREATION_S,
        shards_wait_s: float = SHARDS_WAIT_S,
    ) -> pb.Topic:
        """Makes a topic of which this node's cache then has all: the topic itself within 30 s, its
        shards and segments within 3 s of the controller's having made them.

        CreationTimedOut if it does not, and nothing is left of the topic.
        """
        topic_id = uuid.uuid4().hex
        request = pb.CreateTopicRequest(
            name=name, topic_id=topic_id, shard_count=shard_count, options=dict(options)
        )
        deadline = time.monotonic() + topic_wait_s
        awaited = "it"
        try:
            made = self.call("CreateTopic", request)
            cache.wait_for_revision(made.revision, max(deadline - time.monotonic(), 0))
            ready = self._await(name, topic_id, deadline)
            awaited = "one of its shards"
            cache.wait_for_revision(ready.revision, shards_wait_s)
        except (CacheBehind, TimedOut) as error:
            self._abandon(name, topic_id)
            waited_s = shards_wait_s if awaited != "it" else topic_wait_s
            raise CreationTimedOut(name, awaited, waited_s) from error
        return ready

    def _await(self, name: str, topic_id: str, deadline: float) -> pb.Topic:
        """Asks until the topic is ready. A process that dies, or stands still, costs seconds."""
        while True:
            left = deadline - time.monotonic()
            wait_s = max(min(left, _AWAIT_S), 0.001)
            request = pb.AwaitTopicRequest(
                name=name, topic_id=topic_id, timeout_ms=math.ceil(wait_s * 1000)
            )
            try:
                answer: pb.Topic = self.call("AwaitTopic", request, wait_s=wait_s)
                return answer
            except (TimedOut, StorageFailed):
                if left <= _AWAIT_S:
                    raise

    def _abandon(self, name: str, topic_id: str) -> None:
        try:
            self.call("AbandonTopic", pb.AwaitTopicRequest(name=name, topic_id=topic_id))
        except FirnError as error:  # The controller removes it, or finishes it.
            _log.warning("topic_not_abandoned", topic=name, error=error)

    # Following

    def range(self, prefix: str) -> Snapshot:
        """All entries with the prefix at one revision, as MetaStore.range."""
        deadline = time.monotonic() + self._call_s
        while True:
            address, channel = self._first()
            ask = channel.unary_stream(
                f"/{SERVICE}/Snapshot",
                request_serializer=_serialized,
                response_deserializer=pb.SnapshotPage.FromString,
            )
            revision, entries = 0, list[Entry]()
            try:
                for page in ask(pb.SnapshotRequest(prefix=prefix), timeout=self._call_s):
                    revision = page.revision
                    entries += map(answers.entry_of, page.entries)
                return Snapshot(revision=revision, entries=tuple(entries))
            except grpc.RpcError as error:
                failure = _typed(error)
            if not isinstance(failure, _TryAnother):
                raise failure
            self._give_up_on(address)
            if time.monotonic() + _PAUSE_S >= deadline:
                raise failure.as_time_out(self._addresses())
            time.sleep(_PAUSE_S)

    def watch(self, prefix: str, from_revision: int) -> ServiceWatch:
        """Every change from the revision on, as MetaStore.watch. If its process ends, `take` fails,
        and the next watch is at another one."""
        address, channel = self._first()
        try:
            return ServiceWatch(channel, prefix, from_revision, lambda: self._give_up_on(address))
        except TimedOut:
            self._give_up_on(address)
            raise


class ServiceWatch:
    """A stream of changes, read by its own thread into a bounded queue."""

    def __init__(
        self, channel: Any, prefix: str, from_revision: int, on_broken: Callable[[], None]
    ) -> None:
        self._on_broken = on_broken
        self._heard_at = time.monotonic()
        ask = channel.unary_stream(
            f"/{SERVICE}/Watch",
            request_serializer=_serialized,
            response_deserializer=pb.Changes.FromString,
        )
        self._answers: queue.Queue[Changes | FirnError] = queue.Queue(_QUEUED_ANSWERS)
        self._has_begun = threading.Event()
        self._is_closed = threading.Event()
        self._failure: FirnError | None = None
        self._stream = ask(pb.WatchRequest(prefix=prefix, from_revision=from_revision))
        self._thread = threading.Thread(target=self._read, name="firn-service-watch", daemon=True)
        self._thread.start()
        if not self._has_begun.wait(_WATCH_BEGINS_S):
            self.close()
            raise TimedOut(f"the meta service did not begin a watch within {_WATCH_BEGINS_S:g} s")
        if self._failure is not None:
            self.close()
            raise self._failure

    def take(self, timeout_s: float) -> Changes | None:
        if self._is_closed.is_set():
            raise Closed("the watch is closed")
        answer = self._next(time.monotonic() + timeout_s)
        if self._is_closed.is_set():
            raise Closed("the watch is closed")
        if isinstance(answer, FirnError):
            self._answers.put(answer)  # For the next call.
            raise answer
        return answer

    def _next(self, deadline: float) -> Changes | FirnError | None:
        while True:
            left = deadline - time.monotonic()
            try:
                return self._answers.get(timeout=max(min(left, _SLICE_S), 0.001))
            except queue.Empty:
                if time.monotonic() - self._heard_at >= _SILENCE_S:
                    self._on_broken()
                    self._stream.cancel()
                    raise TimedOut(f"a watch was silent for {_SILENCE_S:g} s") from None
                if left <= 0:
                    return None

    def close(self) -> None:
        self._is_closed.set()
        self._stream.cancel()
        try:
            self._answers.put_nowait(Closed("the watch is closed"))
        except queue.Full:
            pass  # The queue is not empty: `take` wakes and finds that the watch is closed.

    def _read(self) -> None:
        failure: FirnError = TimedOut("the meta service ended a watch")
        try:
            self._stream.initial_metadata()  # Comes once the service has the watch.
            self._has_begun.set()
            for message in self._stream:
                self._heard_at = time.monotonic()
                if message.revision:
                    self._put(answers.changes_of(message))
                if self._is_closed.is_set():
                    return
        except grpc.RpcError as error:
            failure = _typed(error)
            if isinstance(failure, _TryAnother):
                if not self._is_closed.is_set():
                    self._on_broken()
                failure = TimedOut(f"a watch of the meta service broke: {failure}")
        if not self._has_begun.is_set():
            self._failure = failure
            self._has_begun.set()
        self._put(failure)

    def _put(self, what: Changes | FirnError) -> None:
        while not self._is_closed.is_set():
            try:
                self._answers.put(what, timeout=1.0)
                return
            except queue.Full:
                continue


class _TryAnother(FirnError):
    """This process cannot answer now; another one, or the same one later, may."""

    def as_time_out(self, addresses: str) -> TimedOut:
        return TimedOut(f"no process of the meta service at {addresses} answered: {self}")


def _typed(error: grpc.RpcError) -> FirnError:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY:
            failure = error_of(value)
            is_passing = type(failure) in (TimedOut, Closed)
            return _TryAnother(str(failure)) if is_passing else failure
    text = f"{error.code().name.lower()}: {error.details()}"
    return _TryAnother(text) if error.code() in _PASSING else MetaServiceFailed(text)


def _channel(address: str, tls: ServiceFiles | None) -> Any:
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        tls.ca_file.read_bytes(), tls.key_file.read_bytes(), tls.certificate_file.read_bytes()
    )
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())
