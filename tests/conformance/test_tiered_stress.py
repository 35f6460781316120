"""Readers that never notice how segments go to an object store and vanish here under them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.record import NewRecord, decode
from tests.conformance.copied import CopiedStore, upload
from tests.conformance.lab import Lab, Shard
from tests.conformance.stored import content, stored

BATCHES = 250
PATIENCE_S = 300
"""Only a test that fails waits for so long, even on a machine that is very busy."""
ANCHORS = 5
"""The first records, each with a key and a tag of its own."""


@pytest.fixture
def shard(storage_type: str, tmp_path: Path) -> Iterator[Shard]:
    lab = Lab(tmp_path / "data", storage_type, cold=CopiedStore())
    yield lab.shard({"tiering": "on", "memory.overflow": "spill", "segment.bytes": 1024})
    lab.close()


class Crew:
    """Threads that work until one of them is through, and what they ran into."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.errors: list[BaseException] = []
        self._counts: dict[str, int] = {}
        self._counted = threading.Condition()
        self._threads: list[threading.Thread] = []

    def repeat(self, work: Callable[[], None]) -> None:
        name = work.__name__
        self._counts[name] = 0

        def run() -> None:
            try:
                while not self.is_done.is_set():
                    work()
                    with self._counted:
                        self._counts[name] += 1
                        self._counted.notify_all()
            except BaseException as error:
                with self._counted:
                    self.errors.append(error)
                    self.is_done.set()
                    self._counted.notify_all()

        self._threads.append(threading.Thread(target=run, name=name))

    def wait_for_everybody(self) -> None:
        """Returns when each has been through once more, so that none is left behind."""
        with self._counted:
            before = dict(self._counts)

            def have_come() -> bool:
                return bool(self.errors) or all(
                    self._counts[name] > count for name, count in before.items()
                )

            assert self._counted.wait_for(have_come, PATIENCE_S), (before, self._counts)

    def run(self, last: Callable[[], None]) -> None:
        for thread in self._threads:
            thread.start()
        try:
            last()
        finally:
            self.is_done.set()
            for thread in self._threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), thread.name
        if self.errors:
            raise self.errors[0]


def test_readers_find_everything_while_it_moves(shard: Shard) -> None:
    copies = shard.lab.cold
    assert isinstance(copies, CopiedStore)
    engine, name = shard.engine, shard.name
    for number in range(ANCHORS):
        shard.append(
            NewRecord(
                key=b"anchor-%d" % number,
                value=b"anchor",
                tags=(f"tag-{number}",),
                timestamp_ms=1000 + number,
            )
        )
    reached = ANCHORS
    crew = Crew()

    def write() -> None:
        nonlocal reached
        for number in range(BATCHES):
            shard.append(*(NewRecord(key=b"k%d" % number, value=b"v" * 50) for _ in range(3)))
            reached += 3
            if number % 50 == 49:  # By turns, so that all keep up however slow the machine is.
                move()
                crew.wait_for_everybody()

    def move() -> None:
        engine.housekeep()
        for meta in shard.status.segments[:-1]:
            is_kept = meta.medium is Medium.FILE or shard.lab.storage_type != "EngineMemory"
            if meta.state is SegmentState.SEALED and is_kept:
                upload(copies, engine, name, meta.seq)
                engine.drop_local(name, meta.seq)

    def scan() -> None:
        end = reached
        found = [record.offset for record in shard.read(0).records()]
        assert found == list(range(len(found)))
        assert len(found) >= end

    def fetch() -> None:
        end, at = reached, 0
        while at < end:
            page = stored(shard, at, max_bytes=900)
            offsets = [record.offset for record in decode([content(page)]).records()]
            assert next(each for each in offsets if each >= at) == at
            assert page.next_offset == offsets[-1] + 1
            at = page.next_offset

    def look_up() -> None:
        for number in range(ANCHORS):
            assert shard.by_key(b"anchor-%d" % number).offset == number
            assert shard.tagged(f"tag-{number}") == [number]
            assert shard.at_time(1000 + number) == number

    for work in (scan, fetch, look_up):
        crew.repeat(work)
    crew.run(write)
    assert sum(not meta.is_local for meta in shard.status.segments) > 20
    assert shard.lab.store.verifier.verify(name).findings == ()
