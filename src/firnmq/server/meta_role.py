"""A process in role meta: it runs a member of etcd beside itself, until stopped."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

from firnmq.disk import DirectoryLock
from firnmq.errors import FirnError, StorageFailed, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.meta import MetaStore
from firnmq.meta.member import EtcdMember, find_program, member_command
from firnmq.meta.opening import etcd_store
from firnmq.server.meta_settings import MetaRoleConfig

ETCD_DIRECTORY = "etcd"
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
        waiting = threading.Thread(target=self._wait_for, args=(store,), name="firn-meta-wait")
        waiting.start()
        self._stack.push_async_callback(asyncio.to_thread, waiting.join)
        self._stack.callback(self._stopping.set)

    def _wait_for(self, store: MetaStore) -> None:
        """Until etcd answers, however long that takes: the other members may be started later."""
        while not self._stopping.is_set():
            try:
                store.get("ready")  # Needs a majority, like every read.
            except (TimedOut, StorageFailed):  # The client has logged what it waits for.
                self._stopping.wait(_PAUSE_S)
            except FirnError as error:
                _log.error("meta_refused", error=error)
                self._stopping.wait(_PAUSE_AFTER_REFUSAL_S)
            else:
                self.is_answering = True
                _log.info("meta_ready", endpoints=",".join(self.config.store().endpoints))
                return
