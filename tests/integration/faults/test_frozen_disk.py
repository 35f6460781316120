"""A file system that keeps writes waiting, as a frozen one does. What writes nothing goes on."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.admin.serving import Served
from tests.integration.faults.shim import Calls, Faults, compiled

_WAIT_S = 60.0
_TOPICS: dict[str, dict[str, str]] = {
    "files": {},
    "rows": {"storage.type": "EngineRocksDB"},
    "keys": {"index.key": "true"},
}


def test_a_frozen_disk_stops_only_what_writes_to_it(tmp_path: Path) -> None:
    environment = compiled(tmp_path)
    faults = Faults(Path(environment["FIRN_FAULT_CONTROL"]))
    served = Served(tmp_path / "data", settings=environment)
    try:
        _freeze_and_thaw(served, faults)
    finally:
        faults.lift()
        served.stop()
        faults.close()


def _freeze_and_thaw(served: Served, faults: Faults) -> None:
    for name, options in _TOPICS.items():
        _create(served, name, options)
    producer = Producer({"bootstrap.servers": served.kafka})
    consumer = Consumer({"bootstrap.servers": served.kafka, "group.id": "g"})
    _produce_all(producer, b"before")
    consumer.commit(offsets=[TopicPartition("files", 0, 1)], asynchronous=False)

    faults.hold(Calls.ALL, "/data/")
    works: dict[str, Callable[[], None]] = {
        "produce": lambda: _produce_all(producer, b"during"),
        "commit": lambda: _commit(consumer),
        "create": lambda: _create(served, "new", {}),
    }
    done = {name: threading.Event() for name in works}
    threads = [
        threading.Thread(target=_run, args=(work, done[name])) for name, work in works.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _WAIT_S
    while faults.matched_count < len(works):  # Records, the group's offset, metadata.
        assert time.monotonic() < deadline, faults.matched_count
        time.sleep(0.01)

    for _ in range(10):
        assert served.call("GET", "/health/live").status == 200
        assert (
            set(_TOPICS)
            <= AdminClient({"bootstrap.servers": served.kafka})
            .list_topics(timeout=_WAIT_S)
            .topics.keys()
        )
    assert _values(served) == {name: [b"before"] for name in _TOPICS}
    assert not any(event.is_set() for event in done.values())

    faults.lift()
    for thread in threads:
        thread.join(_WAIT_S)
    assert all(event.is_set() for event in done.values())
    assert _values(served) == {name: [b"before", b"during"] for name in _TOPICS}
    (committed,) = consumer.committed([TopicPartition("files", 0)], timeout=_WAIT_S)
    assert committed.offset == 2
    consumer.close()


def _create(served: Served, name: str, options: Mapping[str, str]) -> None:
    answer = served.call("POST", "/v1/topics", {"topic": name, "options": options})
    assert answer.status < 300, answer


def _run(work: Callable[[], None], done: threading.Event) -> None:
    work()
    done.set()


def _commit(consumer: Consumer) -> None:
    consumer.commit(offsets=[TopicPartition("files", 0, 2)], asynchronous=False)


def _produce_all(producer: Producer, value: bytes) -> None:
    errors: list[object] = []
    for name in _TOPICS:
        producer.produce(name, value, key=b"key", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(_WAIT_S) == 0
    assert errors == [None] * len(_TOPICS)


def _values(served: Served) -> dict[str, list[bytes]]:
    """All values of every topic, read by a client of its own."""
    settings = {"bootstrap.servers": served.kafka, "group.id": "readers"}
    reader = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    found: dict[str, list[bytes]] = {name: [] for name in _TOPICS}
    reader.assign([TopicPartition(name, 0, 0) for name in _TOPICS])
    ended = 0
    while ended < len(_TOPICS):
        message = reader.poll(_WAIT_S)
        assert message is not None
        if message.error():
            ended += 1
        else:
            found[message.topic()].append(message.value())
    reader.close()
    return found
