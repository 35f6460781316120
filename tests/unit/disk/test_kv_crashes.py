"""The key-value store after power failures: a prefix of its changes, never a mixture."""

import random
from pathlib import Path

import pytest

from firnmq.disk import Family, KeyValueStore
from firnmq.disk.kv import store as store_module
from firnmq.testing import CrashKeyValueStore, PowerCut

STATE, INDEX = Family.STATE, Family.INDEX
SEEDS = 6
STEPS = 400
LIMIT_BYTES = 6_000
"""Tables are written all the time."""

Content = dict[tuple[Family, bytes], bytes]


def content(kv: KeyValueStore) -> Content:
    return {
        (family, key): value
        for family in (STATE, INDEX)
        for key, value in kv.items(family, b"", b"\xff")
    }


def change(kv: KeyValueStore, model: Content, step: int, rng: random.Random) -> Content:
    """One batch over one family or both; the content after it."""
    after = dict(model)
    families = rng.choice([(STATE,), (INDEX,), (STATE, INDEX)])
    with kv.batch() as batch:
        for family in families:
            lower, upper = sorted((b"%02d" % rng.randrange(30), b"%02d" % rng.randrange(30)))
            kind = rng.random()
            if kind < 0.15:
                batch.delete_range(family, lower, upper)
                for key in [each for each in after if each[0] is family]:
                    if lower <= key[1] < upper:
                        del after[key]
            elif kind < 0.3:
                batch.delete(family, lower)
                after.pop((family, lower), None)
            else:
                value = b"%d" % step
                batch.put_many(family, [(lower, value), (upper, value)])
                after[family, lower] = after[family, upper] = value
    return after


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_power_failure_leaves_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(store_module, "unflushed_bytes_max", lambda _: LIMIT_BYTES)
    source = tmp_path / "0"
    (source / "db").mkdir(parents=True)
    history: list[Content] = [{}]
    for crash in range(3):
        remains = tmp_path / f"{crash + 1}"
        cut = PowerCut(source, remains, after=STEPS * 100, rng=rng)
        kv = CrashKeyValueStore(source / "db", cut)
        assert content(kv) == history[-1]
        first = len(history) - 1
        synced = first
        for step in range(rng.randrange(1, STEPS)):
            history.append(change(kv, history[-1], step, rng))
            if rng.random() < 0.1:
                kv.sync()
                synced = len(history) - 1
        with cut.lock:
            cut.happen()
        kv.close()
        with_all = KeyValueStore(source / "db")
        assert content(with_all) == history[-1], "a closed store has everything"
        with_all.close()
        survivor = KeyValueStore(remains / "db")
        found = content(survivor)
        survivor.close()
        assert found in history[synced:], f"neither lost nor mixed: seed {seed}"
        del history[synced + history[synced:].index(found) + 1 :]
        source = remains
