"""`firn cluster up` runs real nodes, starts one that ended again, and stops with Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firnmq.nodefile import node_serving
from tests.integration.cluster.nodes import WAIT_S, wait_until
from tests.integration.meta.etcds import etcd_program


@pytest.mark.parametrize("meta", ["sqlite", "etcd"])
def test_a_cluster_on_one_machine(tmp_path: Path, meta: str) -> None:
    command = [sys.executable, "-m", "firnmq", "cluster", "up", "--nodes", "2", "--port", "0"]
    command += ["--dir", str(tmp_path)]
    environment = dict(os.environ)
    if meta == "etcd":
        environment["FIRN_ETCD_PROGRAM"] = str(etcd_program())
        command.append("--etcd")
    up = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert up.stdout is not None
        lines = []
        for line in up.stdout:
            lines.append(line)
            if line.startswith("stop "):
                break
        assert [line.split()[:2] for line in lines[:2]] == [["node", "1"], ["node", "2"]]

        def states() -> dict[int, tuple[str, int]]:
            asked = [sys.executable, "-m", "firnmq", "cluster", "status", "--json"]
            done = subprocess.run(
                [*asked, "--data", str(tmp_path / "node1")],
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=True,
            )
            found = json.loads(done.stdout)
            assert found["meta"] == meta
            return {each["node"]: (each["state"], each["incarnation"]) for each in found["nodes"]}

        wait_until(lambda: states() == {1: ("here", 1), 2: ("registered", 1)}, "both are there")
        address = node_serving(tmp_path / "node2")
        assert address is not None
        os.kill(address.pid, signal.SIGKILL)
        wait_until(lambda: states().get(2) == ("registered", 2), "node 2 was started again")
    finally:
        up.send_signal(signal.SIGINT)
        output, _ = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0
    assert "stopped" in output
