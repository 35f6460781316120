"""A Spark session on this machine is for this machine: nothing of it listens further."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import os, re
from firnmq.lake.jobs.session import spark_session

spark = spark_session(master="local[1]")
spark.range(3).count()
pid = spark.sparkContext._gateway.proc.pid
links = []
for name in os.listdir(f"/proc/{pid}/fd"):
    try:
        links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    except OSError:
        pass
sockets = {found[1] for link in links if (found := re.fullmatch(r"socket:\\[(\\d+)\\]", link))}
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").readlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in sockets:
            print("listens", fields[1].partition(":")[0])
spark.stop()
"""
LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}


def test_a_local_session_listens_on_loopback_only() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "SPARK_LOCAL_IP"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    said = [line.split() for line in done.stdout.splitlines()]
    addresses = {words[1] for words in said if words[:1] == ["listens"]}
    assert addresses, done.stdout
    assert addresses <= LOOPBACK
