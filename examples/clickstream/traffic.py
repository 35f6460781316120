"""Events on their way into the topic, by an ordinary Kafka client."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterable, Mapping
from threading import Event as Flag
from threading import Thread

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from examples.clickstream.events import Event, session
from examples.clickstream.pipeline import CLICKS

TIMEOUT_S = 120
_TICK_S = 0.1
_VISIT_MS = 180_000
_EVENTS_PER_VISIT = 4.4
"""On average, and how long a visit takes."""


def make_topics(bootstrap: str, topics: Mapping[str, dict[str, str]], shards: int = 2) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics(
            [
                NewTopic(name, num_partitions=shards, replication_factor=1, topic_configs=options)
                for name, options in topics.items()
            ]
        )
    finally:
        admin.close()


class Sender:
    """Counts what it sends."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", linger_ms=20, batch_size=256 * 1024
        )
        self.sent = 0
        self.broken = 0
        self.acknowledged_ms = 0
        """Time of the newest event, of those that are whole, that the node has for certain."""
        self._newest_ms = 0

    def send(self, events: Iterable[Event]) -> None:
        for event in events:
            self._producer.send(
                CLICKS,
                key=event.user.encode(),
                value=event.value,
                timestamp_ms=event.timestamp_ms,
            )
            self.sent += 1
            self.broken += event.is_broken
            if not event.is_broken:
                self._newest_ms = max(self._newest_ms, event.timestamp_ms)

    def flush(self) -> None:
        self._producer.flush(TIMEOUT_S)
        self.acknowledged_ms = self._newest_ms

    def close(self) -> None:
        self._producer.close(timeout=TIMEOUT_S)


class Visitors:
    """People who are in the shop now: a thread that sends about so many events a second."""

    def __init__(self, sender: Sender, rate: int, seed: int = 11) -> None:
        self._sender = sender
        self._rate = rate
        self._dice = random.Random(seed)
        self._leaving = Flag()
        self._thread = Thread(target=self._visit, daemon=True)

    def __enter__(self) -> Visitors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()
        self._sender.flush()

    def _visit(self) -> None:
        """Visits begin at random; what people do in them becomes due while time passes."""
        begun_ms = int(time.time() * 1000) - _VISIT_MS  # Some are in the shop already.
        first_ms = begun_ms + _VISIT_MS
        due: list[Event] = []
        while not self._leaving.wait(_TICK_S):
            now_ms = int(time.time() * 1000)
            while begun_ms < now_ms:
                begun_ms += int(self._dice.expovariate(self._rate / _EVENTS_PER_VISIT) * 1000) + 1
                for event in session(begun_ms, self._dice):
                    if event.timestamp_ms >= first_ms:
                        heapq.heappush(due, event)
            happened = []
            while due and due[0].timestamp_ms <= now_ms:
                happened.append(heapq.heappop(due))
            self._sender.send(happened)
            self._sender.flush()
