"""Requests and answers with many elements are decoded and encoded in a thread.

The interpreter switches threads every few milliseconds, so the event loop goes on while a thread
decodes. There is one thread: several would keep the event loop waiting for as many switches.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from firnmq.brokers.kafka.protocol import (
    Message,
    Part,
    RequestHeader,
    decode_request,
    decode_short_request,
    encode_response,
    encode_short_response,
)
from firnmq.brokers.kafka.statistics import error_of


class CodecThread:
    """Decodes requests and encodes answers, long ones in its thread. Owned by the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="firn-kafka-frames")

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    async def decode(self, frame: bytearray) -> tuple[RequestHeader, Message, bool]:
        """The header and the message of a request, and whether the request is long."""
        decoded = decode_short_request(frame)
        if decoded is not None:
            return *decoded, False
        loop = asyncio.get_running_loop()
        decoded = await loop.run_in_executor(self._thread, decode_request, frame)
        return *decoded, True

    async def encode(
        self, header: RequestHeader, response: Message, *, is_long: bool
    ) -> tuple[list[Part], int]:
        """The frame of an answer and its first error code. `is_long`: its request was long."""
        if not is_long:
            parts = encode_short_response(header, response)
            if parts is not None:
                return parts, error_of(response)

        def work() -> tuple[list[Part], int]:
            return encode_response(header, response), error_of(response)

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
