"""A program that fills a disk through a store, says so, and waits to be killed."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from firnmq.errors import DiskFull, FirnError
from firnmq.server import LocalStore, Store
from tests.integration.faults.loops import fill

_WAIT_S = 600
_REFUSED_ENOUGH = 20
_BALLAST_AFTER = 4000
"""Records; the rest of the disk is then taken by something else."""


def options_of(engine: str) -> dict[str, object]:
    """The options of a topic of an engine, or of the segment engine's other layout."""
    if engine == "shared-file":
        return {"storage.type": "EngineSegment", "segment.layout": engine}
    return {"storage.type": engine}


def main(path: str, engine: str, ballast: str) -> None:
    store = Store(LocalStore(Path(path)))
    options = {**options_of(engine), "segment.bytes": 262_144, "index.key": True}
    topics = [store.create_topic(name, options=options) for name in ("first", "second")]
    acknowledged = [0, 0]
    refused_count = 0
    rng = random.Random(1)  # What RocksDB cannot compress.
    while refused_count < _REFUSED_ENOUGH:
        for at, topic in enumerate(topics):
            try:
                topic.append([rng.randbytes(2048) for _ in range(20)])
                acknowledged[at] += 20
            except DiskFull:
                refused_count += 1
            except FirnError as error:
                print("other", repr(error), flush=True)
                refused_count += 1
        if sum(acknowledged) >= _BALLAST_AFTER and not Path(ballast).exists():
            fill(Path(ballast))
    print("full", *acknowledged, flush=True)
    time.sleep(_WAIT_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
