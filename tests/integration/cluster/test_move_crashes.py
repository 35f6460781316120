"""Nodes die in the middle of moves: one of the two then leads the shard, whole, without a hand."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.cluster.checker import CheckedProducer, read_all
from tests.integration.cluster.dying_node import DIES_AT, OF_LEADER, OF_SUCCESSOR
from tests.integration.cluster.nodes import WAIT_S, Nodes, wait_until
from tests.integration.kafka.nodes import NodeProcess

_TOPIC = "load"
_PARTITIONS = 6


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with closing(Nodes(tmp_path)) as found:
        found.start()
        yield found


def _create(nodes: Nodes, *names: str, partitions: int = _PARTITIONS, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[1].address})
    wanted = [NewTopic(each, partitions, 1, config=config) for each in names]
    for made in admin.create_topics(wanted).values():
        made.result(WAIT_S)
    for name in names:
        for number in nodes.processes:
            nodes.wait_leaders(number, name)


def _put(url: str, body: object, method: str = "PUT") -> dict[str, object]:
    data = json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"}, method=method)
    with urlopen(request, timeout=WAIT_S) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def _move(nodes: Nodes, asked: int, topic: str, partition: int, to: int) -> None:
    url = f"{nodes[asked].admin_url}/v1/topics/{topic}/shards/{partition}/leader"
    _put(url, {"node": to})


class Mover:
    """Moves random shards between random nodes until it is stopped. What fails is tried again with
    others."""

    def __init__(self, nodes: Nodes, topics: list[str], seed: int) -> None:
        self._nodes = nodes
        self._topics = topics
        self._random = Random(seed)
        self._stopping = threading.Event()
        self.moved = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        numbers = list(self._nodes.processes)
        while not self._stopping.is_set():
            choose = self._random.choice
            topic, partition = choose(self._topics), self._random.randrange(_PARTITIONS)
            with suppress(URLError, OSError):
                _move(self._nodes, choose(numbers), topic, partition, choose(numbers))
                self.moved += 1

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def test_moves_under_load_lose_nothing_and_repeat_nothing(nodes: Nodes) -> None:
    _create(nodes, _TOPIC)
    producer = CheckedProducer(nodes.bootstrap, _TOPIC, _PARTITIONS)
    mover = Mover(nodes, [_TOPIC], seed=1)
    try:
        # 1. Shards move all the time, and every partition goes on.
        _wait_moves(mover, 20)
        _wait_progress(producer)
        # 2. Each node is killed in the middle of it, and comes back.
        for victim in (2, 3, 1):
            _wait_moves(mover, 10)
            nodes[victim].kill()
            nodes[victim].start()
            nodes.wait_registered()
            _wait_progress(producer)
        _wait_moves(mover, 10)
    finally:
        mover.stop()
        producer.stop()
    assert not producer.failed
    producer.check(nodes.bootstrap)


def test_transactions_and_groups_go_on_while_shards_move(nodes: Nodes) -> None:
    _create(nodes, "input", "output")
    count = 3_000
    filling = Producer({"bootstrap.servers": nodes.bootstrap, "enable.idempotence": True})
    mover = Mover(nodes, ["input", "output"], seed=2)
    copied = threading.Event()
    failures: list[BaseException] = []
    copier = threading.Thread(target=_copy, args=(nodes, count, copied, failures))
    copier.start()
    try:
        for number in range(count):
            filling.produce("input", str(number).encode(), partition=number % _PARTITIONS)
            filling.poll(0.001)
        assert filling.flush(WAIT_S) == 0
        _wait_moves(mover, 10)
        nodes[2].kill()
        nodes[2].start()
        nodes.wait_registered()
        wait_until(lambda: copied.is_set() or bool(failures), "everything is copied")
    finally:
        mover.stop()
        copied.set()
        copier.join()
    assert not failures
    assert mover.moved > 10
    found = read_all(nodes.bootstrap, "output", _PARTITIONS, committed=True)
    for partition, values in found.items():
        numbers = [int(value) for value in values.values()]
        assert numbers == list(range(partition, count, _PARTITIONS)), f"partition {partition}"


def _copy(nodes: Nodes, count: int, copied: threading.Event, failures: list[BaseException]) -> None:
    """Copies exactly once, from partition to partition; after an error that ends a transaction it
    begins again where the group is."""
    try:
        done = 0
        while done < count and not copied.is_set():
            done = _copy_until_error(nodes, count, copied)
        copied.set()
    except BaseException as error:
        failures.append(error)


def _copy_until_error(nodes: Nodes, count: int, copied: threading.Event) -> int:
    from confluent_kafka import KafkaException

    producer = Producer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "transactional.id": "copier",
            "retry.backoff.ms": 50,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "group.id": "copiers",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        producer.init_transactions(WAIT_S)
        consumer.subscribe(["input"])
        while not copied.is_set():
            messages = [each for each in consumer.consume(50, 0.3) if not each.error()]
            if messages:
                producer.begin_transaction()
                for message in messages:
                    partition = message.partition()
                    assert partition is not None
                    producer.produce("output", message.value(), partition=partition)
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()),
                    consumer.consumer_group_metadata(),
                    WAIT_S,
                )
                producer.commit_transaction(WAIT_S)
            places = consumer.assignment()
            if places:
                told = consumer.committed(places, timeout=WAIT_S)
                done = sum(max(each.offset, 0) for each in told if len(places) == _PARTITIONS)
                # Offsets of markers and of aborted records do not count: the input has none.
                if done >= count:
                    return done
        return 0
    except KafkaException as error:
        failure = error.args[0]
        if failure.txn_requires_abort():
            with suppress(KafkaException):
                producer.abort_transaction(WAIT_S)
        return 0
    finally:
        consumer.close()


@pytest.mark.parametrize("step", [*OF_LEADER, *OF_SUCCESSOR])
def test_a_node_dies_at_a_step_of_a_move(tmp_path: Path, step: str) -> None:
    with closing(Nodes(tmp_path, count=2)) as nodes:
        nodes.start()
        _create(nodes, _TOPIC)
        partition = nodes.partition_led_by(1, _TOPIC)
        victim = 1 if step in OF_LEADER else 2
        # The node that is to die at the step takes the place of the sound one.
        nodes[victim].terminate()
        sound = nodes.processes[victim]
        settings = {**nodes.settings(victim), DIES_AT: step}
        dying = NodeProcess(sound.data, settings, module="tests.integration.cluster.dying_node")
        nodes.processes[victim] = dying
        dying.start()
        nodes.wait_registered()
        for number in nodes.processes:
            nodes.wait_leaders(number, _TOPIC)
        producer = CheckedProducer(nodes.bootstrap, _TOPIC, _PARTITIONS)
        try:
            _wait_progress(producer)
            with suppress(URLError, OSError):
                _move(nodes, 1, _TOPIC, partition, 2)
            wait_until(lambda: not dying.is_running, f"node {victim} has died at: {step}")
            dying.kill()
            nodes.processes[victim] = sound
            sound.forget_port()
            sound.start()
            nodes.wait_registered()
            for number in nodes.processes:
                nodes.wait_leaders(number, _TOPIC)
            _wait_progress(producer)
        finally:
            producer.stop()
        assert not producer.failed
        producer.check(nodes.bootstrap)
        # The metadata decided: the shard is where the transaction has put it.
        has_moved = step in ("decided", "left")
        assert nodes.leaders(1, _TOPIC)[partition] == (2 if has_moved else 1)
        assert nodes.leaders(2, _TOPIC) == nodes.leaders(1, _TOPIC)
        # And it moves on from there.
        _move(nodes, 2, _TOPIC, partition, 1)
        _move(nodes, 1, _TOPIC, partition, 2)
        producer.check(nodes.bootstrap)


def test_a_node_that_joins_gets_its_share_under_load_and_copies_nothing(nodes: Nodes) -> None:
    partitions = 12
    _create(nodes, _TOPIC, partitions=partitions, **{"segment.bytes": str(1024 * 1024)})
    producer = CheckedProducer(nodes.bootstrap, _TOPIC, partitions)
    try:
        _wait_progress(producer)
        nodes.processes[4] = NodeProcess(nodes.directory / "node4", nodes.settings(4))
        nodes[4].start()
        nodes.wait_registered()
        # 1. One roll of each shard, as when its segment is old.
        _roll_by_age(nodes)
        wait_until(
            lambda: Counter(nodes.leaders(1, _TOPIC).values())[4] == partitions // 4,
            "node 4 leads its share",
        )
        _wait_progress(producer)
    finally:
        producer.stop()
    assert not producer.failed
    # 2. No node has read or copied a byte of another one's segments.
    fetched = {
        number: _metric(nodes, number, "firn_peer_fetched_bytes_total") for number in (1, 2, 3, 4)
    }
    assert fetched == dict.fromkeys((1, 2, 3, 4), 0.0)
    assert sum(_metric(nodes, number, "firn_shards_moved_total") for number in (1, 2, 3)) >= 3
    # 3. One log, through any node.
    producer.check(nodes[4].address)


def _roll_by_age(nodes: Nodes) -> None:
    url = f"{nodes[1].admin_url}/v1/topics/{_TOPIC}/config"
    _put(url, {"options": {"segment.ms": 1000}}, method="PATCH")


def _metric(nodes: Nodes, number: int, name: str) -> float:
    with urlopen(f"{nodes[number].admin_url}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _wait_moves(mover: Mover, count: int) -> None:
    before = mover.moved
    wait_until(lambda: mover.moved >= before + count, f"{count} more moves")


def _wait_progress(producer: CheckedProducer) -> None:
    """Returns once more records of each partition are acknowledged."""
    partitions = range(producer.partition_count)
    before = {each: producer.acknowledged_of(each) for each in partitions}
    wait_until(
        lambda: all(producer.acknowledged_of(each) > count for each, count in before.items()),
        f"records of {before} are acknowledged",
    )
