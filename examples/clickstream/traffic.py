"""Events on their way into the topic, by an ordinary Kafka client."""

from __future__ import annotations

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

    def flush(self) -> None:
        self._producer.flush(TIMEOUT_S)

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
        waiting: list[Event] = []
        while not self._leaving.wait(0.1):
            while len(waiting) < self._rate:
                waiting += session(0, self._dice)
                self._dice.shuffle(waiting)
            now_ms = int(time.time() * 1000)
            taken, waiting = waiting[: self._rate // 10], waiting[self._rate // 10 :]
            # Everybody is in the middle of a visit: what they do, they do now.
            self._sender.send(event._replace(timestamp_ms=now_ms) for event in taken)
            self._sender.flush()
