"""One SQLite file of several processes: some are killed, some stand still, some sleep too long."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from firnmq.errors import TimedOut
from firnmq.meta import MetaCache, SqliteMetaStore
from tests.integration.faults.processes import Nursery

_JOB = "tests.integration.meta.processes"
_KILLS = 15
_SOON_S = 60.0


@pytest.fixture
def nurseries(tmp_path: Path) -> Iterator[list[Nursery]]:
    made = [Nursery(tmp_path / f"log-{number}") for number in range(3)]
    yield made
    for each in made:
        each.close()


def test_a_killed_writer_harms_none_of_the_others(tmp_path: Path, nurseries: list[Nursery]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = tmp_path / "meta.db"
    with ExitStack() as opened:
        # 1. All of them open a new file at once.
        steady = opened.enter_context(nurseries[0].run(f"{_JOB}:churn", str(path), "steady"))
        store = SqliteMetaStore(path, is_shared=True)
        opened.callback(store.close)
        cache = MetaCache(store)
        opened.callback(cache.close)
        seen: list[int] = []
        cache.listen("", lambda events: seen.extend(each.revision for each in events))
        steady_lines, last = steady.lines(), 0
        for number in range(_KILLS):
            # 2. A writer is killed anywhere in its work; what it had said is there.
            with nurseries[1].run(f"{_JOB}:churn", str(path), f"killed{number}") as child:
                lines = child.lines()
                revisions = [int(next(lines)) for _ in range(rng.randrange(1, 8))]
                child.kill()
                revisions += [int(line) for line in lines]
                assert child.wait() == -9
            found = store.range(f"killed{number}/").entries
            assert len({each.value for each in found}) == 1, f"seed {seed}: not one value"
            assert [each.key[-1] for each in found] == ["a", "b"]
            assert found[0].mod_revision >= revisions[-1]
            # 3. The other one goes on.
            last = max(int(next(steady_lines)) for _ in range(2))
        cache.wait_for_revision(last, _SOON_S)
        # 4. The cache has seen both keys of each revision, in order.
        steady.kill()
        reached = store.range("").revision
        cache.wait_for_revision(reached, _SOON_S)
        assert seen == sorted(seen)
        assert sorted(set(seen)) == list(range(min(seen), reached + 1))
        assert tuple(cache.below("")) == store.range("").entries
    # 5. SQLite finds nothing wrong with the file.
    again = SqliteMetaStore(path)
    assert again._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    again.close()


def test_the_session_of_a_killed_process_lapses_and_the_others_learn_of_it(
    tmp_path: Path, nurseries: list[Nursery]
) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetaStore(path, is_shared=True)
    with nurseries[0].run(f"{_JOB}:live", str(path), 1.0) as child:
        assert next(child.lines()) == b"alive"
        entry = store.get("nodes/1")
        assert entry is not None
        watch = store.watch("nodes/", entry.mod_revision + 1)
        child.kill()
        # Nothing else is written: the watcher itself finds that the session has lapsed.
        changes = watch.take(_SOON_S)
        assert changes is not None
        assert [(each.key, each.entry) for each in changes.events] == [("nodes/1", None)]
    store.close()


def test_a_process_that_stands_still_in_a_transaction_stops_writers_for_a_bounded_time(
    tmp_path: Path, nurseries: list[Nursery]
) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetaStore(path, is_shared=True, busy_s=0.3)
    store.txn(puts={"a": b"1"})
    with nurseries[0].run(f"{_JOB}:hold_the_lock", str(path)) as child:
        assert next(child.lines()) == b"held"
        with pytest.raises(TimedOut, match=f"process {child.pid} has held .*nothing was changed"):
            store.txn(puts={"a": b"2"})
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(TimedOut, match=f"process {child.pid}, which is stopped"):
            store.txn(puts={"a": b"2"})
        # Readers do not wait for it.
        found = store.get("a")
        assert found is not None
        assert found.value == b"1"
        assert store.watch("", 1).take(0) is not None
        child.kill()
        child.wait()
    # Killed, it has changed nothing and holds up nothing.
    assert store.txn(puts={"a": b"3"}) == 2
    assert [each.key for each in store.range("").entries] == ["a"]
    store.close()
