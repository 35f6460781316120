"""The lake on Spark with two cores: conversion, and what lookups in the table have to touch.

The topic has 5 M events in JSON, records of about 250 bytes, over two days, in a data directory
that this process serves. Executors read its files; one Spark session does both sides of each
comparison.
"""

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Better, Measured, Run, benchmark, median
from firnmq import NewRecord
from firnmq import open as open_store
from firnmq.lake.jobs.runner import SparkRunner
from firnmq.lake.jobs.session import spark_session
from firnmq.lake.jobs.sync import SyncSettings, TopicSync
from firnmq.lake.plans.places import make_plan, resolved
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.plans.source import OptionsSource
from firnmq.lake.spark import register
from firnmq.lake.tables.catalogs.catalog import OpenCatalog, warehouse_store
from firnmq.lake.tables.files.key_filter import may_hold_key
from firnmq.lake.tables.table import TopicTable, find_table

ROW_COUNT = int(os.environ.get("BENCH_LAKE_ROWS", "5000000"))
"""Fewer for a quick look; the bars are for five million."""
SHARDS = 4
HOURS = 48
RECORDS_PER_KEY = 5
APPEND_RECORDS = 10_000
START_MS = 1_767_225_600_000
"""2026-01-01 00:00 UTC."""
HOUR_MS = 3_600_000
LOOKUPS = 20
TOPIC = "clicks"
EVENT = (
    b'{"id":"%024x","kind":"%b","user":"%b","at":"2026-01-%02dT%02d:%02d:%06.3fZ",'
    b'"page":"/products/%b-%d","referrer":"%b","country":"%b","took_ms":%d,"is_mobile":%b}'
)
KINDS = (b"view", b"view", b"click", b"cart", b"purchase")
GOODS = tuple(
    b"rope harness quickdraws helmet skis skins beacon shovel tent bag stove lamp boots shoes "
    b"gaiters axe".split()
)
REFERRERS = (b"", b"/", b"/search?q=winter", b"https://news.example/gear")
COUNTRIES = (b"CH", b"CH", b"AT", b"DE", b"DE", b"FR", b"IT", b"NO")
FLAGS = (b"false", b"true")
CONVERT_ROUNDS = 7
"""A round of Spark's writer takes up to half as long again as another."""
SCAN = (
    *("count(*)", "max(shard)", "max(offset)", "max(timestamp)", "sum(length(key))"),
    *("sum(length(value))", "sum(size(headers))", "sum(size(tags))"),
)


def fill(path: Path) -> None:
    """Records in the order of time; the records of a key are near each other, in one shard."""
    dice = random.Random(1)
    with open_store(path) as store:
        topic = store.create_topic(
            TOPIC,
            shards=SHARDS,
            options={"durability": "os", "segment.bytes": 128 << 20, "compression.type": "lz4"},
        )
        step_ms = HOURS * HOUR_MS / ROW_COUNT
        for start in range(0, ROW_COUNT, APPEND_RECORDS * SHARDS):
            for shard in range(SHARDS):
                topic.append(
                    [
                        NewRecord(
                            key=key_of(number),
                            value=event(dice, key_of(number), int(number * step_ms)),
                            timestamp_ms=START_MS + int(number * step_ms),
                        )
                        for number in _numbers(start, shard)
                    ],
                    shard=shard,
                )
        for shard in range(SHARDS):
            topic.roll(shard)


def event(dice: random.Random, user: bytes, after_ms: int) -> bytes:
    """A click as sites report it, with an id of its own: about 200 bytes of JSON."""
    bits = dice.getrandbits(96)
    minutes, millis = divmod(after_ms, 60_000)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return EVENT % (
        *(bits, KINDS[bits % 5], user),
        *(1 + day, hour, minute, millis / 1000),
        *(GOODS[bits >> 8 & 15], bits >> 16 & 1023, REFERRERS[bits >> 32 & 3]),
        *(COUNTRIES[bits >> 40 & 7], bits >> 48 & 2047, FLAGS[bits >> 60 & 1]),
    )


def _numbers(start: int, shard: int) -> Iterator[int]:
    """This shard's records of the next ones in all: keys go to shards in turn."""
    end = min(start + APPEND_RECORDS * SHARDS, ROW_COUNT)
    for first in range(start + shard * RECORDS_PER_KEY, end, SHARDS * RECORDS_PER_KEY):
        yield from range(first, min(first + RECORDS_PER_KEY, end))


def key_of(number: int) -> bytes:
    """Spread evenly, so that the bounds of a file say nothing about them."""
    return b"%016x" % (number // RECORDS_PER_KEY * 0x9E3779B97F4A7C15 % 2**64)


def shard_of(number: int) -> int:
    return number // RECORDS_PER_KEY % SHARDS


class Bench:
    """The topic, served, and a Spark session."""

    def __init__(self, spark: Any, options: dict[str, str], scratch: Path) -> None:
        self.spark = spark
        self.options = options
        self._scratch = scratch
        self._count = 0

    def fresh(self) -> Path:
        """An empty folder; what the one before held is removed."""
        shutil.rmtree(self._scratch / f"{self._count}", ignore_errors=True)
        self._count += 1
        path = self._scratch / f"{self._count}"
        path.mkdir(parents=True)
        return path

    def lake(self, path: Path) -> dict[str, str]:
        return {
            **self.options,
            "catalog": f"sqlite:///{path}/catalog.db",
            "warehouse": f"file://{path}/files",
        }

    def convert(self, options: dict[str, str], partition: str = "hour") -> float:
        """Rows per second from the log into the committed table."""
        began = time.perf_counter()
        work = TopicSync(
            source=OptionsSource(options),
            runner=SparkRunner(self.spark),
            options=options,
            settings=SyncSettings(partition=partition),
        )
        try:
            done = work.run()
        finally:
            work.close()
        assert done.row_count == ROW_COUNT, done
        return ROW_COUNT / (time.perf_counter() - began)

    def write_by_spark(self) -> float:
        """The same rows through the data source and Spark's own Parquet writer."""
        path = self.fresh()
        began = time.perf_counter()
        rows = self.spark.read.format("firn").options(**self.options).load()
        rows.write.parquet(str(path / "files"))
        return ROW_COUNT / (time.perf_counter() - began)

    def scan(self, rows: Any) -> float:
        """Rows per second of a query that looks at every column of every row."""
        began = time.perf_counter()
        (found,) = rows.selectExpr(*SCAN).collect()
        assert found[0] == ROW_COUNT, found
        return ROW_COUNT / (time.perf_counter() - began)


@contextmanager
def bench(run: Run) -> Iterator[Bench]:
    data = run.scratch()
    fill(data)
    spark = spark_session(
        "firn-bench",
        master="local[2]",
        settings={
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(run.scratch()),
            "spark.log.level": "ERROR",
        },
    )
    try:
        register(spark)
        with resolved({"data": str(data), "topic": TOPIC}) as options:
            yield Bench(spark, options, run.scratch())
    finally:
        spark.stop()


@benchmark("lake_convert", unit="rows/s", bar=Bar.ratio_at_least(2.5))
def lake_convert(run: Run) -> Measured:
    """From the log to a committed table as `firn lake sync` makes it, which is by day, against the
    data source and Spark's writer. A table by hour, of 24 times as many files, is told beside it.
    """
    with bench(run) as made:
        by_hour: list[float] = []

        def convert() -> float:
            by_hour.append(made.convert(made.lake(made.fresh()), "hour"))
            return made.convert(made.lake(made.fresh()), "day")

        measured = run.alternate(ours=convert, baseline=made.write_by_spark, rounds=CONVERT_ROUNDS)
        hourly = median(by_hour[1:])
        return replace(
            measured,
            extra={
                **measured.extra,
                "by_hour": hourly,
                "by_hour_ratio": hourly / measured.baseline,
                "rows": ROW_COUNT,
            },
        )


@benchmark("lake_scan", unit="rows/s", bar=Bar.ratio_at_least(0.6))
def lake_scan(run: Run) -> Measured:
    """All columns of the log through the data source, against Spark's reader of the same rows in
    the table's Parquet files."""
    with bench(run) as made:
        path = made.fresh()
        made.convert(made.lake(path))
        spark = made.spark
        files = spark.read.option("recursiveFileLookup", "true")
        files = files.option("pathGlobFilter", "*.parquet").parquet(f"{path}/files")
        return run.alternate(
            ours=lambda: made.scan(spark.read.format("firn").options(**made.options).load()),
            baseline=lambda: made.scan(files),
            extra={"rows": ROW_COUNT},
        )


@benchmark("lake_pruning", unit="files", bar=Bar.ratio_at_most(1.05), better=Better.LOWER)
def lake_pruning(run: Run) -> Measured:
    """Files that lookups of a key and of an hour read, against those that hold what they want."""
    with bench(run) as made:
        options = made.lake(made.fresh())
        made.convert(options)
        plan = make_plan(options, Wanted(shards=()))
        assert plan.table is not None
        with OpenCatalog(plan.table, options) as catalog:
            table = find_table(catalog, plan.topic, plan.topic_id)
            assert table is not None
            return _pruned(table, options)


def _pruned(table: TopicTable, options: dict[str, str]) -> Measured:
    files = list(table.iceberg.scan().plan_files())
    source = random.Random(2)
    key_files = key_needed = hour_files = hour_needed = 0
    step_ms = HOURS * HOUR_MS / ROW_COUNT
    for _ in range(LOOKUPS):
        number = source.randrange(ROW_COUNT // RECORDS_PER_KEY) * RECORDS_PER_KEY
        key = key_of(number)
        hours = {
            (START_MS + int(each * step_ms)) // HOUR_MS
            for each in range(number, number + RECORDS_PER_KEY)
        }
        found = files_for_key(table, options, key)
        held = [
            file
            for file in found
            if file.partition[0] in hours and file.lower_bounds[1][0] == shard_of(number)
        ]
        key_files += len(found)
        key_needed += len(held)
        assert held, "the key is there"
        hour = source.randrange(HOURS)
        start = _iso(START_MS + hour * HOUR_MS)
        end = _iso(START_MS + (hour + 1) * HOUR_MS)
        scan = table.iceberg.scan(row_filter=f"timestamp >= '{start}' and timestamp < '{end}'")
        hour_files += len(list(scan.plan_files()))
        wanted = START_MS // HOUR_MS + hour
        hour_needed += sum(task.file.partition[0] == wanted for task in files)
    return Measured(
        value=(key_files + hour_files) / LOOKUPS,
        baseline=(key_needed + hour_needed) / LOOKUPS,
        extra={
            "files": len(files),
            "key_files_scanned": key_files / LOOKUPS,
            "key_files_needed": key_needed / LOOKUPS,
            "hour_files_scanned": hour_files / LOOKUPS,
            "hour_files_needed": hour_needed / LOOKUPS,
        },
    )


def files_for_key(table: TopicTable, options: dict[str, str], key: bytes) -> list[Any]:
    """As readers of the history find them: by the bounds of the key, then by Bloom filters."""
    from pyiceberg.expressions import EqualTo

    store = warehouse_store(table.location, options)
    prefix = f"{table.location}/"
    try:
        return [
            task.file
            for task in table.iceberg.scan(row_filter=EqualTo("key", key)).plan_files()
            if may_hold_key(
                store,
                task.file.file_path.removeprefix(prefix),
                task.file.file_size_in_bytes,
                [key],
            )
        ]
    finally:
        store.close()


def _iso(timestamp_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat()
