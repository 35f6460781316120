"""A process killed while it makes and deletes topics: each is there as a whole, or not at all."""

import json
import random
import time
from pathlib import Path

from firnmq.server import LocalStore, Store
from tests.integration.faults.metadata import check_metadata
from tests.integration.faults.processes import Nursery

_KILLS = 20


def test_topics_are_whole_or_gone_whenever_the_process_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    nursery = Nursery(tmp_path / "log")
    path = tmp_path / "store"
    expected: dict[str, int] = {}
    try:
        for number in range(_KILLS):
            pending: dict[str, int] = {}
            with nursery.run("tests.integration.meta.churn:run", str(path), seed + number) as child:
                wanted = rng.randrange(1, 25)
                for line in child.lines():
                    wanted -= note(line, expected, pending)
                    if wanted <= 0:
                        break
                time.sleep(rng.random() * 0.02)  # So that the kill hits any part of the work.
                child.kill()
                for line in child.lines():  # What it had said before it died.
                    note(line, expected, pending)
                assert child.wait() == -9, nursery.log_text()
            expected = check(path, expected, pending, f"seed {seed}, kill {number}")
    finally:
        nursery.close()


def note(line: bytes, expected: dict[str, int], pending: dict[str, int]) -> int:
    word, name, count = json.loads(line)
    if word == "intend":
        pending[name] = count
        return 0
    del pending[name]
    expected[name] = count
    return 1


def check(
    path: Path, expected: dict[str, int], pending: dict[str, int], when: str
) -> dict[str, int]:
    """Compares topics and shards; what is there now is expected from here on."""
    with Store(LocalStore(path, background=False)) as store:
        there = {topic.name: topic.shard_count for topic in store.topics()}
        for name in expected | pending:
            allowed = {expected.get(name, 0)} | ({pending[name]} if name in pending else set())
            assert there.get(name, 0) in allowed, when
        assert there.keys() <= (expected | pending).keys()
        check_metadata(store)
        for topic in store.topics():
            for seq in range(topic.shard_count):
                store.topic(topic.name).status(seq)
            for shard in topic.shard_names():
                assert store.local.verifier.verify(shard).findings == (), when
        assert list(store.local.verifier.outside_shards()) == [], when
    return there
