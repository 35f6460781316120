"""The gRPC server of the meta service, on the event loop; calls of the store run in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from firnmq.clock import Clock, SystemClock
from firnmq.errors import CannotListen, Closed, FirnError, InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.meta.api import MetaStore, Watch
from firnmq.meta.cache import MetaCache
from firnmq.meta.service import answers
from firnmq.meta.service import meta_service_pb2 as pb
from firnmq.meta.service.calls import Call, MetaCalls
from firnmq.meta.service.controller import ControllerThread, Place, TopicWork, fewest_leaders
from firnmq.meta.service.election import CONTROLLER_KEY, TTL_S, Candidate
from firnmq.meta.service.errors import ERROR_KEY, status_of

SERVICE = "firnmq.meta.service.MetaService"
CALLS_MAX = 32
"""Calls at the same time; others wait. Each takes a thread while the store answers."""
WATCHES_MAX = 200
"""Streams at the same time; more are refused. Each takes a thread while it waits."""
_REQUEST_BYTES_MAX = 4 * 1024 * 1024
_PAGE_ENTRIES = 500
_TAKE_S = 1.0
_STOP_S = 2.0
_OPTIONS = [
    ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # A second process on the port is an error, not a partner.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_log = EventLogger("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFiles:
    """PEM files: a server with them uses TLS and serves only clients with a certificate."""

    ca_file: Path
    certificate_file: Path
    key_file: Path


class MetaService:
    """One process of the service, from `start` to `stop`. It takes part in the election."""

    def __init__(
        self,
        store: MetaStore,
        *,
        name: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ServiceFiles | None = None,
        clock: Clock | None = None,
        place: Place = fewest_leaders,
        ttl_s: float = TTL_S,
    ) -> None:
        """`store` answers: the service begins with reading all of it."""
        self._store = store
        self._host, self._wanted_port, self._tls = host, port, tls
        self._clock = clock or SystemClock()
        self.cache = MetaCache(store)
        self._calls = MetaCalls(store, self.cache, self._clock)
        self.candidate = Candidate(
            store,
            name,
            is_taken=lambda: self.cache.get(CONTROLLER_KEY) is not None,
            clock=self._clock,
            ttl_s=ttl_s,
        )
        work = TopicWork(store, self.cache, self._clock, place)
        self._controller = ControllerThread(self.candidate, work, self.cache)
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="firn-meta-call")
        self._watchers = ThreadPoolExecutor(WATCHES_MAX, thread_name_prefix="firn-meta-watch")
        self._watch_count = 0
        self._stopping = threading.Event()
        self._server: Any = None
        self.port = 0

    async def start(self) -> None:
        """Listens, and takes part in the election."""
        self._server = server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((self._handlers(),))
        address = f"{self._host}:{self._wanted_port}"
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError as error:
            raise CannotListen(
                "service.port", self._host, self._wanted_port, OSError(str(error))
            ) from error
        await server.start()
        self.candidate.start()
        self._controller.start()
        _log.info("meta_service", host=self._host, port=self.port)

    async def stop(self) -> None:
        """Calls in progress are answered, streams end."""
        self._stopping.set()
        await asyncio.to_thread(self._end_leading)
        if self._server is not None:
            await self._server.stop(_STOP_S)
        await asyncio.to_thread(self._close)

    def _end_leading(self) -> None:
        self._controller.stop()
        self.candidate.stop()

    def _close(self) -> None:
        self.cache.close()
        self._threads.shutdown()
        self._watchers.shutdown()

    # Handlers

    def _handlers(self) -> Any:
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._awaiting(call) if name == "AwaitTopic" else self._answering(call),
                request_deserializer=call.request.FromString,
                response_serializer=_serialized,
            )
            for name, call in self._calls.table().items()
        }
        methods["Snapshot"] = grpc.unary_stream_rpc_method_handler(
            self._snapshot,
            request_deserializer=pb.SnapshotRequest.FromString,
            response_serializer=_serialized,
        )
        methods["Watch"] = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=pb.WatchRequest.FromString,
            response_serializer=_serialized,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _answering(self, call: Call) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            try:
                return await self._in_thread(lambda: call.does(request))
            except FirnError as error:
                await _refuse(context, error)

        return answer

    def _awaiting(self, call: Call) -> Any:
        """A call that waits takes one of the threads of streams, and leaves those of calls."""

        async def answer(request: Any, context: Any) -> Any:
            await self._begin_stream(context)
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._watchers, call.does, request)
            except FirnError as error:
                await _refuse(context, error)
            finally:
                self._watch_count -= 1

        return answer

    async def _begin_stream(self, context: Any) -> None:
        if self._watch_count >= WATCHES_MAX:
            text = f"this process serves {WATCHES_MAX} streams already; ask another one"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        self._watch_count += 1

    async def _in_thread(self, does: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, does)

    async def _snapshot(
        self, request: pb.SnapshotRequest, context: Any
    ) -> AsyncIterator[pb.SnapshotPage]:
        try:
            snapshot = await self._in_thread(lambda: self._store.range(request.prefix))
        except FirnError as error:
            await _refuse(context, error)
            return
        entries = snapshot.entries
        for at in range(0, max(len(entries), 1), _PAGE_ENTRIES):
            yield pb.SnapshotPage(
                revision=snapshot.revision,
                entries=map(answers.entry_message, entries[at : at + _PAGE_ENTRIES]),
            )

    async def _watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.Changes]:
        """Every change from a revision on. A slow client makes the stream wait, and the store keep
        the changes; if it keeps them no longer, the stream ends with Compacted."""
        await self._begin_stream(context)
        watch: Watch | None = None
        try:
            watch = await self._in_thread(
                lambda: self._store.watch(request.prefix, request.from_revision)
            )
            await context.send_initial_metadata(())  # The client knows that it has the watch.
            while not self._stopping.is_set():
                changes = await self._take(watch)
                # Without changes, an empty message says that the process is there.
                yield pb.Changes() if changes is None else answers.changes_message(changes)
            raise Closed("the process is stopping")
        except FirnError as error:
            await _refuse(context, error)
        finally:
            self._watch_count -= 1
            if watch is not None:
                watch.close()

    async def _take(self, watch: Watch) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._watchers, watch.take, _TAKE_S)


async def _refuse(context: Any, error: FirnError) -> None:
    status, raw = status_of(error)
    await context.abort(status, str(error)[:1000], ((ERROR_KEY, raw),))


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _credentials(files: ServiceFiles) -> Any:
    try:
        key, certificate, authority = (
            path.read_bytes() for path in (files.key_file, files.certificate_file, files.ca_file)
        )
    except OSError as error:
        raise InvalidArgument("service.ca_file", f"cannot be read: {error}") from error
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authority, require_client_auth=True
    )
