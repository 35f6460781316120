"""The lake as the console shows it: how far tables are, and SQL, by a process of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from firnmq.adapter import Topic
from firnmq.cluster.peers import Served
from firnmq.disk import call_blocking
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.lake.jobs.answering import Question, Reply, Snapshot
from firnmq.lake.plans.planning import table_name
from firnmq.meta.api import Entry
from firnmq.meta.records import ShardRecord, decode, shard_key
from firnmq.server.admin.console.documents import SqlQuery, SqlReady, SqlRows
from firnmq.server.admin.console.listing import Wish
from firnmq.server.admin.endpoint import Call
from firnmq.server.admin.errors import Refused
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts

LAKE_SORTS: Final = ("topic", "lag", "table_rows")
_ROWS_MAX: Final = 1_000
_QUERY_S: Final = 180.0
_TABLE_S: Final = 60.0
_IDLE_S: Final = 300.0
"""After so long without a question, the process and its Java give back their memory."""
_WAITING_MAX: Final = 8
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_KILL_S: Final = 5.0
_ROWS: Final = "console_lake"
_PACKAGES: Final = ("pyspark", "pyiceberg")

_log = EventLogger("console")


class LakeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that has records in a table."""

    topic: str
    table: str
    shard_count: int
    table_rows: int
    """Offsets that are in the table."""
    lag: int
    """Offsets that are in the log and not in the table."""


class LakePage(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    catalog: str
    warehouse: str
    rows: list[LakeRow]


class LakeTable(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's table as its catalog has it."""

    table: dict[str, Any]
    snapshots: list[Snapshot]
    """The newest fifty."""


class LakeViews:
    def __init__(
        self, parts: NodeParts, others: OtherNodes | None, reached: Callable[[], dict[str, str]]
    ) -> None:
        """`reached`: how a process on this machine reaches the node."""
        self._parts = parts
        self._others = others
        if others is not None:
            others.serve(_ROWS, self._serve)
        self._reached = reached
        self._process = LakeProcess(parts.stopping)

    async def page(self, call: Call) -> LakePage:
        wish = Wish.of(call, LAKE_SORTS, descending=LAKE_SORTS[1:])
        rows = wish.chosen(await self._all_rows(), lambda each: each.topic)
        config, path = self._parts.config.lake, self._directory()
        return LakePage(
            total=len(rows),
            catalog=config.catalog_in(path),
            warehouse=config.warehouse_in(path),
            rows=wish.page(rows, lambda each: (getattr(each, wish.sort), each.topic)),
        )

    def _directory(self) -> Path:
        """Where tables are unless the configuration says otherwise: one place for all nodes."""
        place, member = self._parts.place, self._parts.local.member
        if place is not None:
            return place.directory
        if member is not None and member.config.meta_file is not None:
            return member.config.meta_file.parent
        return self._parts.local.path

    async def table(self, call: Call) -> LakeTable:
        topic = self._parts.storage.topic(call.path["topic"])
        self._check_ready(needs_kafka=False)
        question = Question(kind="table", options=self._reached(), topics=[topic.name])
        reply = await self._process.ask(question, _TABLE_S)
        return LakeTable(table=reply.table or {}, snapshots=reply.snapshots)

    async def ready(self) -> SqlReady:
        try:
            self._check_ready(needs_kafka=True)
        except Refused as error:
            return SqlReady(available=False, reason=str(error))
        return SqlReady(available=True)

    async def sql(self, wanted: SqlQuery) -> SqlRows:
        self._check_ready(needs_kafka=True)
        question = Question(
            kind="sql",
            options=self._reached(),
            topics=[topic.name for topic in self._parts.storage.catalog.topics()],
            query=wanted.query,
            max=min(max(wanted.max, 1), _ROWS_MAX),
        )
        reply = await self._process.ask(question, _QUERY_S)
        return SqlRows(
            columns=reply.columns,
            rows=reply.rows,
            has_more=reply.has_more,
            seconds=reply.seconds,
        )

    async def _all_rows(self) -> list[LakeRow]:
        """Of the shards that this node leads, and of those that others lead."""
        rows = await call_blocking(None, self._rows)
        if self._others is None:
            return rows
        answers = await self._others.ask_all(self._others.registered(), _ROWS, _decoded)
        by_topic = {each.topic: each for each in rows}
        for answer in answers.values():
            for each in () if isinstance(answer, FirnError) else answer:
                known = by_topic.get(each.topic)
                if known is not None:
                    each = msgspec.structs.replace(
                        each,
                        table_rows=each.table_rows + known.table_rows,
                        lag=each.lag + known.lag,
                    )
                by_topic[each.topic] = each
        return list(by_topic.values())

    async def _serve(self, _: bytes) -> Served:
        return Served(msgspec.msgpack.encode(await call_blocking(None, self._rows)))

    def _rows(self) -> list[LakeRow]:
        local = self._parts.local
        topics: list[Topic] = local.catalog.topics()
        found = []
        for topic in topics:
            engine = local.engines.get(topic.config.storage_type)
            if engine is None:
                continue
            in_table = lag = 0
            logs = local.manager.driver(topic.config.storage_type).logs
            for shard in topic.shard_names():
                if logs is None or not logs.leads(shard):
                    continue
                with suppress(FirnError):  # Deleted just now, or it cannot be opened.
                    entry = local.cache.get(shard_key(shard))
                    end = 0 if entry is None else local.shards.lake_end(_uid(entry))
                    if end:
                        start, stop = engine.bounds(shard)
                        in_table += end
                        lag += max(0, stop - max(end, start))
            if in_table:
                found.append(
                    LakeRow(
                        topic=topic.name,
                        table=table_name(topic.name),
                        shard_count=topic.shard_count,
                        table_rows=in_table,
                        lag=lag,
                    )
                )
        return found

    def _check_ready(self, *, needs_kafka: bool) -> None:
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            raise Refused(409, f"{missing[0]} is not installed: pip install 'firnmq[lake]'")
        security = self._parts.config.security
        if needs_kafka and (security.identifies_clients or security.tls_certificate is not None):
            text = "the Kafka listener asks for TLS or a login; run the query with firn lake sql"
            raise Refused(409, f"SQL is not offered here: {text}")


def _decoded(value: memoryview, raw: memoryview) -> list[LakeRow]:
    return msgspec.msgpack.decode(value, type=list[LakeRow])


def _uid(entry: Entry) -> int:
    return decode(entry, ShardRecord).uid


class LakeProcess:
    """The process that answers, started with the first question. Owned by the event loop."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    async def ask(self, question: Question, timeout_s: float) -> Reply:
        """Refused if the question is wrong or cannot be answered in time."""
        if self._waiting >= _WAITING_MAX:
            raise Refused(503, "too many questions about the lake are waiting; try again")
        self._waiting += 1
        try:
            async with self._turn:
                reply = await self._answered(question, timeout_s)
        finally:
            self._waiting -= 1
        if reply.failure is not None:
            raise Refused(400 if reply.is_wrong else 409, reply.failure)
        return reply

    async def _answered(self, question: Question, timeout_s: float) -> Reply:
        if self._idle is not None:
            self._idle.cancel()
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), timeout_s)
        except TimeoutError:
            await self._end()
            raise Refused(504, f"there was no answer within {timeout_s:g} s") from None
        except (OSError, ValueError):
            await self._end()
            raise Refused(502, "the answer is too long, or its process has ended") from None
        except BaseException:
            await self._end()  # The client has gone: so has the reason for the work.
            raise
        if not line:
            await self._end()
            raise Refused(502, "the process that answers has ended; the node's log may say why")
        self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self._end_idle)
        return msgspec.json.decode(line, type=Reply)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "firnmq.lake.jobs.answering"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_ANSWER_BYTES_MAX,
            start_new_session=True,
        )
        _log.info("lake_process_started", pid=self._process.pid)
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end_with_node())
        return self._process

    async def _end_with_node(self) -> None:
        await self._stopping.wait()
        if self._idle is not None:
            self._idle.cancel()
        await self._end()

    def _end_idle(self) -> None:
        if not self._turn.locked():
            self._idle = None
            self._forget = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        """Ends the process and what it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _KILL_S)
