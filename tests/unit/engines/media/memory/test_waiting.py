"""An event loop never waits for a memory shard's lock, and its requests stay in order."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import StoreConfig
from firnmq.disk import Notice
from firnmq.engines import Acks, Appended
from firnmq.errors import ShardNotFound
from firnmq.record import NewRecord, encode
from tests.conformance.lab import Lab


class Answer(Notice[Appended]):
    __slots__ = ("outcome",)

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.outcome: Appended | BaseException | None = None

    def settled(self, value: Appended | None, error: BaseException | None) -> None:
        self.outcome = value if error is None else error


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, "EngineMemory", config=StoreConfig(memory_bytes=100_000))
    yield lab
    lab.close()


async def let_run() -> None:
    """Gives tasks that were made before their first turn."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


def batch(value: bytes) -> bytearray:
    return bytearray(encode([NewRecord(value=value)], now_ms=0))


async def test_appends_of_a_loop_wait_for_the_lock_elsewhere_and_in_order(lab: Lab) -> None:
    """1. Somebody holds the lock, as a spill does while the disk works. 2. The loop submits,
    hands over what it had prepared before, and submits again; it is never blocked. 3. The lock is
    free: all is stored in the order of the calls."""
    shard = lab.shard()
    shard.append_values(b"first")
    engine = lab.engine
    log = engine.log(shard.name)  # type: ignore[attr-defined]
    answer = Answer()
    opened = engine.open_log(shard.name)
    assert opened is not None
    prepared = opened.prepare(batch(b"prepared"), answer, Acks.ALL, None)
    assert prepared is not None
    log.lock.acquire()
    try:
        opened.keeper.submit([prepared])
        tickets = [await engine.submit(shard.name, batch(b"%d" % at)) for at in range(9)]
        assert shard.end == 1
        task = asyncio.create_task(engine.append(shard.name, [NewRecord(value=b"last")]))
        await let_run()
    finally:
        log.lock.release()
    assert [(await ticket).base_offset for ticket in tickets] == list(range(2, 11))
    assert (await task).base_offset == 11
    assert isinstance(answer.outcome, Appended)
    assert answer.outcome.base_offset == 1
    assert shard.values() == [b"first", b"prepared", *(b"%d" % at for at in range(9)), b"last"]
    keeper = engine._keeper  # type: ignore[attr-defined]
    assert keeper._reserved == 0


async def test_a_cancelled_caller_keeps_nothing_reserved(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"first")
    keeper = lab.engine._keeper  # type: ignore[attr-defined]
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    with log.lock:
        tasks = [
            asyncio.create_task(lab.engine.append(shard.name, [NewRecord(value=b"%d" % at)]))
            for at in range(5)
        ]
        await let_run()
        for task in tasks[:4]:
            task.cancel()
        await asyncio.wait(tasks[:4])
        assert keeper._reserved > 0
    assert (await tasks[4]).base_offset == 5, "what was submitted is stored all the same"
    assert keeper._reserved == 0


async def test_deferred_requests_are_told_that_their_shard_is_gone(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"first")
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    with log.lock:
        tickets = [await lab.engine.submit(shard.name, batch(b"x")) for _ in range(3)]
        log.refusal = ShardNotFound(shard.name)
    for ticket in tickets:
        with pytest.raises(ShardNotFound):
            await ticket
    assert lab.engine._keeper._reserved == 0  # type: ignore[attr-defined]


async def test_a_defect_leaves_nobody_waiting(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"first")
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    with log.lock:
        tickets = [await lab.engine.submit(shard.name, batch(b"x")) for _ in range(3)]
        log.refusal = ZeroDivisionError("none that is expected")
    for ticket in tickets:
        with pytest.raises(ZeroDivisionError):
            await ticket
    log.refusal = None
    assert lab.engine._keeper._reserved == 0  # type: ignore[attr-defined]
    assert (await lab.engine.append(shard.name, [NewRecord(value=b"y")])).base_offset == 1
