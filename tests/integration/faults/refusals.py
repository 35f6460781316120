"""A process whose disk refuses to work for a while, and which must not lose or invent anything."""

from __future__ import annotations

import errno
import random
import threading
import time
from pathlib import Path

from firnmq.config import StoreConfig
from firnmq.errors import DiskFull, FirnError, StorageFailed
from firnmq.server import LocalStore, Store, TopicHandle
from tests.integration.faults.ledger import Ledger, record_of, scan
from tests.integration.faults.operations import SHARED_FILE_BYTES
from tests.integration.faults.shim import Calls, Faults
from tests.integration.faults.writer import NUMBERS_PER_THREAD

TOPICS: dict[str, dict[str, object]] = {
    "hurt": {"segment.bytes": 8_192},
    "shared": {"segment.bytes": 8_192, "segment.layout": "shared-file"},
    "shared-lazy": {
        "segment.bytes": 8_192,
        "segment.layout": "shared-file",
        "durability": "interval",
    },
    "fine": {"segment.bytes": 8_192},
    "rows": {"segment.bytes": 8_192, "storage.type": "EngineRocksDB"},
}
_APPENDERS = ("hurt", "hurt", "hurt", "shared", "shared-lazy", "fine", "rows")
_WAIT_S = 60.0
_PAUSE_S = 0.01
"""Clients that are refused do not try again at once; these would keep others from the disk."""


class Appenders:
    """Threads that append all the time and note what became of every request."""

    def __init__(self, store: Store, ledger: Ledger, seed: int) -> None:
        self._store = store
        self._ledger = ledger
        self._changed = threading.Condition()
        """Guards the ledger and the counts."""
        self._seed = seed
        self._stopping = threading.Event()
        self.done = dict.fromkeys(TOPICS, 0)
        self.refused = dict.fromkeys(TOPICS, 0)
        self.kinds: set[type[FirnError]] = set()
        self.unexpected: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, args=(number, name))
            for number, name in enumerate(_APPENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, what: str, counts: dict[str, int], wanted: dict[str, int]) -> None:
        """Waits until each count has grown by what is wanted."""
        with self._changed:
            before = dict(counts)

            def is_there() -> bool:
                enough = all(counts[name] >= before[name] + more for name, more in wanted.items())
                return bool(self.unexpected) or enough

            assert self._changed.wait_for(is_there, _WAIT_S), f"waited in vain for {what}: {counts}"
            assert not self.unexpected, self.unexpected

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, thread: int, name: str) -> None:
        rng = random.Random(f"{self._seed}-{thread}")
        first = (thread + 1) * NUMBERS_PER_THREAD
        topic = self._store.topic(name)
        while not self._stopping.is_set():
            count = rng.choice((1, 2, 5, 30))
            with self._changed:
                self._ledger.intend(first, "append", (name, 0), first, count)
            try:
                (written,) = topic.append([record_of(first + at) for at in range(count)])
            except StorageFailed as error:
                self._note_refused(first, name, type(error))
            except BaseException as error:
                with self._changed:
                    self.unexpected.append(error)
                    self._changed.notify_all()
                raise
            else:
                with self._changed:
                    self._ledger.done(first, written.base_offset)
                    self.done[name] += 1
                    self._changed.notify_all()
            first += count

    def _note_refused(self, number: int, name: str, kind: type[FirnError]) -> None:
        with self._changed:
            self._ledger.failed(number)
            self.refused[name] += 1
            self.kinds.add(kind)
            self._changed.notify_all()
        self._stopping.wait(_PAUSE_S)


def _opened(path: str) -> Store:
    config = StoreConfig(shared_file_bytes=SHARED_FILE_BYTES)
    store = Store(LocalStore(Path(path), config=config))
    for name, options in TOPICS.items():
        store.create_topic(name, options=options)
    return store


def _finish(store: Store, path: str, ledger: Ledger) -> None:
    """Compares before and after closing: neither lost nor kept what was refused."""
    ledger.check(store)
    store.close()
    with Store(LocalStore(Path(path), background=False)) as reopened:
        ledger.check(reopened)


def shard_refusal(
    descriptor: int,
    path: str,
    name: str,
    calls: int,
    error: int,
    after: int,
    is_partial: bool,
    seed: int,
) -> None:
    """The files of one shard refuse, or the shared files; shards in other files, in the same
    process, do not notice."""
    store, ledger, faults = _opened(path), Ledger(), Faults.of_this_process()
    appenders = Appenders(store, ledger, seed)
    hurt = store.topic(name)
    is_shared = hurt.topic.config.shares_files
    for round_number in range(2):
        appenders.wait_for("the start", appenders.done, dict.fromkeys(TOPICS, 10))
        place = "/shared/" if is_shared else f"/segments/{hurt.topic.shard_name(0)}"
        faults.fail(Calls(calls), place, error, after=after + round_number, is_partial=is_partial)
        appenders.wait_for("refusals", appenders.refused, {name: 6})
        published = scan(hurt, 0, 0)
        assert published, "what was published can be read"
        appenders.wait_for("the others", appenders.done, {"fine": 20, "rows": 20})
        assert scan(hurt, 0, 0).keys() >= published.keys()
        faults.lift()
        appenders.wait_for("an end", appenders.done, {name: 10})
    appenders.stop()
    harmed = {each for each, count in appenders.refused.items() if count}
    assert harmed <= ({"shared", "shared-lazy"} if is_shared else {name})
    wanted = DiskFull if error == errno.ENOSPC else StorageFailed
    assert appenders.kinds == {wanted}, appenders.kinds
    _finish(store, path, ledger)


def database_refusal(
    descriptor: int, path: str, calls: int, error: int, after: int, is_partial: bool, seed: int
) -> None:
    """RocksDB's files refuse; everyone is told so, and everyone goes on afterwards."""
    store, ledger, faults = _opened(path), Ledger(), Faults.of_this_process()
    appenders = Appenders(store, ledger, seed)
    for round_number in range(2):
        appenders.wait_for("the start", appenders.done, dict.fromkeys(TOPICS, 10))
        faults.fail(Calls(calls), "/db/", error, after=after + round_number, is_partial=is_partial)
        appenders.wait_for("refusals", appenders.refused, dict.fromkeys(TOPICS, 3))
        for operation in (
            lambda: store.topic("fine").commit("group", {0: 1}),
            lambda: store.topic("fine").delete_by_offset(0),
        ):
            try:
                operation()
            except StorageFailed:
                continue
            raise AssertionError("it went through without a disk")
        faults.lift()
        appenders.wait_for("an end", appenders.done, dict.fromkeys(TOPICS, 10))
    appenders.stop()
    if error == errno.ENOSPC:
        assert DiskFull in appenders.kinds
    ledger.intend(-1, "delete_offset", ("fine", 0), 0)  # It was refused, but may have happened.
    _finish(store, path, ledger)


def meta_refusal(
    descriptor: int, path: str, calls: int, error: int, after: int, is_partial: bool, seed: int
) -> None:
    """The metadata's files refuse: nothing is rolled or made, and nothing is lost by it."""
    store, ledger, faults = _opened(path), Ledger(), Faults.of_this_process()
    appenders = Appenders(store, ledger, seed)
    for round_number in range(2):
        appenders.wait_for("the start", appenders.done, dict.fromkeys(TOPICS, 10))
        place = "/meta.db"
        faults.fail(Calls(calls), place, error, after=after + round_number, is_partial=is_partial)
        appenders.wait_for("refusals", appenders.refused, dict.fromkeys(TOPICS, 3))
        try:
            store.create_topic("never")
        except StorageFailed:
            pass
        else:
            raise AssertionError("it went through without a disk")
        for name in TOPICS:
            assert scan(store.topic(name), 0, 0), "what was published can be read"
        store.topic("fine").commit("group", {0: 1})  # That is none of its business.
        faults.lift()
        appenders.wait_for("an end", appenders.done, dict.fromkeys(TOPICS, 10))
        store.create_topic("never")
        store.delete_topic("never")
    appenders.stop()
    if error == errno.ENOSPC:
        assert DiskFull in appenders.kinds
    _finish(store, path, ledger)


def idle_database_refusal(descriptor: int, path: str) -> None:
    """After the database's disk is back, reading alone is enough to get it back too."""
    store, faults = _opened(path), Faults.of_this_process()
    topic = store.topic("rows")
    topic.append([record_of(at) for at in range(20)])
    faults.fail(Calls.WRITE | Calls.SYNC | Calls.MAKE, "/db/", errno.EIO)
    for _ in range(3):
        try:
            topic.append(record_of(99))
        except StorageFailed:
            continue
        raise AssertionError("it went through without a disk")
    faults.lift()
    assert _offsets_once_readable(topic) == list(range(20))
    store.close()


def _offsets_once_readable(topic: TopicHandle) -> list[int]:
    """The store pauses between attempts to open its database; readers just ask again."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            return [record.offset for record in topic.records()]
        except StorageFailed:
            assert time.monotonic() < deadline, "the database did not come back"
