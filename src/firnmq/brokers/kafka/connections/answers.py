"""The interface between a connection and the dispatcher that carries out its requests."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

from firnmq.brokers.kafka.protocol import Part
from firnmq.brokers.net.loop_turns import Turns

if TYPE_CHECKING:
    from firnmq.brokers.kafka.connections.connection import KafkaConnection


class Answer(Protocol):
    """The answer to a request that has begun. Answers are sent in the order of the requests."""

    is_ready: bool
    parts: list[Part] | None
    """What is sent once it is ready; None for a request that gets no answer."""
    size_bytes: int
    """How large the request was."""


class WaitingAnswer(Answer, Protocol):
    """One for which the requests after it have to wait, and which may wait long itself."""

    def give_up(self) -> None:
        """Ends the wait without an answer."""


class LateAnswer:
    """An answer that a coroutine gives."""

    __slots__ = ("is_ready", "parts", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.is_ready = False
        self.parts: list[Part] | None = None
        self.size_bytes = size_bytes

    def become_ready(self, parts: list[Part] | None) -> None:
        self.parts = parts
        self.is_ready = True


class Dispatcher(Protocol):
    """What a connection hands its requests to."""

    turns: Turns
    """Requests that came together give way to other connections."""

    def begin_now(self, frame: bytearray, client: KafkaConnection) -> Answer | None:
        """Begins a request that need not wait; None if it must be begun with `begin`.

        The answer tells `client.answer_ready` when it is ready.
        """

    def begin_wait(self, frame: bytearray, client: KafkaConnection) -> WaitingAnswer | None:
        """Begins a request that waits for something; None if it must be begun with `begin`.

        The answer tells `client.wait_ended` when it is ready.
        """

    def judge(
        self, length: int, first: memoryview, client: KafkaConnection
    ) -> tuple[bool, list[Part] | None]:
        """Whether a request may be so long, by its first bytes; if not, the answer that says so,
        or None if the connection must be closed."""

    def submit(self) -> None:
        """Everything that arrived together has been begun."""

    def wake(self) -> None:
        """Answers that were ready have been sent; others may be told what they wait for."""

    async def begin(
        self, frame: bytearray, client: KafkaConnection
    ) -> Awaitable[list[Part] | None] | list[Part] | None:
        """Begins a request; returns its response, a wait for it, or None if it gets none.

        Raises only if the connection must be closed.
        """

    def connected(self, client: KafkaConnection) -> None: ...

    def disconnected(self, client: KafkaConnection) -> None: ...
