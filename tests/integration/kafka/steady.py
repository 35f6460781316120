"""A well-behaved client that writes and reads while others misbehave, and notes every error."""

from __future__ import annotations

import threading
import time
from typing import Self

import confluent_kafka

WAIT_S = 60


class Steady:
    """A producer and a consumer in a thread. A context manager: it must have moved on by the end,
    without a single error."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._errors: list[str] = []
        self._sent = 0
        self._seen = 0
        self._moved = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def wait_progress(self, count: int = 20) -> None:
        """Returns when so many more records have made the round."""
        deadline = time.monotonic() + WAIT_S
        with self._moved:
            target = self._seen + count
            while self._seen < target:
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"stuck at {self._seen}: {self._errors}"
                self._moved.wait(left_s)

    def _run(self) -> None:
        note = self._errors.append
        common = {
            "bootstrap.servers": self._address,
            "error_cb": lambda error: note(str(error)),
        }
        producer = confluent_kafka.Producer({**common, "linger.ms": 0})
        consumer = confluent_kafka.Consumer(
            {**common, "group.id": "steady", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(self._topic, 0, 0)])
        while not self._stop.is_set() or self._seen < self._sent:
            if not self._stop.is_set():
                producer.produce(
                    self._topic,
                    b"%d" % self._sent,
                    on_delivery=lambda error, _: error and note(str(error)),
                )
                self._sent += 1
            producer.poll(0)
            for message in consumer.consume(100, 0.01):
                if message.error() is not None:
                    note(str(message.error()))
                elif message.value() != b"%d" % self._seen:
                    note(f"{message.value()} instead of {self._seen}")
                with self._moved:
                    self._seen += 1
                    self._moved.notify_all()
        producer.flush(WAIT_S)
        consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_progress()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.wait_progress()
        finally:
            self._stop.set()
            self._thread.join(WAIT_S)
        assert not self._errors
