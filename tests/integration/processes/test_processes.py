"""`firn serve --processes N`: several whole nodes on one machine, behind one HTTP address."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from firnmq.nodefile import node_serving
from tests.integration.cluster.nodes import WAIT_S, wait_until
from tests.integration.processes.served import Machine, firn, serve_command

_SHARDS = 4


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "data")
    machine.start()
    try:
        machine.wait_ready()
        yield machine
    finally:
        machine.close()


def _produce(machine: Machine, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": machine.kafka[0]})
    for value in values:
        producer.produce(topic, str(value), partition=value % _SHARDS)
    assert producer.flush(WAIT_S) == 0


def _values(machine: Machine, topic: str, *options: str) -> list[int]:
    read = machine.firn("read", topic, *options)
    return sorted(int(line.split()[-1]) for line in read.splitlines())


def test_one_address_reaches_every_process(machine: Machine) -> None:
    """1. A topic is spread over the processes. 2. Commands and HTTP reach all of its shards."""
    machine.firn("topic", "create", "events", "--shards", str(_SHARDS))
    _produce(machine, "events", range(40))
    assert _values(machine, "events") == list(range(40))
    leaders = {each["node"]: each["leaders"] for each in machine.get("/v1/cluster")["nodes"]}
    assert leaders == {1: 2, 2: 2}
    # 3. The status has both processes, and the sums of both.
    for _ in range(8):  # Connections come to either process.
        status = machine.get("/v1/node")
        assert status["data"] == str(machine.data.resolve())
        assert [each["kafka"] for each in status["processes"]] == machine.kafka
        assert all(each["stored_bytes"] > 0 for each in status["processes"])
    assert "PROCESS" in machine.firn("status")
    # 4. The metrics are those of all, each with its process; together they count each shard once.
    status_code, text = machine.answer("/metrics")
    assert status_code == 200
    ends = [line for line in text.splitlines() if line.startswith("firn_shard_end_offset{")]
    assert sum(float(line.split()[-1]) for line in ends) == 40
    assert len(ends) == _SHARDS
    for process in (1, 2):
        assert f'firn_process_up{{process="{process}"}} 1.0' in text
        assert f'process_cpu_seconds_total{{process="{process}"}}' in text


def test_groups_answer_through_the_one_address(machine: Machine) -> None:
    """Whichever process gets the request, the one that coordinates the group answers it."""
    machine.firn("topic", "create", "events", "--shards", str(_SHARDS))
    _produce(machine, "events", range(8))
    groups = [f"group-{number}" for number in range(6)]
    for group in groups:
        consumer = Consumer(
            {
                "bootstrap.servers": machine.kafka[1],
                "group.id": group,
                "auto.offset.reset": "earliest",
            }
        )
        with suppress_close(consumer):
            consumer.subscribe(["events"])
            seen = 0
            while seen < 8:
                message = consumer.poll(WAIT_S)
                assert message is not None
                assert message.error() is None
                seen += 1
            consumer.commit(asynchronous=False)
    slots = {
        each["node"]: each["coordinator_slots"] for each in machine.get("/v1/cluster")["nodes"]
    }
    assert all(slots.values()), "both processes coordinate groups"
    for _ in range(4):
        assert [each["group"] for each in machine.get("/v1/groups")] == groups
        for group in groups:
            offsets = machine.get(f"/v1/groups/{group}")["offsets"]
            assert sum(each["committed_offset"] for each in offsets) == 8
    status, text = machine.answer("/v1/groups/nobody")
    assert (status, "GroupNotFound" in text) == (404, True)
    moved = machine.send("POST", "/v1/groups/group-1/offsets", {"topic": "events", "to": "latest"})
    assert len(moved) == _SHARDS


def test_users_and_rules_are_those_of_all_processes(machine: Machine) -> None:
    for number in range(6):
        machine.send("PUT", f"/v1/users/user-{number}", {"password": "secret"})
    for _ in range(8):
        assert len(machine.get("/v1/users")) == 6
    machine.stop()
    machine.start()
    assert len(machine.get("/v1/users")) == 6


def suppress_close(consumer: Consumer) -> ExitStack:
    closing = ExitStack()
    closing.callback(consumer.close)
    return closing


def test_a_killed_process_is_started_again(machine: Machine) -> None:
    """1. Process 2 is killed. 2. Health says so, and the address goes on to answer. 3. It comes
    back on its port, with everything that was acknowledged."""
    machine.firn("topic", "create", "events", "--shards", str(_SHARDS))
    _produce(machine, "events", range(40))
    before = machine.process(2)
    os.kill(before.pid, signal.SIGSTOP)  # So that it is away for as long as the test looks.
    wait_until(lambda: machine.states().get(2) == "away", "process 2 does not answer")
    status, text = machine.answer("/health/ready")
    assert (status, "process 2 is away" in text) == (503, True)
    assert 'firn_process_up{process="2"} 0.0' in machine.answer("/metrics")[1]
    os.kill(before.pid, signal.SIGKILL)
    machine.wait_ready()
    after = machine.process(2)
    assert after.pid != before.pid
    assert after.kafka == before.kafka == machine.kafka[1]
    assert machine.said("process 2 was ended by SIGKILL; it is started again in 0.5 s")
    wait_until(lambda: machine.said("process 2 serves again"), "the supervisor said so")
    assert 'process_ended name="process 2" how="was ended by SIGKILL"' in machine.log()
    assert machine.answer("/health/ready")[0] == 200
    assert _values(machine, "events") == list(range(40))


def test_processes_end_with_their_supervisor(machine: Machine) -> None:
    """1. The supervisor is killed: its processes stop. 2. The next one starts, as soon as they have
    ended, and all records are there."""
    machine.firn("topic", "create", "events", "--shards", str(_SHARDS))
    _produce(machine, "events", range(40))
    pids = [machine.process(number).pid for number in (1, 2)]
    machine.kill()
    assert node_serving(machine.data) is None
    machine.start()
    assert not set(pids) & {machine.process(number).pid for number in (1, 2)}
    machine.wait_ready()
    assert _values(machine, "events") == list(range(40))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_all_stop_together(machine: Machine, number: signal.Signals, code: int) -> None:
    assert machine.stop(number) == code
    machine.wait_ended()
    assert machine.lines[-2].startswith("stopping ")
    assert machine.lines[-1].startswith("stopped   2 processes; everything that was acknowledged")


def test_a_port_range_that_is_partly_taken_starts_nothing(tmp_path: Path) -> None:
    """The message has the ports that are taken, and nothing was made."""
    with ExitStack() as opened:
        first = _free_range(opened, 3)
        taken = opened.enter_context(socket.socket())
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        done = firn(*serve_command(tmp_path / "data", 3, first)[3:])
    assert done.returncode != 0
    assert f"other programs listen on 127.0.0.1:{first + 1};" in done.stderr
    assert f"the ports {first} to {first + 2}" in done.stderr
    assert not (tmp_path / "data" / "process1").exists()


def test_ports_are_consecutive_and_kept(tmp_path: Path) -> None:
    with ExitStack() as opened:
        first = _free_range(opened, 2)
    machine = Machine(tmp_path / "data")
    machine.start(first)
    try:
        assert machine.kafka == [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
        second = firn(*serve_command(tmp_path / "other", 2, first)[3:])
        assert "other programs listen on" in second.stderr
        again = firn(*serve_command(machine.data, 2)[3:])
        assert again.returncode == 1
        assert "is served by a node" in again.stderr
    finally:
        machine.close()


def _free_range(opened: ExitStack, count: int) -> int:
    """The first of so many free ports, below those that the system gives to clients."""
    for first in range(20_000 + os.getpid() % 10_000, 32_000, count):
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--processes", "0"], "must be 1 to 64 or auto"),
        (["--processes", "many"], "must be 1 to 64 or auto"),
        (["--processes", "3", "--port", "65534"], "above 65535"),
        (["--processes", "2", "--cluster-meta", "x.db"], "a cluster of their own"),
        (["--processes", "2", "--role", "meta"], "--processes is for --role node"),
    ],
)
def test_a_wrong_number_or_setting_is_refused(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    done = firn("serve", "--data", str(tmp_path / "data"), *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_settings_of_processes_can_be_checked(tmp_path: Path) -> None:
    done = firn(*serve_command(tmp_path / "data", 2)[3:], "--check")
    assert (done.returncode, "checked" in done.stdout) == (0, True)
    assert not (tmp_path / "data").exists()
