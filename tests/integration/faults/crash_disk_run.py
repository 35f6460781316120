"""Seeded runs on a disk that forgets what was not synced."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import patch

from firnmq.config import StoreConfig
from firnmq.disk import preallocation
from firnmq.server import LocalStore, Store
from firnmq.testing import CrashFiles, CrashKeyValueStore, CrashMetaStore, PowerCut
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.operations import SHARED_FILE_BYTES
from tests.integration.faults.writer import (
    NUMBERS_PER_THREAD,
    PREALLOCATION_BYTES_MIN,
    Reporter,
    Worker,
)

_ROWS = {"storage.type": "EngineRocksDB"}
_SHARED = {"segment.layout": "shared-file"}
_TOPICS: dict[str, dict[str, object]] = {
    "safe": {"segment.bytes": 4_096},
    "safe-rows": {"segment.bytes": 4_096, **_ROWS},
    "lazy": {"segment.bytes": 8_192, "durability": "os"},
    "lazy-rows": {"segment.bytes": 8_192, "durability": "os", **_ROWS},
    "shared": {"segment.bytes": 4_096, **_SHARED},
    "shared-lazy": {"segment.bytes": 8_192, "durability": "os", **_SHARED},
    "shared-old": {"segment.bytes": 4_096, "retention.bytes": 8_192, **_SHARED},
    "late": {
        "segment.bytes": 8_192,
        "durability": "interval",
        "durability.interval.ms": 3_600_000,
        "retention.bytes": 16_384,
    },
}
_UNSYNCED = frozenset({"lazy", "lazy-rows", "shared-lazy", "late"})
_CUTS_PER_RUN = 3
_STEPS_MAX = 400


class _LedgerReporter(Reporter):
    """Tells a ledger in the same process; after the cut nobody hears an acknowledgement."""

    def __init__(self, ledger: Ledger, cut: PowerCut) -> None:
        super().__init__(-1)
        self._ledger = ledger
        self._cut = cut

    def say(self, *words: object) -> None:
        if self._cut.has_come:
            return
        match words:
            case "intend", int(number), str(kind), str(topic), int(seq), *arguments:
                self._ledger.intend(number, kind, (topic, seq), *arguments)
            case "done", int(number), *result:
                self._ledger.done(number, *result)


def crash_disk_run(directory: Path, seed: int) -> None:
    """Works, cuts the power, compares what is left, and goes on from there, a few times."""
    with patch.object(preallocation, "PREALLOCATION_BYTES_MIN", PREALLOCATION_BYTES_MIN):
        _run(directory, seed)


def _run(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger()
    path = directory / "0"
    with Store(LocalStore(path, background=False)) as store:
        for name, options in _TOPICS.items():
            store.create_topic(name, options=options)
    for number in range(_CUTS_PER_RUN):
        remains = directory / f"{number + 1}"
        cut = PowerCut(path, remains, after=rng.randrange(150), rng=rng)
        _work(path, cut, ledger, rng, (number + 1) * NUMBERS_PER_THREAD)
        try:
            with Store(LocalStore(remains, background=False)) as store:
                ledger.check(store, is_lossy=_UNSYNCED.__contains__, seed=seed)
        except Exception as error:
            error.add_note(f"seed {seed}, cut {number}")
            raise
        shutil.rmtree(path)
        path = remains
    shutil.rmtree(path)


def _work(path: Path, cut: PowerCut, ledger: Ledger, rng: random.Random, first_number: int) -> None:
    """Works until the cut; what comes after it, closing included, is lost with the directory."""
    local = LocalStore(
        path,
        background=False,
        config=StoreConfig(shared_file_bytes=SHARED_FILE_BYTES),
        files=CrashFiles(cut),
        open_kv=partial(CrashKeyValueStore, cut=cut),
        open_meta=partial(CrashMetaStore, cut=cut),
    )
    with Store(local) as store:
        worker = Worker(
            store,
            _LedgerReporter(ledger, cut),
            rng,
            shards=[(name, 0) for name in _TOPICS],
            first_number=first_number,
            group="group",
        )
        for _ in range(_STEPS_MAX):
            worker.step()
            if cut.has_come:
                return
        cut.happen()
