"""A process that stages replicas is killed: it had never reported an end that is not there."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from firnmq.engines.replicas import ReplicaEnd
from firnmq.record import crc32c
from tests.integration.replicas.follower import META, RECORDS, batch_at, opened

ROUNDS = 4


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_was_reported_is_there_after_a_kill(tmp_path: Path, durability: str) -> None:
    """1. A process stages batches of some shards, and is killed at some moment. 2. Each replica has
    at least what was reported, with the bytes of the leader. 3. The next process goes on there."""
    rng = random.Random(durability)
    reported: dict[int, ReplicaEnd] = {}
    for _ in range(ROUNDS):
        command = [sys.executable, "-m", "tests.integration.replicas.follower"]
        process = subprocess.Popen(
            [*command, str(tmp_path), durability], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            for _ in range(rng.randint(50, 400)):
                uid, offset, crc = map(int, process.stdout.readline().split())
                reported[uid] = ReplicaEnd(offset, crc)
        finally:
            process.kill()
            left = process.communicate()[0]
        for line in left.splitlines(keepends=True):
            if line.endswith("\n"):
                uid, offset, crc = map(int, line.split())
                reported[uid] = ReplicaEnd(offset, crc)
        store, specs = opened(tmp_path, durability)
        for spec in specs:
            end = store.replicas.open(spec, META, leads=False).end
            assert end.offset >= reported[spec.uid].offset
            crc = 0
            for offset in range(0, end.offset, RECORDS):
                crc = crc32c(batch_at(spec.uid, offset), crc)
                if offset + RECORDS == reported[spec.uid].offset:
                    assert crc == reported[spec.uid].crc
            assert crc == end.crc
        store.close()
