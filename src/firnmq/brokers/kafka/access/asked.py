"""One request under judgement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import structs

from firnmq.brokers.kafka.access.table import CODES, Need
from firnmq.brokers.kafka.protocol import ZERO_UUID, ApiKey, ErrorCode, Message
from firnmq.brokers.net.loop_turns import Turns
from firnmq.brokers.security.acl import CLUSTER_NAME, Access
from firnmq.brokers.security.audit import NAMES_SHOWN_MAX, AuditLog

ItemT = TypeVar("ItemT")
MessageT = TypeVar("MessageT", bound=Message)
Proceed: TypeAlias = Callable[[Message], Awaitable[Message]]
"""Carries out the request, or what is left of it."""


class Topics(Protocol):
    """What is known of topics, whether or not the client may know it."""

    def name_of(self, topic_id: str) -> str | None:
        """The name of the topic with an id."""

    def is_created_when_named(self, name: str) -> bool:
        """Whether Metadata that allows it creates a topic of this name."""


class Asked:
    """What a request may do. What is refused is noted for the audit log."""

    __slots__ = ("_access", "_refused", "api", "topics", "turns", "version")

    def __init__(
        self, api: ApiKey, version: int, access: Access, topics: Topics, turns: Turns
    ) -> None:
        self.api = api
        self.version = version
        self.topics = topics
        self.turns = turns
        self._access = access
        self._refused: dict[Need, dict[str, None]] = {}
        """Names by what was refused; not many more than are shown."""

    def may(self, need: Need, name: str = CLUSTER_NAME) -> bool:
        if self._access.allows(need.operation, need.kind, name):
            return True
        names = self._refused.setdefault(need, {})
        if len(names) <= NAMES_SHOWN_MAX:
            names[name] = None
        return False

    def sees(self, need: Need, name: str = CLUSTER_NAME) -> bool:
        """The same, where a client is refused nothing but shown less."""
        return self._access.allows(need.operation, need.kind, name)

    def sees_any(self, need: Need) -> bool:
        return self._access.allows_any(need.operation, need.kind)

    def operations(self, need: Need, name: str = CLUSTER_NAME) -> int:
        """What the client may do with a resource of the need's type, as a bit set."""
        return self._access.operations(need.kind, name)

    def refusal(self, need: Need, name: str = CLUSTER_NAME) -> ErrorCode:
        """The error code if the client may not, else NONE."""
        return ErrorCode.NONE if self.may(need, name) else CODES[need.kind]

    def may_topic(self, need: Need, topic: Any) -> bool:
        """The same for a topic that a request names or gives by its id. There is nothing to refuse
        about an id that no topic has: the handler says that it is unknown."""
        name = self.name_of(topic)
        return name is None or self.may(need, name)

    def sees_topic(self, need: Need, topic: Any) -> bool:
        name = self.name_of(topic)
        return name is not None and self.sees(need, name)

    def name_of(self, topic: Any) -> str | None:
        return named(topic, self.topics)

    async def split_topics(
        self, need: Need, topics: Iterable[ItemT]
    ) -> tuple[list[ItemT], list[ItemT]]:
        """Those topics that the client may use, and the others."""
        allowed: list[ItemT] = []
        refused: list[ItemT] = []
        async for topic in self.turns.over(topics):
            (allowed if self.may_topic(need, topic) else refused).append(topic)
        return allowed, refused

    async def split(
        self, need: Need, items: Iterable[ItemT], name_of: Callable[[ItemT], str]
    ) -> tuple[list[ItemT], list[ItemT]]:
        """Those that the client may, and the others."""
        allowed: list[ItemT] = []
        refused: list[ItemT] = []
        async for item in self.turns.over(items):
            (allowed if self.may(need, name_of(item)) else refused).append(item)
        return allowed, refused

    def report(self, audit: AuditLog) -> None:
        """Notes in the audit log what was refused."""
        for need, names in self._refused.items():
            audit.refused(
                self._access.principal,
                self._access.host,
                self.api.name.lower(),
                need.operation.name.lower(),
                need.kind.name.lower(),
                list(names),
            )


def replaced(message: MessageT, **fields: object) -> MessageT:
    """A copy with other values of some fields."""
    return structs.replace(message, **fields)  # type: ignore[type-var]


def joined(response: Any, **fields: object) -> Message:
    """A handler's answer with other values of some fields."""
    message: Message = structs.replace(response, **fields)
    return message


def named(topic: Any, topics: Topics) -> str | None:
    """The name of a topic in a request or an answer; None if its id is unknown."""
    topic_id = getattr(topic, "topic_id", ZERO_UUID)
    if topic_id != ZERO_UUID:
        return topics.name_of(topic_id.hex)
    return str(topic.name if hasattr(topic, "name") else topic.topic)


def named_as(topic: Any) -> dict[str, Any]:
    """The fields by which an answer says which topic of a request it is about."""
    fields = ("name", "topic", "topic_id")
    return {field: getattr(topic, field) for field in fields if hasattr(topic, field)}
