"""The states of a connection and every way from one to another, in one table.

A connection does five things side by side, and each has its own states: it lives, reads what the
client sends, carries out one request, collects answers, and writes them to the client.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Generic, TypeVar

from firnmq.errors import FirnError


class State(enum.Enum):
    """States are compared and hashed by identity: they are looked up for every request."""

    __hash__ = object.__hash__


class Life(State):
    """Whether there is a client."""

    NEW = "not connected yet"
    OPEN = "open"
    LAST_ANSWER = "closed once all requests are answered"
    LOST = "lost"


class Reading(State):
    """Whether the socket is read."""

    ON = "read"
    PAUSED = "paused"
    """The client has enough requests here, or there is no memory for its next bytes."""
    STOPPED = "stopped"
    """Nothing is read any more; the requests that have come are carried out."""


class Serving(State):
    """The request that the ones after it have to wait for. Produce requests that are queued with
    their shards are not meant: others may begin."""

    IDLE = "idle"
    WORKING = "at work"
    WAITING = "waiting"
    """The same, but what it waits for matters to this client only."""
    GIVEN_UP = "given up"
    """The wait was cancelled: its client is gone, or the node stops."""
    WATCHING = "watching"
    """A request waits that was begun without the connection's task."""


class Sending(State):
    """When answers that are ready are written."""

    AT_ONCE = "at once"
    COLLECTING = "after what was received"
    """Received bytes are being handled; no answer has become ready so far."""
    COLLECTED = "after what was received, where something is ready"
    SCHEDULED = "in the next turn of the event loop"


class Writing(State):
    """Whether the client takes what is written to it."""

    FREE = "free"
    FULL = "full"


class Event(enum.Enum):
    """What can happen to a connection."""

    MADE = "the connection is made"
    LAST_ANSWER = "it is to end with the answer to the current request"
    LOST = "the connection is lost"
    PAUSE = "reading is paused"
    RESUME = "reading goes on"
    STOP = "nothing more is to be read"
    BEGIN = "a request is begun"
    WAIT = "the request waits for what matters to this client only"
    GIVE_UP = "the wait is given up"
    END = "the request is done"
    WATCH = "a request waits without the task"
    WATCHED = "that request is answered"
    RECEIVE = "received bytes are being handled"
    READY = "an answer is ready"
    FLUSH = "answers are written"
    RECEIVED = "received bytes have been handled"
    FILLED = "the client takes too little"
    DRAINED = "the client has taken enough"


class IllegalTransition(FirnError):
    """The connection cannot have this event in this state; nothing was changed."""

    def __init__(self, state: State, event: Event) -> None:
        kind = type(state).__name__.lower()
        super().__init__(f"a connection whose {kind} state is {state.name}: {event.value}")
        self.state = state
        self.event = event


StateT = TypeVar("StateT", bound=State)


class Transitions(dict[StateT, StateT], Generic[StateT]):
    """What one event makes of each state that can have it; IllegalTransition for the others."""

    def __init__(self, event: Event, after: dict[StateT, StateT]) -> None:
        super().__init__(after)
        self.event = event

    def __missing__(self, state: StateT) -> StateT:
        raise IllegalTransition(state, self.event)


MADE = Transitions(Event.MADE, {Life.NEW: Life.OPEN})
LAST_ANSWER = Transitions(
    Event.LAST_ANSWER,
    {
        Life.OPEN: Life.LAST_ANSWER,
        Life.LAST_ANSWER: Life.LAST_ANSWER,
        # Its requests are carried out without a reader of the answers.
        Life.LOST: Life.LOST,
    },
)
LOST = Transitions(Event.LOST, {Life.OPEN: Life.LOST, Life.LAST_ANSWER: Life.LOST})

PAUSE = Transitions(Event.PAUSE, {Reading.ON: Reading.PAUSED})
RESUME = Transitions(Event.RESUME, {Reading.PAUSED: Reading.ON})
STOP = Transitions(
    Event.STOP,
    {
        Reading.ON: Reading.STOPPED,
        Reading.PAUSED: Reading.STOPPED,
        # The node stops, then the connection is lost.
        Reading.STOPPED: Reading.STOPPED,
    },
)

BEGIN = Transitions(Event.BEGIN, {Serving.IDLE: Serving.WORKING})
WAIT = Transitions(Event.WAIT, {Serving.WORKING: Serving.WAITING})
GIVE_UP = Transitions(Event.GIVE_UP, {Serving.WAITING: Serving.GIVEN_UP})
END = Transitions(
    Event.END,
    {
        Serving.WORKING: Serving.IDLE,
        Serving.WAITING: Serving.IDLE,
        Serving.GIVEN_UP: Serving.IDLE,
    },
)
WATCH = Transitions(Event.WATCH, {Serving.IDLE: Serving.WATCHING})
WATCHED = Transitions(Event.WATCHED, {Serving.WATCHING: Serving.IDLE})

RECEIVE = Transitions(
    Event.RECEIVE,
    {Sending.AT_ONCE: Sending.COLLECTING, Sending.SCHEDULED: Sending.COLLECTED},
)
READY = Transitions(
    Event.READY,
    {
        Sending.AT_ONCE: Sending.SCHEDULED,
        Sending.SCHEDULED: Sending.SCHEDULED,
        Sending.COLLECTING: Sending.COLLECTED,
        Sending.COLLECTED: Sending.COLLECTED,
    },
)
FLUSH = Transitions(
    Event.FLUSH,
    {
        Sending.AT_ONCE: Sending.AT_ONCE,
        Sending.SCHEDULED: Sending.AT_ONCE,
        Sending.COLLECTING: Sending.COLLECTING,
        Sending.COLLECTED: Sending.COLLECTING,
    },
)
RECEIVED = Transitions(
    Event.RECEIVED,
    {Sending.COLLECTING: Sending.AT_ONCE, Sending.COLLECTED: Sending.AT_ONCE},
)

# A transport may say so again while it is full.
FILLED = Transitions(Event.FILLED, {Writing.FREE: Writing.FULL, Writing.FULL: Writing.FULL})
DRAINED = Transitions(Event.DRAINED, {Writing.FULL: Writing.FREE, Writing.FREE: Writing.FREE})

TRANSITIONS = MappingProxyType(
    {
        each.event: each
        for each in (
            *(MADE, LAST_ANSWER, LOST),
            *(PAUSE, RESUME, STOP),
            *(BEGIN, WAIT, GIVE_UP, END, WATCH, WATCHED),
            *(RECEIVE, READY, FLUSH, RECEIVED),
            *(FILLED, DRAINED),
        )
    }
)
"""The whole table. A pair that is not here is a defect of the caller, and is refused."""
