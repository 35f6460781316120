"""A MetaStore on etcd. Revisions are etcd's own; keys have a prefix of the cluster."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc

from firnmq.errors import Closed, InvalidArgument, StorageFailed, TimedOut, storage_failure
from firnmq.meta.api import (
    Changes,
    Compacted,
    Compare,
    CompareField,
    Entry,
    Event,
    Session,
    SessionLapsed,
    Snapshot,
    TxnConflict,
)
from firnmq.meta.checks import check_request
from firnmq.meta.etcd import etcd_rpc_pb2 as rpc
from firnmq.meta.etcd.client import (
    COMPACT,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TXN,
    WATCH,
    WHERE,
    EtcdClient,
    EtcdError,
    EtcdSettings,
)

OPS_MAX = 128
"""etcd's --max-txn-ops."""
REQUEST_BYTES_MAX = 1_500_000
"""A little below etcd's --max-request-bytes of 1.5 MiB."""
_PAGE_KEYS = 1_000
_PROGRESS_S = 0.5
"""A watch without events for this long requests a progress notification."""
_QUEUED_ANSWERS = 64
"""Responses queued for a slow watcher; etcd keeps the rest."""


class EtcdMetaStore:
    """Safe with threads."""

    txn_ops_max = OPS_MAX

    def __init__(self, settings: EtcdSettings, *, prefix: str = "firn/") -> None:
        self._client = EtcdClient(settings)
        self._prefix = prefix

    def close(self) -> None:
        self._client.close()

    # Reading

    def get(self, key: str) -> Entry | None:
        answer = self._client.ask(RANGE, rpc.RangeRequest(key=self._stored(key)))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    def range(self, prefix: str) -> Snapshot:
        while True:
            try:
                return self._pages(prefix)
            except EtcdError as error:
                if error.code is not grpc.StatusCode.OUT_OF_RANGE:
                    raise  # Else the revision of the first page was compacted: begin again.

    def _pages(self, prefix: str) -> Snapshot:
        at, end = self._bounds(prefix)
        revision = 0
        entries: list[Entry] = []
        while True:
            answer = self._client.ask(
                RANGE, rpc.RangeRequest(key=at, range_end=end, limit=_PAGE_KEYS, revision=revision)
            )
            revision = revision or answer.header.revision
            entries += map(self._entry, answer.kvs)
            if not answer.more:
                return Snapshot(revision=revision, entries=tuple(entries))
            at = answer.kvs[-1].key + b"\0"

    # Writing

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        puts = puts or {}
        check_request(compares, puts, deletes, self.txn_ops_max)
        lease = 0 if session is None else session.session_id
        request = rpc.TxnRequest(
            compare=[self._compare(each) for each in compares],
            success=[
                *(self._put(key, value, lease) for key, value in puts.items()),
                *(self._delete(key) for key in deletes),
            ],
            failure=[self._look(each.key) for each in compares],
        )
        size = request.ByteSize()
        if size > REQUEST_BYTES_MAX:
            text = f"{size:,} bytes, at most {REQUEST_BYTES_MAX:,} fit"
            raise InvalidArgument("transaction", text)
        if not puts and session is not None:
            self._check_session(lease)
        try:
            answer = self._client.send(TXN, request)
        except EtcdError as error:
            if error.code is grpc.StatusCode.NOT_FOUND and lease:
                raise SessionLapsed(lease) from error
            raise
        if not answer.succeeded:
            raise self._conflict(compares, answer)
        return int(answer.header.revision)

    def compact(self, revision: int) -> None:
        """Deletes the changes below a revision; watchers that are behind it start over."""
        try:
            self._client.ask(COMPACT, rpc.CompactionRequest(revision=revision, physical=True))
        except EtcdError as error:
            if error.code is not grpc.StatusCode.OUT_OF_RANGE:  # It was compacted already.
                raise

    def _compare(self, compare: Compare) -> rpc.Compare:
        key = self._stored(compare.key)
        if compare.field is CompareField.MOD:
            return rpc.Compare(
                target=rpc.Compare.Target.MOD, key=key, mod_revision=compare.revision
            )
        return rpc.Compare(
            target=rpc.Compare.Target.CREATE, key=key, create_revision=compare.revision
        )

    def _put(self, key: str, value: bytes, lease: int) -> rpc.RequestOp:
        put = rpc.PutRequest(key=self._stored(key), value=value, lease=lease)
        return rpc.RequestOp(request_put=put)

    def _delete(self, key: str) -> rpc.RequestOp:
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._stored(key)))

    def _look(self, key: str) -> rpc.RequestOp:
        look = rpc.RangeRequest(key=self._stored(key), keys_only=True)
        return rpc.RequestOp(request_range=look)

    def _conflict(self, compares: Sequence[Compare], answer: rpc.TxnResponse) -> TxnConflict:
        for compare, response in zip(compares, answer.responses, strict=True):
            kvs = response.response_range.kvs
            found = int(getattr(kvs[0], compare.field.value)) if kvs else 0
            if found != compare.revision:
                return TxnConflict(compare, found)
        raise AssertionError("etcd found a conflict where there is none")

    # Watching

    def watch(self, prefix: str, from_revision: int) -> EtcdWatch:
        key, end = self._bounds(prefix)
        create = rpc.WatchCreateRequest(
            key=key, range_end=end, start_revision=from_revision, progress_notify=True
        )
        watch = EtcdWatch(self, self._client, create)
        if watch.began_at < from_revision - 1:
            try:
                self._check_not_restored(from_revision - 1)
            except BaseException:
                watch.close()
                raise
        return watch

    def _check_not_restored(self, seen: int) -> None:
        """A member may be behind, but etcd as a whole is only if it was restored from a backup:
        then the watch would be silent until it has as many revisions again."""
        answer = self._client.ask(RANGE, rpc.RangeRequest(key=self._stored("ready")))
        if answer.header.revision < seen:
            text = (
                f"etcd is at revision {answer.header.revision}, it was at {seen}: it was restored "
                "from a backup; restart all that use it"
            )
            raise storage_failure(WHERE, OSError(text))

    # Sessions

    def session(self, ttl_s: float) -> EtcdSession:
        if ttl_s <= 0:
            raise InvalidArgument("ttl_s", f"must be more than 0, not {ttl_s}")
        answer = self._client.ask(GRANT, rpc.LeaseGrantRequest(ttl_s=math.ceil(ttl_s)))
        return EtcdSession(self._client, int(answer.id))

    def resume_session(self, session_id: int) -> EtcdSession:
        return EtcdSession(self._client, session_id)

    def _check_session(self, lease: int) -> None:
        """Checks the lease: etcd does not, for a transaction that puts nothing."""
        EtcdSession(self._client, lease).keep_alive()

    # Keys

    def _stored(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _bounds(self, prefix: str) -> tuple[bytes, bytes]:
        """Keys are printable ASCII, so 0x7f stands above every one with the prefix."""
        at = self._stored(prefix)
        return at, at + b"\x7f"

    def _entry(self, found: rpc.KeyValue) -> Entry:
        return Entry(
            key=found.key.decode()[len(self._prefix) :],
            value=found.value,
            create_revision=found.create_revision,
            mod_revision=found.mod_revision,
        )

    def event(self, found: rpc.Event) -> Event:
        """For watches."""
        is_gone = found.type == rpc.Event.Type.DELETE
        entry = self._entry(found.kv)
        return Event(key=entry.key, revision=entry.mod_revision, entry=None if is_gone else entry)


class EtcdSession:
    """A lease. etcd counts its time in whole seconds."""

    def __init__(self, client: EtcdClient, session_id: int) -> None:
        self._client = client
        self.session_id = session_id

    def keep_alive(self) -> None:
        answer = self._client.ask(KEEP_ALIVE, rpc.LeaseKeepAliveRequest(id=self.session_id))
        if answer.ttl_s <= 0:
            raise SessionLapsed(self.session_id)

    def close(self) -> None:
        try:
            self._client.ask(REVOKE, rpc.LeaseRevokeRequest(id=self.session_id))
        except EtcdError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise


class EtcdWatch:
    """A stream of changes, read by its own thread into a bounded queue.

    A broken stream is an error of `take`; the caller watches again from the revision it has.
    """

    def __init__(
        self, store: EtcdMetaStore, client: EtcdClient, create: rpc.WatchCreateRequest
    ) -> None:
        self._store = store
        self._from_revision = create.start_revision
        self._reached = create.start_revision - 1
        self._requests: queue.SimpleQueue[rpc.WatchRequest | None] = queue.SimpleQueue()
        self._requests.put(rpc.WatchRequest(create_request=create))
        self._answers: queue.Queue[Any] = queue.Queue(_QUEUED_ANSWERS)
        self.began_at = create.start_revision
        """Revision of the member when the watch began."""
        self._is_closed = threading.Event()
        self._client = client
        self._unanswered_count = 0
        """Requests for progress since the last answer."""
        self._stream = client.stream(WATCH, self._outgoing())
        self._thread = threading.Thread(target=self._read, name="firn-etcd-watch", daemon=True)
        self._thread.start()
        self._ahead = self._first()

    def take(self, timeout_s: float) -> Changes | None:
        deadline = time.monotonic() + timeout_s
        while not self._is_closed.is_set():
            answer, self._ahead = self._ahead, None
            if answer is None:
                answer = self._next(min(_PROGRESS_S, deadline - time.monotonic()))
            changes = None if answer is None else self._changes(answer)
            if changes is not None:
                return changes
            if time.monotonic() >= deadline:
                return None
            if answer is None:
                self._ask_for_progress()
        raise Closed("the watch is closed")

    def _ask_for_progress(self) -> None:
        silent_s = self._unanswered_count * _PROGRESS_S
        if silent_s >= self._client.silence_s:
            self._stream.give_up()
            self.close()
            raise storage_failure(WHERE, OSError(f"watch was silent for {silent_s:g} s"))
        self._unanswered_count += 1
        self._requests.put(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    def close(self) -> None:
        self._is_closed.set()
        self._requests.put(None)
        self._stream.answers.cancel()
        try:
            self._answers.put_nowait(Closed("the watch is closed"))
        except queue.Full:
            pass  # The queue is not empty: `take` wakes and finds that the watch is closed.

    def _first(self) -> Any:
        """Waits until etcd has the watch, so that one from a forgotten revision is refused here."""
        answer = self._next(5.0)
        if answer is None:
            self.close()
            raise TimedOut("etcd did not begin the watch within 5 s")
        if answer.canceled:
            self._changes(answer)
        self.began_at = int(answer.header.revision)
        return None if answer.created else answer

    def _next(self, timeout_s: float) -> Any:
        try:
            answer = self._answers.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return None
        if isinstance(answer, Exception):
            self._answers.put(answer)  # For the next one who asks.
            raise answer
        self._unanswered_count = 0
        return answer

    def _changes(self, answer: Any) -> Changes | None:
        if answer.canceled or answer.compact_revision:
            self.close()
            if answer.compact_revision:
                raise Compacted(self._from_revision, int(answer.compact_revision))
            raise storage_failure(WHERE, OSError(f"watch ended: {answer.cancel_reason}"))
        events = tuple(map(self._store.event, answer.events))
        revision = events[-1].revision if events else int(answer.header.revision)
        if answer.created or revision <= self._reached:
            return None
        self._reached = revision
        return Changes(revision=revision, events=events)

    def _outgoing(self) -> Iterator[rpc.WatchRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        try:
            for answer in self._stream.answers:
                while not self._is_closed.is_set():
                    try:
                        self._answers.put(answer, timeout=1.0)
                        break
                    except queue.Full:
                        continue
                if self._is_closed.is_set():
                    return
            failure: Exception = storage_failure(WHERE, OSError("etcd ended the watch"))
        except grpc.RpcError as error:
            if not self._is_closed.is_set():
                self._stream.give_up()
            failure = storage_failure(WHERE, OSError(f"watch broke: {error.details()}"))
        if not self._is_closed.is_set():
            self._put_last(failure)

    def _put_last(self, failure: StorageFailed | Exception) -> None:
        while not self._is_closed.is_set():
            try:
                self._answers.put(failure, timeout=1.0)
                return
            except queue.Full:
                continue
