"""A process in role meta: it runs a member of etcd beside itself, and the meta service."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from firnmq.disk import DirectoryLock
from firnmq.errors import CannotListen, FirnError, StorageFailed, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.meta import MetaStore
from firnmq.meta.member import EtcdMember, find_program, member_command
from firnmq.meta.opening import etcd_store
from firnmq.meta.service.server import MetaService, ServiceFiles
from firnmq.server.meta_settings import MetaRoleConfig

ETCD_DIRECTORY = "etcd"
Told = TypeVar("Told")
_PAUSE_S, _PAUSE_AFTER_REFUSAL_S = 0.2, 10.0
_log = EventLogger("node")


class MetaNode:
    """An async context manager: serving between enter and exit."""

    def __init__(self, path: Path, config: MetaRoleConfig | None = None) -> None:
        self._path = path
        self.config = config or MetaRoleConfig()
        self._stack = AsyncExitStack()
        self._stopping = threading.Event()
        self.is_answering = False
        """Whether etcd has answered once."""
        self.member: EtcdMember | None = None

    async def __aenter__(self) -> MetaNode:
        try:
            await self._start()
        except BaseException:
            self._stopping.set()
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stopping.set()
        await self._stack.aclose()

    async def _start(self) -> None:
        store_config = self.config.store()
        self._stack.callback(DirectoryLock(self._path).release)
        if self.config.etcd.enabled:
            program = find_program(self.config.etcd)
            directory = (self._path / ETCD_DIRECTORY).resolve()
            member = EtcdMember(member_command(self.config.etcd, program, directory), directory)
            member.start()
            self._stack.push_async_callback(asyncio.to_thread, member.stop)
            self.member = member
        store = etcd_store(store_config)
        self._stack.callback(store.close)
        serving = asyncio.create_task(self._serve(store))
        self._stack.push_async_callback(_ended, serving)
        self._stack.callback(self._stopping.set)

    async def _serve(self, store: MetaStore) -> None:
        """Begins with the service once etcd answers, however long that takes: the other members may
        be started later."""
        await asyncio.to_thread(self._until_it_works, lambda: store.get("ready"))
        if self._stopping.is_set():
            return
        self.is_answering = True
        _log.info("meta_ready", endpoints=",".join(self.config.store().endpoints))
        if self.config.service.enabled:
            service = await asyncio.to_thread(self._until_it_works, lambda: self._service(store))
            if service is None:
                return
            try:
                await service.start()
                await asyncio.to_thread(self._stopping.wait)
            except CannotListen as error:
                _log.error("meta_service_failed", error=error)
            finally:
                await service.stop()

    def _service(self, store: MetaStore) -> MetaService:
        config = self.config.service
        tls = None
        if config.ca_file and config.certificate_file and config.key_file:
            tls = ServiceFiles(
                ca_file=config.ca_file,
                certificate_file=config.certificate_file,
                key_file=config.key_file,
            )
        name = config.name or f"{config.host}:{config.port}"
        return MetaService(store, name=name, host=config.host, port=config.port, tls=tls)

    def _until_it_works(self, does: Callable[[], Told]) -> Told | None:
        """The answer of a call that is repeated until etcd answers it; None when stopping."""
        while not self._stopping.is_set():
            try:
                return does()
            except (TimedOut, StorageFailed):  # The client has logged what it waits for.
                self._stopping.wait(_PAUSE_S)
            except FirnError as error:
                _log.error("meta_refused", error=error)
                self._stopping.wait(_PAUSE_AFTER_REFUSAL_S)
        return None


async def _ended(task: asyncio.Task[None]) -> None:
    await task
