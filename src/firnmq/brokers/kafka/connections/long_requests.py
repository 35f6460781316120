"""Requests that are longer than they may be: counted, logged, and answered where possible."""

from __future__ import annotations

from firnmq.brokers.kafka.protocol import Part, RequestTooLong
from firnmq.brokers.kafka.protocol.bounds import bytes_max_of
from firnmq.brokers.kafka.protocol.refusals import refuse
from firnmq.brokers.net.limit_log import LimitLog


class LongRequests:
    """Judges and refuses them. Owned by the event loop."""

    def __init__(self, log: LimitLog, frame_bytes_max: int) -> None:
        self._log = log
        self._frame_bytes_max = frame_bytes_max

    def judge_length(
        self, length: int, first: memoryview, peer: str
    ) -> tuple[bool, list[Part] | None]:
        """Whether a request may be so long, by its first bytes; if not, the answer that says so,
        or None if the connection must be closed."""
        api_key = int.from_bytes(first[:2], "big", signed=True)
        api_bytes_max = bytes_max_of(api_key)
        limit = "frame_bytes" if length > self._frame_bytes_max else "request_bytes"
        allowed = min(api_bytes_max or length, self._frame_bytes_max)
        if length <= allowed:
            return True, None
        text = f"the request has {length:,} bytes, {allowed:,} are allowed"
        self._log.hit(limit, peer, api=api_key, reason=text)
        return False, refuse(first, text)

    def answer(self, frame: bytearray, error: RequestTooLong, peer: str) -> list[Part]:
        """The answer to a request with too many elements; raises the error if there is none."""
        api_key = int.from_bytes(frame[:2], "big", signed=True)
        self._log.hit(error.limit, peer, api=api_key, reason=str(error))
        parts = refuse(frame, f"the request is too long: {error.reason}")
        if parts is None:
            raise error
        return parts
