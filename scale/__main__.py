"""`make scale`: the clickstream on a standalone cluster, or on the one that --master names."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from examples.clickstream.demo import Scale, run
from examples.clickstream.node import serving
from examples.clickstream.quiet import quiet_session
from firnmq.lake.jobs.session import SMALL
from scale.cluster import SETTINGS, StandaloneCluster


def main() -> None:
    given = _arguments()
    out = Console()
    scale = Scale(events=given.events, rate=given.rate, live_s=given.seconds, shards=4)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firn-scale-")))
        bootstrap = stack.enter_context(serving(scratch / "data"))
        out.print(f"[green]✓[/] a node for Kafka clients: [bold]{bootstrap}[/]")
        master, settings = given.master, dict(SMALL)
        if master is None:
            with out.status("a master and two workers start …"):
                cluster = StandaloneCluster(scratch / "cluster", workers=given.workers)
                stack.enter_context(cluster)
            master, settings = cluster.master, {**SMALL, **SETTINGS}
            out.print(f"[green]✓[/] a Spark cluster: [bold]{master}[/], {cluster.pids()}")
        spark = quiet_session(master, settings, scratch / "spark.log")
        try:
            run(spark, bootstrap, scratch, given.plot, scale, out)
        finally:
            spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scale", description=__doc__)
    parser.add_argument("--master", help="a cluster that is there, such as spark://host:7077")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--plot", type=Path, default=Path("clickstream.png"), metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
