"""The meta store with real processes: two that write at once, and one that is killed."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.meta import Changes, MetaCache, SqliteMetaStore
from tests.integration.faults.processes import Child, Nursery

_JOB = "tests.integration.meta.processes"
_ROUNDS = 150
_KILLS = 25


@pytest.fixture
def nurseries(tmp_path: Path) -> Iterator[list[Nursery]]:
    """Each forks one process at a time."""
    made = [Nursery(tmp_path / f"log-{number}") for number in range(2)]
    yield made
    for each in made:
        each.close()


def test_a_watch_misses_nothing_of_what_two_processes_write(
    tmp_path: Path, nurseries: list[Nursery]
) -> None:
    path = tmp_path / "meta.db"
    store = SqliteMetaStore(path, is_shared=True)
    cache = MetaCache(store)
    watch = store.watch("", 1)
    first, second = (
        nursery.run(f"{_JOB}:count_up", str(path), name, _ROUNDS)
        for nursery, name in zip(nurseries, "ab", strict=True)
    )
    seen: list[Changes] = []
    with first as one, second as two:
        # 1. Both write at the same time, to one number, while we watch.
        while sum(len(changes.events) for changes in seen) < 4 * _ROUNDS:
            taken = watch.take(60)
            assert taken is not None, "\n".join(each.log_text() for each in nurseries)
            seen.append(taken)
        said = [written(one), written(two)]
        assert (one.wait(), two.wait()) == (0, 0), [each.log_text() for each in nurseries]
    # 2. No process's addition was lost, and revisions tell the order.
    assert sorted(said[0] + said[1]) == [(at, at) for at in range(1, 2 * _ROUNDS + 1)]
    # 3. The watch has seen each revision once, in order, with both of its keys.
    events = [event for changes in seen for event in changes.events]
    assert [event.revision for event in events] == [at // 2 for at in range(2, 4 * _ROUNDS + 2)]
    numbers = [int(each.entry.value) for each in events if each.entry and each.key == "n"]
    assert numbers == list(range(1, 2 * _ROUNDS + 1))
    # 4. So has the cache.
    cache.wait_for_revision(2 * _ROUNDS, 60)
    assert tuple(cache.below("")) == store.range("").entries
    cache.close()
    store.close()


def written(child: Child) -> list[tuple[int, int]]:
    lines = [line.split() for line in child.lines()]
    assert lines.pop(0) == [b"open"]
    return [(int(revision), int(total)) for revision, total in lines]


def test_a_process_killed_in_a_transaction_leaves_all_of_it_or_nothing(
    tmp_path: Path, nurseries: list[Nursery]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = tmp_path / "meta.db"
    for number in range(_KILLS):
        intended: dict[int, int] = {}
        done: dict[int, int] = {}
        with nurseries[0].run(f"{_JOB}:move_around", str(path), seed + number) as child:
            wanted = rng.randrange(1, 60)
            for line in child.lines():
                note(line, intended, done)
                if len(done) >= wanted:
                    break
            time.sleep(rng.random() * 0.003)  # So that the kill hits any part of a transaction.
            child.kill()
            for line in child.lines():  # What it had said before it died.
                note(line, intended, done)
            assert child.wait() == -9
        store = SqliteMetaStore(path)
        entry = store.get("round")
        assert entry is not None
        last = int(entry.value)
        assert last in (max(done), max(intended)), f"seed {seed}, kill {number}"
        assert last not in done or entry.mod_revision == done[last]
        # The keys of the last transaction are there, all with its value, and those it removed not.
        puts = store.range(f"{last % 3}/").entries
        fresh = [each for each in puts if each.mod_revision == entry.mod_revision]
        assert len(fresh) == intended[last]
        assert {each.value for each in fresh} == {b"%d" % last * 200}
        assert store.range(f"{(last + 1) % 3}/").entries == ()
        # And the history says the same.
        taken = store.watch("", entry.mod_revision).take(0)
        assert taken is not None
        assert {each.key for each in taken.events if each.entry} == {
            "round",
            *(each.key for each in fresh),
        }
        store.close()


def note(line: bytes, intended: dict[int, int], done: dict[int, int]) -> None:
    word, number, value = line.split()
    (intended if word == b"intend" else done)[int(number)] = int(value)
