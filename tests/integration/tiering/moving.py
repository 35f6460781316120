"""Work on tiered history, in processes that are killed in the middle of it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from firnmq.config import TieringConfig
from firnmq.server.recovery import recover_directory
from firnmq.tiering.stores import ObjectStore
from tests.integration.faults.shim import Calls, Faults
from tests.integration.faults.writer import Reporter
from tests.integration.tiering.stage import TOPIC, Stage, Wrapped, record_of

COUNT = 44
"""Records that every scene begins with, in two or three sealed segments."""
ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")
NEWER = 8


def prepare(descriptor: int, root: str, settings: dict[str, object], engine: str) -> None:
    """A topic whose older half is in the store alone, and whose newer half waits here."""
    with Stage(Path(root) / "data", _config(settings)) as stage:
        stage.create(storage_type=engine, local_retention_ms=0)
        stage.fill(0, COUNT)
        stage.work()
        stage.fill(COUNT, NEWER)
    Reporter(descriptor).say("prepared")


def upload(stage: Stage) -> None:
    """Uploads what waits and drops it here."""
    stage.work()


def expire(stage: Stage) -> None:
    """Moves the start beyond the first two segments, and removes their objects."""
    metas = stage.metas()
    assert len(metas) > 3
    stage.store.topic(TOPIC).delete_before(metas[2].base_offset)
    stage.wait_for_cache()
    stage.work()


def delete(stage: Stage) -> None:
    """Deletes the topic, and removes its objects."""
    stage.store.delete_topic(TOPIC)
    stage.wait_for_cache()
    stage.work()


WORK: dict[str, Callable[[Stage], None]] = {"upload": upload, "expire": expire, "delete": delete}


def work(
    descriptor: int, root: str, settings: dict[str, object], name: str, after: int, partial: bool
) -> None:
    """Does one kind of work, and ends at its system call number `after`."""
    with Stage(Path(root) / "data", _config(settings)) as stage:
        stage.store.topic(TOPIC).read(COUNT)  # Opening the shard is another operation.
        Faults.of_this_process().end(Calls.ALL, root, after=after, is_partial=partial)
        WORK[name](stage)
        Faults.of_this_process().lift()
        Reporter(descriptor).say("complete")


def work_by_calls(
    descriptor: int, root: str, settings: dict[str, object], name: str, after: int, when: str
) -> None:
    """Does one kind of work, and kills itself at call number `after` of the object store."""
    left = after

    def watch(moment: str, call: str, key: str) -> None:
        nonlocal left
        if moment == when:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    def wrap(inner: ObjectStore) -> ObjectStore:
        return Wrapped(inner, watch)

    with Stage(Path(root) / "data", _config(settings), wrap=wrap) as stage:
        WORK[name](stage)
        Reporter(descriptor).say("complete")


def settings_of(config: TieringConfig) -> dict[str, object]:
    """For a process that gets its arguments as JSON."""
    converted: dict[str, object] = msgspec.to_builtins(config)
    return converted


def _config(settings: dict[str, object]) -> TieringConfig:
    return msgspec.convert(settings, TieringConfig)


def toil(descriptor: int, root: str, settings: dict[str, object], seed: int) -> None:
    """Appends, uploads, drops and expires until it is killed; says before and after what it does.

    `intend n`: records up to n are about to be there; `done n`: they are. `start n`: the log is
    about to begin at n.
    """
    rng = random.Random(seed)
    say = Reporter(descriptor).say
    with Stage(Path(root) / "data", _config(settings)) as stage:
        topic = stage.create(local_retention_ms=0)
        end = 0
        while True:
            count = rng.randrange(1, 12)
            say("intend", end + count)
            topic.append([record_of(end + at) for at in range(count)], shard=0)
            end += count
            say("done", end)
            if rng.random() < 0.3:
                topic.roll()
            if rng.random() < 0.3:
                stage.work(rounds=2)
            if rng.random() < 0.05:
                boundary = rng.choice(stage.metas()).base_offset
                say("start", boundary)
                topic.delete_before(boundary)


def recover(
    descriptor: int, root: str, settings: dict[str, object], after: int, partial: bool
) -> None:
    """Recovers a directory from the objects, and ends at system call number `after` of that."""
    Faults.of_this_process().end(Calls.ALL, root, after=after, is_partial=partial)
    recover_directory(Path(root) / "new", _config(settings))
    Faults.of_this_process().lift()
    Reporter(descriptor).say("complete")
