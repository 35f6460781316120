"""The parts of a node that the HTTP listener uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from firnmq.brokers.kafka.broker import KafkaBroker
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.security import UserStore
from firnmq.brokers.security.acl import RuleStore
from firnmq.server.documents import CommandLine
from firnmq.server.local import LocalStore
from firnmq.server.processes.place import Place
from firnmq.server.reading import Reading
from firnmq.server.settings import NodeConfig

Records = Callable[[str, Reading], AsyncGenerator[bytes, None]]
"""Gives records of a topic as lines of JSON, page by page."""
AnswerCommand = Callable[[CommandLine, Records], Awaitable[bytes | None]]
"""Returns a command's output; None if the command must run in its own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The parts of a running node."""

    config: NodeConfig
    local: LocalStore
    storage: KafkaStorage
    broker: KafkaBroker
    coordinator: GroupCoordinator
    offsets: GroupOffsets
    users: UserStore
    rules: RuleStore
    started_ms: int
    place: Place | None
    """Which of several processes of the machine it is; None if it is the only one."""
    answer_command: AnswerCommand | None
    """Answers short commands; None if all run in their own processes."""
    stopping: asyncio.Event
    """Set when the HTTP listener stops: streams end."""
