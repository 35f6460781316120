"""Append requests that wait for replicas, in offset order."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from firnmq.cluster.replication.events import Request
from firnmq.cluster.replication.values import MonotonicMs, Token
from firnmq.ids import Offset

_NEVER = MonotonicMs(2**63 - 1)


class WaitingRequests:
    """One queue of requests. Completing costs what is completed; there is no timer per request.

    Invariant: ends never decrease from left to right.
    """

    __slots__ = ("_first_deadline_ms", "_requests")

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._first_deadline_ms = _NEVER
        """No request has an earlier deadline; the request that had it may be gone."""

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        assert not self._requests or self._requests[-1].end <= request.end
        self._requests.append(request)
        if request.deadline_ms < self._first_deadline_ms:
            self._first_deadline_ms = request.deadline_ms

    def join(self, request: Request) -> None:
        """Adds a request for records that are in the log already: not before the last one."""
        if self._requests and self._requests[-1].end > request.end:
            request = replace(request, end=self._requests[-1].end)
        self.add(request)

    def pop_below(self, mark: Offset, into: list[Token]) -> None:
        """Takes the requests whose records are all below `mark`."""
        requests = self._requests
        while requests and requests[0].end <= mark:
            into.append(requests.popleft().token)

    def pop_expired(self, now: MonotonicMs) -> list[Token]:
        """Takes the requests whose time is over. Looks at nothing while none can be."""
        if now < self._first_deadline_ms:
            return []
        expired = [request.token for request in self._requests if request.deadline_ms <= now]
        left = [request for request in self._requests if request.deadline_ms > now]
        self._requests = deque(left)
        self._first_deadline_ms = min((each.deadline_ms for each in left), default=_NEVER)
        return expired

    def pop_all(self) -> list[Token]:
        tokens = [request.token for request in self._requests]
        self._requests.clear()
        self._first_deadline_ms = _NEVER
        return tokens
