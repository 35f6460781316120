"""What tasks write becomes visible once, with a kill between any two steps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from firnmq.lake.spark.committing import (
    BatchCommitter,
    Step,
    TaskWrite,
    WriteExpired,
    WritePartlyLost,
)
from firnmq.lake.spark.producing import Coordinator, NotOpen
from firnmq.lake.spark.writing import RowWriter
from tests.integration.faults.processes import Nursery
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.lake.topics import committed, has_open, make_topic
from tests.integration.lake.writer_run import row_writer, rows, written

_JOB = "tests.integration.lake.writer_run:run_batch"
TIMEOUT_S = 120
TASKS = 3
SOON_MS = 2000
"""The time-out of transactions that are to be lost."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    served = NodeProcess(tmp_path_factory.mktemp("once") / "data", QUICK)
    served.start()
    yield served
    served.close()


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    make_topic(node.address, name, 2)
    return name


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery") / "log")
    yield made
    made.close()


class Runs:
    """Runs of a query, each in a process of its own."""

    def __init__(self, nursery: Nursery, node: NodeProcess, topic: str) -> None:
        self._nursery = nursery
        self._place = (node.address, topic, f"q-{topic}")

    def run(self, batch: int, name: str, *, step: str = "", timeout_ms: int = 60_000) -> str:
        """What a run of the batch says at its end: nothing if it is killed at a step."""
        with self._nursery.run(_JOB, *self._place, batch, name, TASKS, step, timeout_ms) as child:
            watchdog = threading.Timer(TIMEOUT_S, child.kill)
            watchdog.start()
            said = b"\n".join(child.lines()).decode()
            code = child.wait()
            watchdog.cancel()
        assert code == (0 if said else -signal.SIGKILL), self._nursery.log_text()
        return said

    def run_until(self, step: str, batch: int, *, timeout_ms: int) -> None:
        """A first run that is killed at the step, its transactions being open with this much time
        or, if the machine is too busy to come to the step so soon, with more."""
        while (said := self.run(batch, "first", step=step, timeout_ms=timeout_ms)) == "expired":
            timeout_ms *= 2
        assert said == ""


@pytest.fixture
def runs(nursery: Nursery, node: NodeProcess, topic: str) -> Runs:
    return Runs(nursery, node, topic)


def values(node: NodeProcess, topic: str) -> list[str]:
    return sorted((each.value or b"").decode() for each in committed(node.address, topic))


def expected(*batches: int) -> list[str]:
    return sorted(
        value for batch in batches for task in range(TASKS) for value in rows(batch, task)
    )


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("step", ["begun", "checked", "noted", "ended one", "ended", "done"])
def test_a_killed_driver_and_the_batch_again(
    runs: Runs, node: NodeProcess, topic: str, step: str
) -> None:
    is_noted = step not in ("begun", "checked")
    # 1. Batch 0 is written and done; batch 1 is killed at the step. What the next run is to end
    #    must not end before it; an abandoned one is to be gone soon.
    assert runs.run(0, "first") == "written"
    runs.run_until(step, 1, timeout_ms=60_000 if is_noted else SOON_MS)
    # 2. Another run of the query does batch 1 again, in transactions of its own.
    assert runs.run(1, "second") == ("written before" if is_noted else "written")
    # 3. And goes on.
    assert runs.run(2, "second") == "written"
    # 4. What was left open in step 1 ends by itself, and is nowhere to be seen.
    wait_until(lambda: not has_open(node.address, topic))
    assert values(node, topic) == expected(0, 1, 2)


def test_a_batch_that_is_done_is_not_written_again(
    runs: Runs, node: NodeProcess, topic: str
) -> None:
    assert runs.run(0, "first") == "written"
    assert runs.run(0, "second") == "written before"
    assert runs.run(1, "second") == "written"
    assert runs.run(0, "third") == "outdated"
    assert values(node, topic) == expected(0, 1)


def committer(
    node: NodeProcess, topic: str, observe: Callable[[Step], None] | None = None
) -> BatchCommitter:
    writer = row_writer(node.address, topic)
    return BatchCommitter(writer.connect, topic, f"q-{topic}", observe=observe)


def test_two_drivers_at_once(node: NodeProcess, topic: str) -> None:
    """One that was thought to be dead wakes up between any two steps of its successor's."""
    writer = row_writer(node.address, topic)
    query = f"q-{topic}"
    old = [written(writer, query, 0, "old", task) for task in range(TASKS)]
    new = [written(writer, query, 0, "new", task) for task in range(TASKS)]

    def successor(step: Step) -> None:
        if step == "checked":
            assert committer(node, topic).commit(0, new)

    zombie = committer(node, topic, successor)
    with pytest.raises(NotOpen):
        zombie.commit(0, old)
    zombie.abort(0, old)
    assert values(node, topic) == expected(0)


def test_what_is_noted_is_not_aborted(node: NodeProcess, topic: str) -> None:
    writer = row_writer(node.address, topic)
    tasks = [written(writer, f"q-{topic}", 0, "first", task) for task in range(TASKS)]

    class Interrupted(Exception):
        pass

    def interrupt(step: Step) -> None:
        if step == "noted":
            raise Interrupted

    first = committer(node, topic, interrupt)
    with pytest.raises(Interrupted):
        first.commit(0, tasks)
    first.abort(0, tasks)  # As Spark does after a failed commit.
    again = [written(writer, f"q-{topic}", 0, "second", task) for task in range(TASKS)]
    assert not committer(node, topic).commit(0, again)
    assert values(node, topic) == expected(0)


def test_a_failed_attempt_leaves_nothing(node: NodeProcess, topic: str) -> None:
    writer = row_writer(node.address, topic)

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": ["never", "ever"]})
        raise RuntimeError("the task's input broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        writer.write_rows(failing(), f"q-{topic}", f"spark/q-{topic}/first/0/0", 0)
    tasks = [written(writer, f"q-{topic}", 0, "first", task) for task in range(TASKS)]
    assert committer(node, topic).commit(0, tasks)
    assert values(node, topic) == expected(0)


def test_a_batch_that_took_too_long(node: NodeProcess, topic: str) -> None:
    slow = row_writer(node.address, topic, SOON_MS)
    writer = row_writer(node.address, topic)
    query = f"q-{topic}"
    tasks = [written(writer, query, 0, "first", task) for task in range(TASKS - 1)]
    late = written(slow, query, 0, "first", TASKS - 1)
    first = committer(node, topic)
    wait_until(lambda: not is_open(writer, topic, late))
    with pytest.raises(WriteExpired):
        first.commit(0, [*tasks, late])
    assert values(node, topic) == []
    again = [written(writer, query, 0, "second", task) for task in range(TASKS)]
    assert committer(node, topic).commit(0, again)
    assert values(node, topic) == expected(0)


def is_open(writer: RowWriter, topic: str, task: TaskWrite) -> bool:
    with writer.connect() as client:
        try:
            Coordinator(client).add_shards(task.transaction, topic, [task.shard])
        except NotOpen:
            return False
    return True


def test_a_driver_that_stays_away_too_long(runs: Runs, node: NodeProcess, topic: str) -> None:
    runs.run_until("noted", 0, timeout_ms=SOON_MS)
    wait_until(lambda: not has_open(node.address, topic))
    # Nothing of the first run was committed, so all of the second is.
    assert runs.run(0, "second") == "written"
    assert values(node, topic) == expected(0)


def test_half_of_a_batch_lost(node: NodeProcess, topic: str) -> None:
    """It was decided to be written, and a part of it cannot be any more: nothing is done twice."""
    writer = row_writer(node.address, topic)
    query = f"q-{topic}"

    def note_and_lose(timeout_ms: int) -> bool:
        """Whether the batch was noted before a part of it expired; that part has done so then."""
        slow = row_writer(node.address, topic, timeout_ms)
        tasks = [written(writer, query, 0, "first", task) for task in range(1, TASKS)]

        def interrupt(step: Step) -> None:
            if step == "noted":
                wait_until(lambda: not is_open(writer, topic, late))
                raise KeyboardInterrupt

        try:
            late = written(slow, query, 0, "first", 0)
            committer(node, topic, interrupt).commit(0, [late, *tasks])
        except (NotOpen, WriteExpired):
            return False
        except KeyboardInterrupt:
            return True
        raise AssertionError("a batch was written of which a part is lost")

    timeout_ms = SOON_MS
    while not note_and_lose(timeout_ms):
        timeout_ms *= 2  # The machine is too busy to come to the step so soon.
    again = [written(writer, query, 0, "second", task) for task in range(TASKS)]
    with pytest.raises(WritePartlyLost, match="1 of 3"):
        committer(node, topic).commit(0, again)
    committer(node, topic).abort(0, again)
    wait_until(lambda: not has_open(node.address, topic))
    assert values(node, topic) == sorted(
        value for task in range(1, TASKS) for value in rows(0, task)
    )
