"""The commands that move shards, against real nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.integration.cluster.nodes import WAIT_S, Nodes


def _firn(nodes: Nodes, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "firnmq", *words, "--node", nodes[1].admin_url],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_shards_are_moved_drained_and_spread(tmp_path: Path) -> None:
    with closing(Nodes(tmp_path, count=2)) as nodes:
        nodes.start()
        _firn(nodes, "topic", "create", "t", "--shards", "4", "-o", "replication.factor=1")
        _firn(nodes, "topic", "create", "pinned", "--shards", "2", "--storage", "rocksdb")
        leaders = nodes.wait_leaders(1, "t")
        shard = next(index for index, leader in leaders.items() if leader == 1)
        for number in range(8):
            _firn(nodes, "produce", "t", f"value {number}", "--shard", str(number % 4))
        # 1. One shard, and the same again.
        said = _firn(nodes, "shard", "move", "t", str(shard), "--to", "2")
        assert said == f"node 2 leads shard {shard} of t; node 1 did before\n"
        assert "already" in _firn(nodes, "shard", "move", "t", str(shard), "--to", "2")
        assert "there is no node 9" in _firn(
            nodes, "shard", "move", "t", str(shard), "--to", "9", code=2
        )
        listed = _firn(nodes, "segments", "t", "--shard", str(shard))
        assert "node 1" in listed
        assert "node 2" in listed
        # 2. Drained: what can move does, and what stays is said.
        said = _firn(nodes, "node", "drain", "2")
        assert "3 shards moved away" in said
        assert "which no other node has" in said
        assert "pinned" in said
        assert set(nodes.leaders(1, "t").values()) == {1}
        assert "cordoned" in _firn(nodes, "node", "list")
        # 3. It gets its share again.
        _firn(nodes, "node", "uncordon", "2")
        assert "would move" in _firn(nodes, "cluster", "rebalance", "--dry-run")
        found = json.loads(_firn(nodes, "cluster", "rebalance", "--json"))
        assert (found["moved_count"], found["failures"]) == (2, [])
        read = _firn(nodes, "read", "t")
        assert all(f"value {number}" in read for number in range(8))
