"""A process that makes, fills, grows and deletes topics without end, and says what it does."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from firnmq.disk import run_blocking
from firnmq.server import LocalStore, Store

_ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")
_NAMES = 6


def run(descriptor: int, path: str, seed: int) -> None:
    rng = random.Random(seed)
    store = Store(LocalStore(Path(path), background=False))
    while True:
        name = f"topic-{rng.randrange(_NAMES)}"
        known = {topic.name: topic for topic in store.topics()}
        if name not in known:
            count = rng.randrange(1, 6)
            _say(descriptor, "intend", name, count)
            engine = rng.choice(_ENGINES)
            store.create_topic(name, shards=count, options={"storage.type": engine})
            _say(descriptor, "done", name, count)
            continue
        kind = rng.random()
        if kind < 0.3:
            _say(descriptor, "intend", name, 0)
            store.delete_topic(name)
            _say(descriptor, "done", name, 0)
        elif kind < 0.5:
            count = known[name].shard_count + rng.randrange(1, 4)
            _say(descriptor, "intend", name, count)
            run_blocking(store.local.manager.grow_topic(name, count))
            _say(descriptor, "done", name, count)
        else:
            shard = rng.randrange(known[name].shard_count)
            handle = store.topic(name)
            handle.append([b"v" * 100] * 3, shard=shard)
            handle.roll(shard)
            if kind < 0.6:
                handle.delete_before(handle.status(shard).end_offset, shard=shard)


def _say(descriptor: int, *words: object) -> None:
    os.write(descriptor, json.dumps(words).encode() + b"\n")
