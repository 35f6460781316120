"""`make demo`: a node, a year of clicks, streams, the lake, a query and a picture."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from examples.clickstream.demo import Scale, run
from examples.clickstream.node import serving
from examples.clickstream.quiet import quiet_session
from firnmq.lake.jobs.session import SMALL


def main() -> None:
    given = _arguments()
    out = Console()
    scale = Scale(events=given.events, rate=given.rate, live_s=given.seconds)
    with _scratch(given.keep) as scratch, serving(scratch / "data") as bootstrap:
        out.print(f"[green]✓[/] a node for Kafka clients: [bold]{bootstrap}[/], in {scratch}")
        began = time.monotonic()
        with out.status("Spark starts …"):
            settings = dict(SMALL)
            if given.master.startswith("local"):
                settings |= {"spark.driver.bindAddress": "127.0.0.1"}
                settings |= {"spark.driver.host": "127.0.0.1"}
            spark = quiet_session(given.master, settings, scratch / "spark.log")
        took = f"[dim]{time.monotonic() - began:.1f} s[/]"
        out.print(f"[green]✓[/] Spark {spark.version} on {given.master} {took}")
        try:
            run(spark, bootstrap, scratch, given.plot, scale, out)
        finally:
            spark.stop()
        if given.keep is None:
            out.print(f"  {scratch} is removed; keep it with --keep DIRECTORY")


def _arguments() -> argparse.Namespace:
    defaults = Scale()
    parser = argparse.ArgumentParser(prog="python -m examples.clickstream", description=__doc__)
    parser.add_argument("--events", type=int, default=defaults.events, help="of the year before")
    parser.add_argument("--rate", type=int, default=defaults.rate, help="live events a second")
    parser.add_argument("--seconds", type=float, default=defaults.live_s, help="of live events")
    parser.add_argument("--master", default="local[*]", help="where Spark runs")
    parser.add_argument("--plot", type=Path, default=Path("clickstream.png"), metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="work here and keep it")
    return parser.parse_args()


@contextmanager
def _scratch(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="firn-demo-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    main()
