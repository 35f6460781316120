"""Single operations on a small prepared store, to be interrupted at each of their system calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from firnmq.config import SegmentLayout, StoreConfig
from firnmq.disk import run_blocking
from firnmq.engines import Engine
from firnmq.server import LocalStore, Store
from tests.integration.faults.ledger import record_of
from tests.integration.faults.shim import Calls, Faults
from tests.integration.faults.writer import Reporter

SHARED_FILE = "SharedFile"
_ROUNDS = 6
"""A topic of the segment engine that keeps its segments in shared files."""
ENGINES = ("EngineSegment", "EngineRocksDB", SHARED_FILE)
_SPILLED = "EngineMemory"
_BATCHES = 6
SHARED_FILE_BYTES = 8 * 1024
_PER_BATCH = 4


def options_of(engine: str) -> dict[str, object]:
    """Of a topic that is kept by an engine, or by the segment engine in shared files."""
    if engine == SHARED_FILE:
        return {"storage.type": "EngineSegment", "segment.layout": "shared-file"}
    return {"storage.type": engine}


class Scene:
    """A store with a topic per engine, each with sealed segments and an active one."""

    def __init__(self, path: Path, reporter: Reporter, first_number: int) -> None:
        config = StoreConfig(shared_file_bytes=SHARED_FILE_BYTES)
        self.local = LocalStore(path, background=False, config=config)
        self.store = Store(self.local)
        self.reporter = reporter
        self._next_number = first_number

    def engine(self, topic: str) -> Engine:
        return self.local.engines[self.store.topic(topic).topic.config.storage_type]

    def append(self, name: str, count: int = _PER_BATCH) -> None:
        first = self._next_number
        self._next_number += count
        number = self.reporter.intend("append", name, 0, first, count)
        records = [record_of(first + at) for at in range(count)]
        (written,) = self.store.topic(name).append(records, shard=0)
        self.reporter.say("done", number, written.base_offset)

    def perform(self, kind: str, name: str, *arguments: object, does: Callable[[], object]) -> None:
        self.reporter.perform(kind, name, 0, *arguments, does=does)

    def roll(self, name: str) -> None:
        self.perform("roll", name, does=lambda: self.store.topic(name).roll())

    def create(self, name: str, **options: object) -> None:
        self.store.create_topic(name, shards=2, options={"segment.bytes": 65_536, **options})


def prepare(descriptor: int, path: str) -> None:
    """Makes the store that every interrupted operation starts from."""
    scene = Scene(Path(path), Reporter(descriptor), 0)
    for engine in (*ENGINES, _SPILLED):
        more = {"memory.overflow": "spill"} if engine == _SPILLED else {}
        scene.create(engine, **options_of(engine), **more)
        for at in range(2 * _BATCHES):
            scene.append(engine)
            if at in (3, 7):
                scene.roll(engine)
    scene.local.housekeep()
    scene.store.close()


def operate(
    descriptor: int, path: str, operation: str, engine: str, after: int, is_partial: bool
) -> None:
    """Opens the store and performs one operation that ends at its system call number `after`."""
    scene = Scene(Path(path), Reporter(descriptor), 1_000_000)
    scene.store.topic(engine).read(0)  # Opening the shard is another operation.
    Faults.of_this_process().end(Calls.ALL, path, after=after, is_partial=is_partial)
    OPERATIONS[operation](scene, engine)
    Faults.of_this_process().lift()
    scene.reporter.say("complete")
    scene.store.close()


def _delete_before(scene: Scene, engine: str) -> None:
    """Drops two sealed segments and a part of what is left."""
    offset = 9 * _PER_BATCH
    topic = scene.store.topic(engine)
    scene.perform("delete_before", engine, offset, does=lambda: topic.delete_before(offset))


def _truncate(scene: Scene, engine: str) -> None:
    shard = scene.store.topic(engine).topic.shard_name(0)
    offset = 10 * _PER_BATCH
    scene.perform(
        "truncate",
        engine,
        offset,
        does=lambda: scene.engine(engine).truncate(shard, offset),
    )


def _delete_offset(scene: Scene, engine: str) -> None:
    topic = scene.store.topic(engine)
    scene.perform("delete_offset", engine, 5, does=lambda: topic.delete_by_offset(5))


def _delete_key(scene: Scene, engine: str) -> None:
    topic = scene.store.topic(engine)
    scene.perform("delete_key", engine, "key-3", does=lambda: topic.delete_by_key("key-3", shard=0))


def _commit(scene: Scene, engine: str) -> None:
    topic = scene.store.topic(engine)
    scene.perform("commit", engine, "group", 7, does=lambda: topic.commit("group", {0: 7}))


def _roll_and_append(scene: Scene, engine: str) -> None:
    """Makes the next segment's file as well."""
    scene.roll(engine)
    scene.append(engine)


def _append_and_roll(scene: Scene, engine: str) -> None:
    """One request that fills the active segment and the next."""
    scene.append(engine, 600)


def _spill(scene: Scene, engine: str) -> None:
    scene.append(_SPILLED)
    scene.roll(_SPILLED)
    scene.local.housekeep()


def _create_topic(scene: Scene, engine: str) -> None:
    scene.create("new", **options_of(engine))
    scene.append("new")


def _grow_topic(scene: Scene, engine: str) -> None:
    run_blocking(scene.local.manager.grow_topic(engine, 5))


def _change_options(scene: Scene, engine: str) -> None:
    changed = replace(scene.store.topic(engine).topic.config, max_record_bytes=100_000)
    run_blocking(scene.local.manager.reconfigure_topic(engine, changed))
    shards = scene.store.topic(engine).topic.shard_names()
    specs = {spec.name: spec for spec in scene.engine(engine).list_shard()}
    assert {specs[name].config for name in shards} == {changed}


def _reclaim(scene: Scene, engine: str) -> None:
    """Copies what is left of a file that is mostly dead, and removes the file in the next round. A
    round that the disk refuses is repeated."""
    _delete_before(scene, engine)
    files = set(scene.local.shared.table.numbers_on_disk())
    for _ in range(_ROUNDS):
        scene.local.kv.sync_late()  # Both as the housekeeper of a node does.
        scene.local.shared.housekeep()
        if files - set(scene.local.shared.table.numbers_on_disk()):
            return
    assert engine != SHARED_FILE


def _change_layout(scene: Scene, engine: str) -> None:
    """Goes on in files of the other layout."""
    before = scene.store.topic(engine).topic.config
    other = next(each for each in SegmentLayout if each is not before.segment_layout)
    run_blocking(
        scene.local.manager.reconfigure_topic(engine, replace(before, segment_layout=other))
    )
    _roll_and_append(scene, engine)


def _delete_topic(scene: Scene, engine: str) -> None:
    scene.reporter.say("deleting", engine)
    scene.store.delete_topic(engine)
    scene.reporter.say("deleted", engine)


OPERATIONS: dict[str, Callable[[Scene, str], None]] = {
    "append": lambda scene, engine: scene.append(engine),
    "append and roll": _append_and_roll,
    "roll and append": _roll_and_append,
    "drop segments": _delete_before,
    "truncate": _truncate,
    "delete by offset": _delete_offset,
    "delete by key": _delete_key,
    "commit": _commit,
    "spill": _spill,
    "create topic": _create_topic,
    "grow topic": _grow_topic,
    "change options": _change_options,
    "delete topic": _delete_topic,
    "reclaim": _reclaim,
    "change layout": _change_layout,
}
