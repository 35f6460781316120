"""What an append's deadline means while the device does not answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.disk import FileCache, run_blocking
from firnmq.engines import Acks, deadlines
from firnmq.errors import AppendTimedOut
from firnmq.record import NewRecord, encode
from tests.conformance.lab import Lab


class Device:
    """A device that answers only while it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers = threading.Event()
        self._answers.set()
        self.is_asked = threading.Event()
        write_at = FileCache.write_at

        def wait(files: FileCache, *arguments: object, **options: bool) -> int:
            self.is_asked.set()
            self._answers.wait()
            return write_at(files, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(FileCache, "write_at", wait)

    def hang(self) -> None:
        self._answers.clear()
        self.is_asked.clear()

    def answer(self) -> None:
        self._answers.set()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(deadlines, "SWEEP_S", 0.005)
    lab = Lab(tmp_path, "EngineSegment")
    yield lab
    lab.close()


@pytest.fixture
def device(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device(monkeypatch)
    yield device
    device.answer()


def batch(value: bytes) -> bytearray:
    return bytearray(encode([NewRecord(value=value)], now_ms=0))


def in_a_minute() -> float:
    return time.monotonic() + 60


def let_an_hour_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the sweep alone: the worker refuses nothing."""
    hour_later = time.monotonic() + 3_600
    monkeypatch.setattr(deadlines, "monotonic", lambda: hour_later)


async def refusal_of(ticket: object) -> AppendTimedOut:
    with pytest.raises(AppendTimedOut) as caught:
        await ticket  # type: ignore[misc]
    return caught.value


async def test_a_deadline_that_passes_is_told_while_the_device_hangs(
    lab: Lab, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The device does not answer. 2. One append is under way, two are queued; two of the three
    have a deadline. 3. Of the first nobody can know what becomes of it; the other is taken back.
    4. The device answers: the first is stored, and so is what had no deadline."""
    shard = lab.shard()
    engine = lab.engine
    shard.append_values(b"first")
    device.hang()
    unknown = await engine.submit(shard.name, batch(b"unknown"), Acks.ALL, in_a_minute())
    await asyncio.to_thread(device.is_asked.wait)
    refused = await engine.submit(shard.name, batch(b"refused"), Acks.LEADER, in_a_minute())
    patient = await engine.submit(shard.name, batch(b"patient"))
    let_an_hour_pass(monkeypatch)
    assert (await refusal_of(unknown)).is_unknown
    assert not (await refusal_of(refused)).is_unknown
    device.answer()
    assert (await patient).base_offset == 2
    assert shard.values() == [b"first", b"unknown", b"patient"]


async def test_a_deadline_that_does_not_pass_leaves_nothing_behind(lab: Lab) -> None:
    shard = lab.shard()
    far = time.monotonic() + 3_600
    tickets = [await lab.engine.submit(shard.name, batch(b"v"), Acks.ALL, far) for _ in range(9)]
    assert [(await ticket).base_offset for ticket in tickets] == list(range(9))
    waiting = lab.engine._keeper._deadlines._by_loop  # type: ignore[attr-defined]
    while waiting:  # The sweep ends once it finds nothing.
        assert not any(waiting.values())
        await asyncio.to_thread(int)


async def test_without_an_acknowledgement_there_is_no_deadline(lab: Lab, device: Device) -> None:
    shard = lab.shard()
    shard.append_values(b"first")
    device.hang()
    first = await lab.engine.submit(shard.name, batch(b"1"), Acks.NONE, time.monotonic())
    await asyncio.to_thread(device.is_asked.wait)
    second = await lab.engine.submit(shard.name, batch(b"2"), Acks.NONE, time.monotonic())
    device.answer()
    assert [(await first).base_offset, (await second).base_offset] == [1, 2]


def test_a_thread_is_told_too(lab: Lab, device: Device) -> None:
    shard = lab.shard()
    shard.append_values(b"first")
    device.hang()

    async def append(value: bytes) -> object:
        ticket = await lab.engine.submit(shard.name, batch(value), Acks.ALL, in_a_minute())
        device.is_asked.wait()
        return await ticket.within(time.monotonic() + 0.01)

    with pytest.raises(TimeoutError):
        run_blocking(append(b"unknown"))
    device.answer()
    assert shard.append_values(b"next").base_offset == 2
    assert shard.values() == [b"first", b"unknown", b"next"]


async def test_a_memory_shards_queue_has_deadlines_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another holder of the log's lock keeps the event loop's appends waiting."""
    monkeypatch.setattr(deadlines, "SWEEP_S", 0.005)
    lab = Lab(tmp_path / "memory", "EngineMemory")
    shard = lab.shard()
    shard.append_values(b"first")
    keeper = lab.engine._keeper  # type: ignore[attr-defined]
    log = lab.engine.log(shard.name)  # type: ignore[attr-defined]
    with log.lock:
        patient = await lab.engine.submit(shard.name, batch(b"patient"))
        refused = await lab.engine.submit(shard.name, batch(b"refused"), Acks.ALL, in_a_minute())
        let_an_hour_pass(monkeypatch)
        assert not (await refusal_of(refused)).is_unknown
    assert (await patient).base_offset == 1
    assert shard.values() == [b"first", b"patient"]
    assert keeper._reserved == 0
    lab.close()
