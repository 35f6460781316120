"""The example's pipeline on a Spark cluster of real processes: a master and two workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scale.cluster import StandaloneCluster

TIMEOUT_S = 900
RUN = """
import sys
from pathlib import Path
from rich.console import Console
from examples.clickstream.demo import Scale, run
from examples.clickstream.node import serving
from examples.clickstream.quiet import quiet_session
from firnmq.lake.jobs.session import SMALL
from scale.cluster import SETTINGS
from tests.integration.lake.test_clickstream import check

folder = Path(sys.argv[2])
spark = quiet_session(sys.argv[1], {**SMALL, **SETTINGS}, folder / "spark.log")
try:
    with serving(folder / "data") as bootstrap:
        scale = Scale(events=300, rate=20, live_s=1.0)
        outcome = run(spark, bootstrap, folder, folder / "year.png", scale, Console())
    check(outcome, folder / "year.png")
finally:
    spark.stop()
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_the_pipeline_on_a_standalone_cluster(tmp_path: Path) -> None:
    """1. A master and two workers start. 2. A driver of its own runs the pipeline on them, and what
    was sent is where it belongs, once. 3. Both workers had a part in it. 4. Nothing is left."""
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        pids = cluster.pids()
        assert set(pids) == {"master", "worker-0", "worker-1"}
        done = subprocess.run(
            [sys.executable, "-c", RUN, cluster.master, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert all(cluster.executors_of(f"worker-{number}") for number in range(2))
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
